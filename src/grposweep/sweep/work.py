"""Ticking until nothing is left: what is shown meanwhile, and what Ctrl-C means."""

import contextlib
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from rich.console import Console

from grposweep.report.live import Display
from grposweep.search.mirror import Mirror
from grposweep.sweep.controller import Controller
from grposweep.sweep.outlook import Outlook, write_outlook
from grposweep.sweep.say import trial_line
from grposweep.sweep.summary import outlook, snapshot

POLL_SECONDS = 0.1
SHOW_SECONDS = 0.5


@dataclass
class Interrupts:
    """How often somebody asked us to stop."""

    count: int = 0

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        self.count += 1


@contextmanager
def counting_interrupts() -> Iterator[Interrupts]:
    """Ctrl-C and friendly termination are counted instead of raised, so that nothing is torn apart half-way."""
    interrupts = Interrupts()
    before = {number: signal.signal(number, interrupts) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def work(controller: Controller, console: Console, interrupts: Interrupts, invalid: int, mirror: Mirror | None) -> None:
    """Tick until nothing is left; one request to stop ends at rollout boundaries, a second ends now."""
    said: set[int] = {trial.number for trial in controller.started if trial.state.is_finished()}
    seen, shown, notice, told = 0, 0.0, "", Outlook()
    with Display(console) as display:
        while True:
            if interrupts.count and controller.launcher.outlives:
                return
            if interrupts.count > seen:
                seen = interrupts.count
                notice = _interrupt(controller, seen)
                display.say(notice)
            done = controller.tick()
            if mirror is not None:
                mirror.show(controller.study.trials)
            while controller.settler.news:
                display.say(controller.settler.news.pop(0))
            for trial in controller.started:
                if trial.state.is_finished() and trial.number not in said:
                    said.add(trial.number)
                    display.say(trial_line(controller, trial))
            if done:
                _tell(controller, invalid, told)
                return
            if time.monotonic() - shown > SHOW_SECONDS:
                shown = time.monotonic()
                told = _tell(controller, invalid, told)
                display.show(
                    snapshot(controller, invalid, notice or controller.trouble or (mirror.problem if mirror else ""))
                )
            time.sleep(POLL_SECONDS)


def _tell(controller: Controller, invalid: int, told: Outlook) -> Outlook:
    """Write down what only we know, where that has changed, for whoever looks at the folder meanwhile."""
    now = outlook(controller, invalid)
    if now != told:
        with contextlib.suppress(OSError):  # a full disk is reported by whoever writes something that matters
            write_outlook(controller.folder.path, now)
    return now


def _interrupt(controller: Controller, count: int) -> str:
    """Act on a request to stop; what to tell the person."""
    if count == 1:
        controller.stop()
        return "stopping at the next rollout boundary; Ctrl-C again ends the trials now (both can be resumed)"
    controller.kill()
    return "ending the trials now"
