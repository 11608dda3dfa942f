"""The live display: trials done, running and failed, the best so far, time left; plain lines where there is no terminal."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from grposweep.report.tables import clock


@dataclass(frozen=True)
class Active:
    """A trial under way: its number, point, step of total, last reward, and why it waits where it does."""

    number: int
    point: str
    step: int
    total: int
    reward: float | None
    waits: str = ""


@dataclass(frozen=True)
class Snapshot:
    """What the display shows at one moment."""

    target: int
    finished: int
    failed: int
    invalid: int
    best: str
    seconds_left: float | None
    running: Sequence[Active]
    spent: str
    notice: str = ""
    stopped: int = 0  # early, for good
    paused: int = 0


class Display:
    """Shows snapshots until it is left; a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._since = time.monotonic()

    def __enter__(self) -> "Display":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, snapshot: Snapshot) -> None:
        """Replace what is on the screen; without a terminal, nothing (lines come from ``say``)."""
        if self._live is not None:
            self._live.update(self._render(snapshot))

    def say(self, line: str) -> None:
        """One lasting line above the display."""
        self._console.print(line, markup=False)

    def _render(self, snapshot: Snapshot) -> Group:
        head = Table.grid(padding=(0, 2))
        head.add_row(
            f"[bold]{snapshot.finished}[/]/{snapshot.target} done",
            _under_way(snapshot),
            f"{snapshot.failed} failed",
            *([f"{snapshot.stopped} stopped early"] if snapshot.stopped else []),
            f"{snapshot.invalid} invalid, pruned",
            f"{clock(time.monotonic() - self._since)} elapsed",
            f"{clock(snapshot.seconds_left)} left" if snapshot.seconds_left is not None else "time left unknown yet",
        )
        rows = Table.grid(padding=(0, 2))
        for active in snapshot.running:
            rows.add_row(f"trial {active.number}", *_progress(active), Text(active.point, "dim"))
        parts: list[RenderableType] = [
            head,
            Text(f"best so far: {snapshot.best}" if snapshot.best else "no trial has finished yet"),
            Text(f"spent: {snapshot.spent}"),
            rows,
        ]
        if snapshot.notice:
            parts.append(Text(snapshot.notice, "yellow"))
        return Group(*parts)


def _under_way(snapshot: Snapshot) -> str:
    waiting = sum(bool(active.waits) for active in snapshot.running)
    counts = {"waiting": waiting, "paused": snapshot.paused}
    return f"{len(snapshot.running) - waiting} running" + "".join(f", {n} {word}" for word, n in counts.items() if n)


def _progress(active: Active) -> tuple[RenderableType, str, str]:
    """A bar, its numbers and the last reward; a trial that waits has a step only if an earlier attempt made it."""
    bar = ProgressBar(total=max(active.total, 1), completed=active.step, width=20)
    if active.waits:
        return Text(active.waits, "yellow"), f"{active.step}/{active.total}" if active.step else "", ""
    reward = "" if active.reward is None else f"reward {active.reward:.3f}"
    return bar, f"{active.step}/{active.total}", reward
