"""The root of the ``grposweep`` command: registration, exit codes, and shell completion of sweeps
and trials.
"""

import contextlib
import errno
import sys
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from glob import escape
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer import Argument, Option
from typer.core import TyperCommand, TyperGroup

from grporecipe import __version__
from grporecipe.errors import ExitCode, UserError
from grporecipe.terminal import discard, say
from grposweep.storage import paths

# The commands by what they are for, in the order of their use.
GROUPS = {
    "Judge recipes and logs": ("lint", "check", "plan", "fit", "rules", "diagnose"),
    "Run sweeps": ("init", "space", "run", "rerun", "continue"),
    "Look at results": ("list", "status", "show", "compare", "best", "report", "export"),
    "Maintain sweeps": ("retry", "cancel"),
}


class _Group(TyperGroup):
    """The root command, whose help has the commands in groups."""

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(f"{name:8}", self.commands[name].get_short_help_str(100)) for name in names]
                )


app = typer.Typer(
    cls=_Group,
    help="Hyperparameter sweeps and a linter for GRPO fine-tuning recipes.",
    epilog="\b\nExamples:\n  grposweep lint recipe.yaml --processes 8\n"
    "  grposweep run -m lr=1e-6,3e-6 -- bash launch.sh\n\n"
    "Documentation: https://github.com/grposweep/grposweep/blob/main/docs/README.md",
    no_args_is_help=True,
    # rich costs 0.1 s that lint should not pay
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"grposweep {__version__}")
        raise typer.Exit


@app.callback()
def grposweep(
    version: Annotated[
        bool, Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Hyperparameter sweeps and a linter for GRPO fine-tuning recipes."""


def choices(name: str, *values: str) -> type[StrEnum]:
    """Return the choices of an option whose values come from a registry."""
    members = {value.replace("-", "_"): value for value in values}
    # mypy takes it for a member's value
    return cast("type[StrEnum]", StrEnum(name, members))


class _Command(TyperCommand):
    """A command that keeps the two dashes in front of the user's own launch command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments."""
        # click would drop them
        if ctx.ignore_unknown_options and "--" in args:
            args = [*args[: args.index("--")], "--", *args[args.index("--") :]]
        return super().parse_args(ctx, args)


# a disk, a quota, a limit on files' sizes
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def command(
    *examples: str, **settings: Any
) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Register a function as a command. ``examples`` end its help; ``settings`` are those of
    ``app.command``.

    The function returns the exit code; None stands for success. Bad input prints one message and
    exits with code BAD_INPUT.
    """
    epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples)

    def register(work: Callable[..., int | None]) -> Callable[..., int | None]:
        @wraps(work)
        def run(**arguments: Any) -> None:
            raise typer.Exit(answer(lambda: work(**arguments)))

        app.command(epilog=epilog, cls=_Command, **settings)(run)
        return work

    return register


def answer(work: Callable[[], int | None]) -> int:
    """Run a command's work and return its exit code."""
    try:
        code = work() or ExitCode.FINISHED
        sys.stdout.flush()
    except UserError as error:
        say(f"error: {error}", sys.stderr)
        return ExitCode.BAD_INPUT
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        discard(sys.stdout)
        return ExitCode.BROKEN_PIPE
    except OSError as error:
        # no permission, or the disk is full or gone
        named = error.filename or "a file or the output"
        room = " Make room, and give the same command again." if error.errno in NO_ROOM else ""
        say(f"error: {named}: {error.strerror or error}.{room}", sys.stderr)
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            return ExitCode.BAD_INPUT
        discard(sys.stdout)
        return ExitCode.BAD_INPUT
    return code


ConfigDir = Annotated[
    Path | None, Option("--config-dir", metavar="DIR", help="Your copy of conf/ (grposweep init).")
]
OUTPUTS = Path("outputs")


def complete_sweep(context: typer.Context, incomplete: str) -> list[str]:
    """Return the sweeps under --outputs that begin with ``incomplete``."""
    outputs = Path(context.params.get("outputs") or OUTPUTS)
    return sorted(path.parent.name for path in outputs.glob(f"{escape(incomplete)}*/{paths.SWEEP}"))


def complete_name(context: typer.Context, incomplete: str) -> list[str]:
    """Return the sweeps that begin so, or after a sweep's name its trial numbers."""
    from grposweep.report.view import find_names

    names = context.params.get("names")
    if not names:
        return complete_sweep(context, incomplete)
    try:
        sweep, _ = find_names(names, Path(context.params.get("outputs") or OUTPUTS))[-1]
    except UserError:
        return []
    return [
        str(trial.number) for trial in sweep.trials() if str(trial.number).startswith(incomplete)
    ]


_SWEEP: Any = {"help": "A name under outputs, or a path.", "autocompletion": complete_sweep}
_NEWEST: Any = {**_SWEEP, "metavar": "SWEEP", "show_default": "the newest"}
Named = Annotated[str | None, Argument(**_NEWEST)]
Required = Annotated[str, Argument(**_SWEEP)]
_TRIALS: Any = {
    "autocompletion": complete_name,
    "help": (
        "SWEEP: name or path, by default the newest. TRIAL: number, folder, best. Or SWEEP/TRIAL."
    ),
}
LOG_HELP = (
    "A log of any trainer, or a folder with one, and its recipe if you like; or a trial, "
    "as for show."
)
LogOrNames = Annotated[
    list[str], Argument(metavar="LOG [RECIPE]|[SWEEP] TRIAL", **{**_TRIALS, "help": LOG_HELP})
]
Names = Annotated[list[str] | None, Argument(metavar="[SWEEP] [TRIAL] ...", **_TRIALS)]
NamesAndKeys = Annotated[list[str], Argument(metavar="[SWEEP] TRIAL [key=value] ...", **_TRIALS)]
Outputs = Annotated[Path, Option(help="Folder that holds the sweeps.")]
AsJson = Annotated[bool, Option("--json", help="Print one JSON object.")]
