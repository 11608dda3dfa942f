"""The command's root, and how every command of it ends: one message for bad input, an exit code.

How sweeps and trials are named on the command line, and what a shell offers when a person presses tab.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from grposweep.errors import UserError
from grposweep.storage import paths
from grposweep.storage.exit_code import ExitCode

app = typer.Typer(
    help="Hyperparameter sweeps and a linter for GRPO fine-tuning recipes.",
    no_args_is_help=True,
    rich_markup_mode=None,  # rich costs 0.1 s that lint should not pay
    pretty_exceptions_enable=False,
)


@app.callback()
def grposweep() -> None:
    """Hyperparameter sweeps and a linter for GRPO fine-tuning recipes."""


def examples(*lines: str) -> str:
    """Commands for the end of a command's help, a line each."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def answer(work: Callable[[], int]) -> int:
    """The exit code of a command's work: bad input is one message, an interrupt or a closed pipe is none."""
    try:
        code = work()
        sys.stdout.flush()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitCode.BAD_INPUT
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at the end
        return ExitCode.BROKEN_PIPE
    return code


OUTPUTS = Path("outputs")


def complete_sweep(context: typer.Context, incomplete: str) -> list[str]:
    """The sweeps under --outputs that begin so."""
    outputs = Path(context.params.get("outputs") or OUTPUTS)
    return sorted(path.parent.name for path in outputs.glob(f"{_literal(incomplete)}*/{paths.SWEEP}"))


def complete_trial(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The trials of the sweep that is named (otherwise of the newest): numbers, with the folders' names as help."""
    from grposweep.errors import UserError
    from grposweep.storage.folders import find_sweep

    outputs = Path(context.params.get("outputs") or OUTPUTS)
    try:
        trials = find_sweep(context.params.get("sweep"), outputs).trials()
        return [(str(trial.number), trial.path.name) for trial in trials if str(trial.number).startswith(incomplete)]
    except UserError:
        return []


def _literal(text: str) -> str:
    """What somebody typed, without a meaning for glob()."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)


Named = Annotated[
    str | None,
    typer.Argument(
        metavar="SWEEP",
        help="A name under outputs, or a path.",
        show_default="the newest",
        autocompletion=complete_sweep,
    ),
]
Required = Annotated[
    str, typer.Argument(help="A name under outputs, or a path.", show_default=False, autocompletion=complete_sweep)
]
Sweep = Annotated[
    str | None,
    typer.Option(
        metavar="SWEEP",
        help="A name under outputs, or a path.",
        show_default="the newest",
        autocompletion=complete_sweep,
    ),
]
Trial = Annotated[
    str, typer.Argument(help="Its number, folder or path; or best.", show_default=False, autocompletion=complete_trial)
]
Outputs = Annotated[Path, typer.Option(help="Where sweeps are.")]
