"""Commands that manage sweeps: space, cancel, doctor."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from grposweep.cli.app import Outputs, Required, command


@command(
    "grposweep space -m lr=1e-4,3e-4 batch=small,open_r1_medium",
    "grposweep space sweeps=lr_batch",
    context_settings={"ignore_unknown_options": True},
)
def space(
    arguments: Annotated[list[str], typer.Argument(help="A sweep as run.py takes it: -m lr=1e-4,3e-4 ...", show_default=False)],
) -> int:  # fmt: skip  # an option a line reads best
    """Count a sweep's points: valid ones, and which rules prune the others.

    Exit code: 0, 1 where no point is valid, 2 unusable input.
    """
    from grposweep.cli.plan import show_space

    return show_space(arguments)


@command("grposweep cancel lr_batch")
def cancel(sweep: Required, outputs: Outputs = Path("outputs")) -> None:
    """End a sweep's jobs and only those; its command goes on from their last checkpoints."""
    from grposweep.launchers import cancel_sweep

    print(cancel_sweep(sweep, outputs))


@command("grposweep doctor lr_batch", "grposweep doctor lr_batch --repair")
def doctor(
    sweep: Required,
    repair: Annotated[bool, typer.Option("--repair", help="Mend what can be mended; nothing is thrown away.")] = False,
    outputs: Outputs = Path("outputs"),
) -> int:
    """Check that a sweep's files can be read and agree, and say what would mend them.

    Exit code: 0 sound, 1 problems found (and left), 2 unusable.
    """
    from grposweep.sweep.doctor import run_checks

    return run_checks(sweep, outputs, repair, sys.stdout)
