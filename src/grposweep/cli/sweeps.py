"""Commands on sweeps as a whole: space, cancel, doctor."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from grposweep.cli.app import Required, answer, app, examples


@app.command(
    context_settings={"ignore_unknown_options": True},
    epilog=examples("grposweep space -m lr=1e-4,3e-4 batch=small,open_r1_medium", "grposweep space sweeps=lr_batch"),
)
def space(
    arguments: Annotated[list[str], typer.Argument(help="A sweep as run.py takes it: -m lr=1e-4,3e-4 ...", show_default=False)],
) -> None:  # fmt: skip  # an option a line reads best
    """Count a sweep's points: valid ones, and which rules prune the others.

    Exit code: 0, 1 where no point is valid, 2 unusable input.
    """

    def work() -> int:
        from grposweep.cli.plan import show_space

        return show_space(arguments)

    raise typer.Exit(answer(work))


@app.command(epilog=examples("grposweep cancel lr_batch"))
def cancel(
    sweep: Required,
    outputs: Annotated[Path, typer.Option(help="Where sweeps are.")] = Path("outputs"),
) -> None:
    """End a sweep's jobs and only those; its command goes on from their last checkpoints."""

    def work() -> int:
        from grposweep.sweep.cancel import cancel_sweep

        print(cancel_sweep(sweep, outputs))
        return 0

    raise typer.Exit(answer(work))


@app.command(epilog=examples("grposweep doctor lr_batch", "grposweep doctor lr_batch --repair"))
def doctor(
    sweep: Required,
    repair: Annotated[bool, typer.Option("--repair", help="Mend what can be mended; nothing is thrown away.")] = False,
    outputs: Annotated[Path, typer.Option(help="Where sweeps are.")] = Path("outputs"),
) -> None:
    """Check that a sweep's files can be read and agree, and say what would mend them.

    Exit code: 0 sound, 1 problems found (and left), 2 unusable.
    """

    def work() -> int:
        from grposweep.sweep.doctor import visit

        return visit(sweep, outputs, repair, sys.stdout)

    raise typer.Exit(answer(work))
