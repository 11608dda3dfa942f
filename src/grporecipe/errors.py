"""Exit codes of grposweep, and the errors that lead to them.

Bad input has one message: what is set, why it cannot work, and what to set instead.
"""

import gc
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum


class ExitCode(IntEnum):
    """How a process of grposweep ends; a negative code is the signal that ended it."""

    FINISHED = 0
    """Success; for a sweep, at least one trial finished."""
    FAILED = 1
    """An attempt crashed; a sweep has no finished trial or stopped itself; a check found problems.
    """
    BAD_INPUT = 2
    """What the user set cannot work."""
    STOPPED = 3
    """An attempt stopped on request; it resumes from its last checkpoint."""
    SERVER_ENDED = 4
    """A job's script reports that its vLLM server ended early."""
    DISK_FULL = 5
    """An attempt could not write why it ended, because the disk was full."""
    INTERRUPTED = 130
    """Ctrl-C, or a controller that was asked to stop."""
    BROKEN_PIPE = 141
    """The program that reads the output closed it."""


class UserError(Exception):
    """Raised for user input that cannot work. It is printed without a traceback; exit code 2."""

    kind = "bad_input"
    """What result.json calls the failure of an attempt."""
    problems: Sequence[str] = ()
    """The messages, if it has several."""


# mistakes in one message
MOST_SHOWN = 8


def refuse_mistakes(problems: Iterable[str]) -> None:
    """Raise UserError with all of these messages, each once; do nothing without any. Of very many
    it shows the first ones.
    """
    wrong = list(dict.fromkeys(problems))
    if not wrong:
        return
    shown = wrong
    if len(wrong) > MOST_SHOWN + 1:
        shown = [*wrong[:MOST_SHOWN], f"and {len(wrong) - MOST_SHOWN} more"]
    if len(wrong) > 1:
        shown = [f"{len(wrong)} keys cannot work:", *shown]
    error = UserError("\n- ".join(shown))
    error.problems = wrong
    raise error


class UnknownMetricError(UserError):
    """Raised if no evaluation of a trial has reported the objective."""

    kind = "unknown_metric"


class BadSettings(UserError):
    """Raised if a project's settings cannot be read. A folder is refused too, because no file could
    be judged by them.
    """


class NotARecipe(UserError):
    """Raised for a file that is not a GRPO recipe of a known framework: an error if it is named,
    skipped in a folder.
    """


class LeaseLostError(Exception):
    """Raised if another controller took over this sweep. This one stops and changes nothing
    more.
    """


class ProgramFailed(Exception):
    """Raised if the external program of a trial failed: its exit code (negative: the signal), and
    its error line if any.
    """

    def __init__(self, code: int, last_lines: list[str], error: str = "") -> None:
        self.kind = f"exit code {code}"
        if code < 0:
            self.kind = f"signal {-code}"
        self.last_lines = last_lines
        message = f"the program ended with {self.kind}"
        if error:
            message += f": {error}"
        super().__init__(message)


# what the extra [sweep] installs
OF_SWEEPS = ("hydra", "omegaconf", "optuna", "scipy", "jinja2", "plotly")


def packages_first() -> None:
    """Move the working directory to the end of the import path: a yaml.py there must not stand in
    for the package.

    Python puts it first at ``python -m``, and in the place of an empty entry of PYTHONPATH. A
    folder that the user has named in PYTHONPATH by its whole path keeps its place.
    """
    try:
        here = os.getcwd()  # noqa: PTH109 - pathlib would be imported from there
        holds_packages = os.path.samefile(here, os.path.dirname(os.path.dirname(__file__)))  # noqa: PTH120, PTH121 - the same
    except OSError:
        # it was deleted
        return
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    is_first = sys.path[:1] == [here] and not sys.flags.safe_path
    kept = [
        path
        for path in sys.path[is_first:]
        if path not in ("", here) or path in filter(None, named)
    ]
    if len(kept) < len(sys.path) and not holds_packages:
        sys.path[:] = [*kept, here]


@contextmanager
def without_traceback() -> Iterator[None]:
    """End the process with one line instead of a traceback after Ctrl-C, or if what sweeps need is
    not installed.

    Also while modules are imported.
    """
    # Imports make hundreds of thousands of objects that stay: collecting after each 700 is 7 % of a
    # command's start.
    gc.set_threshold(200_000)
    try:
        os.getcwd()  # noqa: PTH109 - see above
    except OSError as error:
        what = (
            f"error: the working directory cannot be read ({error.strerror}): it may have "
            "been deleted"
        )
        print(f"{what}. Change to one that exists, with cd.", file=sys.stderr)
        sys.exit(ExitCode.BAD_INPUT)
    packages_first()
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in OF_SWEEPS:
            raise
        what = f"error: {error.name} is not installed, and sweeps need it"
        print(f"{what}. Run pip install '.[sweep]' in a checkout of grposweep.", file=sys.stderr)
        sys.exit(ExitCode.BAD_INPUT)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(ExitCode.INTERRUPTED)
