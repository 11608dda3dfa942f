"""The live display of a running sweep. Without a terminal only the lasting lines are printed."""

import time
from collections.abc import Iterator
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from grposweep.labels import short
from grposweep.report.cost import seconds_left
from grposweep.report.tables import format_duration
from grposweep.report.trial_view import State, TrialView
from grposweep.report.view import SweepView


class LiveDisplay:
    """Show a sweep until the context ends."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._since = time.monotonic()

    def __enter__(self) -> "LiveDisplay":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def is_live(self) -> bool:
        """Whether there is a terminal to draw on."""
        return self._live is not None

    def show(self, view: SweepView, notice: str = "") -> None:
        """Replace what is on the screen."""
        if self._live is not None:
            self._live.update(live_screen(view, time.monotonic() - self._since, notice))

    def say(self, line: str) -> None:
        """Print one lasting line above the display."""
        self._console.print(line, markup=False)


def live_screen(view: SweepView, elapsed: float, notice: str = "") -> Group:
    """Return the screen. ``elapsed``: seconds since the command started."""
    active = [trial for trial in view.trials if trial.state in (State.RUNNING, State.QUEUED)]
    rows = Table.grid(padding=(0, 2))
    for trial in active:
        waits = view.progress.waiting.get(str(trial.number), "")
        rows.add_row(f"trial {trial.number}", *_progress(trial, waits), Text(short(trial.point), "dim"))
    best = view.winner
    found = "" if best is None else f"{best.objective:.4f} (trial {best.number}: {short(best.point)})"
    parts: list[RenderableType] = [
        _head(view, active, elapsed),
        Text(f"best so far: {found}" if found else "no trial has finished yet"),
        Text(f"spent: {view.spent_text}"),
        rows,
    ]
    return Group(*parts, *([Text(notice, "yellow")] if notice else []))


def _head(view: SweepView, active: list[TrialView], elapsed: float) -> Table:
    head, left = Table.grid(padding=(0, 2)), seconds_left(view)
    stopped, invalid = view.count(State.PRUNED), (view.progress.points or 0) - (view.progress.valid or 0)
    head.add_row(
        f"[bold]{view.count(State.FINISHED)}[/]/{view.planned} done",
        ", ".join(_under_way(view, active)),
        f"{view.count(State.FAILED)} failed",
        *([f"{stopped} stopped early"] if stopped else []),
        f"{invalid} invalid, pruned",
        f"{format_duration(elapsed)} elapsed",
        f"{format_duration(left)} left" if left is not None else "time left unknown yet",
    )
    return head


def _under_way(view: SweepView, active: list[TrialView]) -> Iterator[str]:
    waiting, paused = sum(str(trial.number) in view.progress.waiting for trial in active), view.count(State.PAUSED)
    yield f"{len(active) - waiting} running"
    yield from (f"{number} {state}" for state, number in (("waiting", waiting), ("paused", paused)) if number)


def _progress(trial: TrialView, waits: str) -> tuple[RenderableType, str, str]:
    """Return a bar, its numbers and the last reward. A waiting trial has a step only from an earlier attempt."""
    if waits:
        return Text(waits, "yellow"), f"{trial.step}/{trial.total}" if trial.step else "", ""
    bar, reward = ProgressBar(total=max(trial.total, 1), completed=trial.step, width=20), trial.last_value("reward")
    return bar, f"{trial.step}/{trial.total}", "" if reward is None else f"reward {reward:.3f}"
