"""Watches learning curves while a sweep runs: which trials guards end, and which ones the way of stopping early pauses or ends.

Whatever it decides is in the trial's control.json before anything happens, once; the decision holds from then on, whatever
becomes of the attempt that is to heed it.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

from optuna.trial import FrozenTrial, TrialState

from grposweep.config.schema import Search
from grposweep.search import guards
from grposweep.search.curves import Curve, State
from grposweep.search.replicates import is_replicate
from grposweep.search.stopping import Action, Never, Stopping
from grposweep.search.study import SweepStudy
from grposweep.sweep.curves import CurveReader, whole_completions
from grposweep.sweep.folder import Asked, SweepFolder
from grposweep.sweep.settler import Running

ASKS = {Action.PAUSE: "pause", Action.STOP: "prune"}
STATES = {TrialState.COMPLETE: State.FINISHED, TrialState.PRUNED: State.STOPPED, TrialState.FAIL: State.STOPPED}
NEVER_PROMOTED = "paused, and never promoted"


@dataclass
class Overseer:
    """What is known of a sweep's learning curves; all of it can be read again from the trial folders."""

    folder: SweepFolder
    study: SweepStudy
    search: Search
    stopping: Stopping = field(default_factory=Never)
    paused: set[int] = field(default_factory=set)  # trials that wait for their promotion
    _readers: dict[int, CurveReader] = field(default_factory=dict)
    _totals: dict[int, float] = field(default_factory=dict)
    _judged: dict[int, int] = field(default_factory=dict)  # the optimizer step of the last evaluation judged
    _still: dict[int, Curve] = field(default_factory=dict)  # of trials that do not run, and so do not change
    _in_vain: tuple[bool, int, int, int] | None = None  # what was known when nobody was to be promoted
    _guarded: dict[int, bool] = field(default_factory=dict)

    @cached_property
    def sign(self) -> float:
        """What makes larger better."""
        return 1.0 if self.search.direction == "maximize" else -1.0

    @property
    def stops_early(self) -> bool:
        """Whether others' curves decide about a trial."""
        return type(self.stopping) is not Never

    def watch(self, running: Running) -> None:
        """Judge a running trial's new evaluation, where there is one, and ask its attempt for what follows."""
        number = running.folder.number
        reader = self._reader(number, running.folder.head)
        reader.update()
        if running.asked.is_last or not self._is_news(running, reader):
            return
        asked = self._judge(self.study.trials[number])
        if asked is not None:
            running.folder.control(asked.action, asked.reason, asked.guard)
            running.asked = asked
        self._judged[number] = reader.steps[-1]

    def pause(self, number: int) -> None:
        """This trial does not run any more, and waits."""
        self.paused.add(number)

    def go_on(self, number: int) -> None:
        """It waits no longer."""
        self.paused.discard(number)
        self._still.pop(number, None)

    def promote(self, more: bool) -> int | None:
        """The paused trial that a free slot should go to; ``more``: whether new points may be started."""
        if not self.paused:
            return None
        ended = sum(trial.state.is_finished() for trial in self.study.trials)
        known = (more, ended, len(self.paused), sum(self._judged.values()))
        if known == self._in_vain:  # asked at every tick while a slot is free
            return None
        chosen = self.stopping.promote(self.curves(), more)
        self._in_vain = known if chosen not in self.paused else None
        return chosen if chosen in self.paused else None

    def share(self, trial: FrozenTrial) -> float:
        """How much of its training a trial has behind it, 0 to 1."""
        return self._curve(trial).share

    def curves(self) -> list[Curve]:
        """All curves of the search, by number."""
        return [self._curve(trial) for trial in self.study.searched]

    def foreseen(self) -> dict[int, float]:
        """What a sampler is told of trials that have not finished, in the metric's own direction.

        One that a guard has ended counts as the worst that has finished, or as its own last value where that is worse: what
        becomes of a collapsed training is no news, but that it collapses there is.
        """
        if len(self.study.study.directions) > 1:
            return {}  # nobody knows the worst of several objectives
        values = self.stopping.foresee(self.curves()) if self.stops_early else {}
        trials = self.study.trials
        if guarded := [trial for trial in trials if trial.state == TrialState.PRUNED and self._is_guarded(trial)]:
            finished = (trial.value for trial in trials if trial.state == TrialState.COMPLETE)
            worst = min((self.sign * value for value in finished if value is not None), default=math.inf)
            values |= {t.number: min(self.sign * t.value, worst) for t in guarded if t.value is not None}
        return {number: self.sign * value for number, value in values.items()}

    def _judge(self, trial: FrozenTrial) -> Asked | None:
        """What becomes of a running trial: guards first; replicates of leaders on other seeds are not stopped early."""
        curve = self._curve(trial)
        alarm = guards.look(curve, is_reward=self.sign > 0) if self.search.guards else None
        if alarm is not None:
            return Asked("prune", alarm.evidence, alarm.guard)
        if not (self.stops_early and not is_replicate(trial)):
            return None
        others = [other for other in self.curves() if other.number != curve.number]
        decision = self.stopping.judge(curve, others)
        return Asked(ASKS[decision.action], decision.reason) if decision.action in ASKS else None

    def _is_news(self, running: Running, reader: CurveReader) -> bool:
        """Whether there is an evaluation that this attempt made, nobody has judged, and that is not the last one."""
        if not reader.steps or reader.attempts[-1] < running.attempt:
            return False
        total = self._total(running.folder.number, reader)
        return reader.steps[-1] > self._judged.get(running.folder.number, 0) and not reader.completions[-1] >= total > 0

    def _curve(self, trial: FrozenTrial) -> Curve:
        """A trial's curve now."""
        number = trial.number
        if (known := self._still.get(number)) is not None and known.state == _state(trial, number in self.paused):
            return known
        reader = self._reader(number, str(trial.user_attrs["experiment"])[:6])
        reader.update()
        state = _state(trial, number in self.paused)
        curve = reader.curve(number, trial.params, state, self._total(number, reader))
        if state is not State.RUNNING:
            self._still[number] = curve
            self._readers.pop(number)
        return curve

    def _reader(self, number: int, head: str) -> CurveReader:
        if number not in self._readers:
            path = self.folder.trial(number, head).path / "metrics.jsonl"
            self._readers[number] = CurveReader(path, self.search.metric, self.sign)
        return self._readers[number]

    def _total(self, number: int, reader: CurveReader) -> float:
        """Completions of the whole training; 0 while nobody knows."""
        if not self._totals.get(number):
            reached, step = (reader.completions[-1], reader.steps[-1]) if reader.steps else (0.0, 0)
            self._totals[number] = whole_completions(reader.path.parent, reached, step) or 0.0
        return self._totals[number]

    def _is_guarded(self, trial: FrozenTrial) -> bool:
        if trial.user_attrs.get("invalid"):
            return False
        if trial.number not in self._guarded:
            result = self.folder.trial(trial.number, trial.user_attrs["experiment"]).result or {}
            self._guarded[trial.number] = bool(result.get("guard"))
        return self._guarded[trial.number]


def _state(trial: FrozenTrial, is_paused: bool) -> State:
    return STATES.get(trial.state) or (State.PAUSED if is_paused else State.RUNNING)
