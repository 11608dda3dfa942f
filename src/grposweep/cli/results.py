"""Commands on what a sweep found: rerun, sync."""

from pathlib import Path
from typing import Annotated

import typer

from grposweep.cli.app import answer, app, examples
from grposweep.cli.names import Named, Outputs, Sweep, Trial


@app.command(
    epilog=examples(
        "grposweep rerun 7                            # of the newest sweep",
        "grposweep rerun 7 lr=1e-3 --sweep lr_batch   # judged by the rules first",
        "grposweep rerun 7 force=true                 # although its repetition is recorded",
    )
)
def rerun(
    trial: Trial,
    overrides: Annotated[list[str] | None, typer.Argument(help="What to change: lr=1e-3 kl=low.", show_default=False)] = None,
    sweep: Sweep = None,
    outputs: Outputs = Path("outputs"),
) -> None:  # fmt: skip  # an option a line reads best
    """Repeat a trial exactly, or with a change: same configuration, seeds and code where the sweep kept a copy.

    Results go to a sweep of their own beside the trial's; paths are relative to where that was started.
    Exit code: 0 finished, 1 failed, 2 bad input, 130 interrupted.
    """

    def work() -> int:
        from grposweep.sweep.rerun import find_trial, rerun_trial

        return rerun_trial(find_trial(trial, sweep, outputs), overrides or [])

    raise typer.Exit(answer(work))


@app.command(
    epilog=examples(
        "grposweep sync                               # the newest sweep",
        "WANDB_API_KEY=... grposweep sync lr_batch",
    )
)
def sync(sweep: Named = None, outputs: Outputs = Path("outputs")) -> None:
    """Send the W&B runs that a sweep kept offline, one run a trial; what was sent is not sent again.

    Exit code: 0 all is sent, 1 something is not (nothing is lost), 2 unusable.
    """

    def work() -> int:
        from grposweep.report.read import open_sweep
        from grposweep.sweep.sync import sync_sweep

        return sync_sweep(open_sweep(sweep, outputs))

    raise typer.Exit(answer(work))
