"""The ``grposweep`` command: one module for each group of commands.

Commands import what they need when they run, because lint has to start in a fraction of a second.
This package imports nothing by itself: ``src/run.py`` needs ``cli.hydra_app`` alone.
"""

from typing import TYPE_CHECKING

from grporecipe.errors import without_traceback

if TYPE_CHECKING:
    from typer import Typer


def build_app() -> "Typer":
    """Return the command with all its subcommands, in the order of ``--help``."""
    # registers the commands
    from grposweep.cli import _recipes as recipes
    from grposweep.cli import _results as results
    from grposweep.cli import _sweeps as sweeps
    from grposweep.cli._app import app

    order = [module.__name__ for module in (sweeps, recipes, results)]
    app.registered_commands.sort(
        key=lambda command: order.index(getattr(command.callback, "__module__", ""))
    )
    return app


def main() -> None:
    """Run the command."""
    with without_traceback():
        # after the import path is in order
        from grporecipe.terminal import open_streams

        open_streams()
        build_app()(prog_name="grposweep")
