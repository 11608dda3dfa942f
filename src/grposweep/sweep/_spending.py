"""The GPU hours that a sweep has spent, and whether that is all of ``search.budget``."""

import time
from dataclasses import dataclass, field

from optuna.trial import FrozenTrial

from grposweep.search.study import SweepStudy
from grposweep.storage.folders import SweepFolder
from grposweep.storage.results import read_runs, run_cost
from grposweep.sweep._attempts import RunningAttempt

HOUR = 3600.0


@dataclass
class Spending:
    """What one sweep has spent. A rank without a GPU counts as one. ``limit``: GPU hours, None for
    no limit.
    """

    folder: SweepFolder
    study: SweepStudy
    limit: float | None
    # the controller's own
    running: dict[int, RunningAttempt] = field(default_factory=dict)
    # device seconds of trials that do not run, which are read once
    _known: dict[int, float] = field(default_factory=dict)

    def hours(self) -> float:
        """Return the GPU hours of all trials so far, including running ones."""
        return sum(map(self._device_seconds, self.study.started)) / HOUR

    @property
    def is_over(self) -> bool:
        """Whether the limit is reached."""
        return self.limit is not None and self.hours() >= self.limit

    def end(self, number: int) -> None:
        """Note that an attempt of a trial has ended."""
        del self.running[number]
        self._known.pop(number, None)

    def _device_seconds(self, trial: FrozenTrial) -> float:
        number = trial.number
        attempt = self.running.get(number)
        if attempt is not None:
            most = time.monotonic() - attempt.since
            _, seconds = run_cost(attempt.folder.path, is_running=True, most=most)
            return seconds
        if number not in self._known:
            path = self.folder.of(trial).path
            _, seconds = run_cost(path)
            # an attempt of an earlier controller may still run
            if not (trial.state.is_finished() or all(run.end for run in read_runs(path))):
                return seconds
            self._known[number] = seconds
        return self._known[number]
