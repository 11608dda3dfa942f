"""The ``grposweep`` command: what it takes from a person, and which part of the package answers.

A module a group of commands; what answers is imported when its command runs, because lint starts in a fraction of a second.
"""

from grposweep.cli import desk, recipes, results, sweeps  # noqa: F401 - their commands register themselves
from grposweep.cli.app import answer, app

__all__ = ["answer", "app", "main"]


def main() -> None:
    """Run the command."""
    app(prog_name="grposweep")
