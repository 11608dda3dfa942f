"""The GPU hours that a sweep has spent, and whether that is all of ``search.budget``."""

import time
from dataclasses import dataclass, field

from optuna.trial import FrozenTrial

from grposweep.search.study import SweepStudy
from grposweep.storage.folders import SweepFolder
from grposweep.storage.results import run_cost
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
    # device seconds of ended trials, which are read once
    _ended: dict[int, float] = field(default_factory=dict)

    def hours(self) -> float:
        """Return the GPU hours of all trials so far, including running ones."""
        return sum(map(self._device_seconds, self.study.started)) / HOUR

    @property
    def is_over(self) -> bool:
        """Whether the limit is reached."""
        return self.limit is not None and self.hours() >= self.limit

    def _device_seconds(self, trial: FrozenTrial) -> float:
        number = trial.number
        if number in self._ended:
            return self._ended[number]
        path = self.folder.of(trial).path
        attempt = self.running.get(number)
        if attempt is None:
            _, seconds = run_cost(path)
        else:
            _, seconds = run_cost(path, is_running=True, most=time.monotonic() - attempt.since)
        if trial.state.is_finished():
            self._ended[number] = seconds
        return seconds
