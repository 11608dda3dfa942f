"""The ``grposweep`` command: one module a group of commands.

Commands import what they need when they run, because lint has to start in a fraction of a second.
"""

from grposweep.cli import sweeps, recipes, results, manage  # noqa: F401, I001 - registers commands in the order of --help
from grposweep.cli.app import answer, app

__all__ = ["answer", "app", "main"]


def main() -> None:
    """Run the command."""
    app(prog_name="grposweep")
