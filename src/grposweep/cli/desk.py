"""Commands that look at sweeps, from their folders alone: status, show, list, report."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from grposweep.cli.app import Named, Outputs, Sweep, Trial, answer, app, examples


@app.command(
    epilog=examples(
        "grposweep status                                  # of the newest sweep",
        "grposweep status lr_batch --watch                 # live",
        "grposweep status lr_batch --json | jq .best.point",
    )
)
def status(
    sweep: Named = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it live until the sweep is done, or Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    outputs: Outputs = Path("outputs"),
) -> None:
    """Show how far a sweep is: best so far, what runs and waits, what was pruned and why, failures, cost."""

    def work() -> int:
        from grposweep.report.screens import show_status

        show_status(sweep, outputs, watch, json, sys.stdout)
        return 0

    raise typer.Exit(answer(work))


@app.command(epilog=examples("grposweep show 12", "grposweep show 0012-3f9a1c --sweep lr_batch"))
def show(
    trial: Trial,
    sweep: Sweep = None,
    outputs: Outputs = Path("outputs"),
) -> None:
    """Show everything about one trial: its curve, problems, differences to the best and the baseline, its command."""

    def work() -> int:
        from grposweep.report.screens import show_trial

        show_trial(trial, sweep, outputs)
        return 0

    raise typer.Exit(answer(work))


@app.command("list", epilog=examples("grposweep list", "grposweep list /shared/experiments"))
def list_(
    folder: Annotated[Path, typer.Argument(help="Where to look, a few levels deep.")] = Path("outputs"),
) -> None:
    """List the sweeps in and below a folder, the latest first."""

    def work() -> int:
        from grposweep.report.screens import show_sweeps

        show_sweeps(folder)
        return 0

    raise typer.Exit(answer(work))


@app.command(epilog=examples("grposweep report", "grposweep report lr_batch --output ~/lr_batch.html"))
def report(
    sweep: Named = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A file or folder.", show_default="report.html in the sweep's folder"),
    ] = None,
    outputs: Outputs = Path("outputs"),
) -> None:
    """Write one HTML file about a sweep: leaderboard, curves, dials, what was pruned and why, failures, cost, commands.

    It opens from disk, needs no network, and may be written while the sweep runs.
    """

    def work() -> int:
        from grposweep.report.screens import show_report

        show_report(sweep, outputs, output)
        return 0

    raise typer.Exit(answer(work))
