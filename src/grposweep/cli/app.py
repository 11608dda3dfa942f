"""The command's root, and how every command of it ends: one message for bad input, an exit code."""

import os
import sys
from collections.abc import Callable

import typer

from grposweep.errors import BadInput

UNUSABLE, INTERRUPTED, BROKEN_PIPE = 2, 130, 141
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
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return UNUSABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at the end
        return BROKEN_PIPE
    return code
