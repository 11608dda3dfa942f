"""Watch learning curves while a sweep runs, and pause or end trials by guards and by the
early-stopping policy.

Curves are read from metrics.jsonl a tail at a time, because a tick looks at every running trial.
Each decision is written to control.json before it is acted on. It stays in force even if the
attempt dies.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from optuna.trial import FrozenTrial, TrialState

from grporecipe.files import LARGEST, Config, Json, as_number, objects, open_file, read_json
from grposweep.schema import Search
from grposweep.search.curves import Curve, State, check_curve, one_template
from grposweep.search.early_stopping import Action, StoppingPolicy
from grposweep.search.replication import is_replicate
from grposweep.search.space import Point
from grposweep.search.study import SweepStudy
from grposweep.storage import paths
from grposweep.storage.folders import SweepFolder
from grposweep.storage.records import Action as ControlAction
from grposweep.storage.records import Heartbeat
from grposweep.sweep._attempts import RunningAttempt

# a curve's name for a training signal: TRL's
SIGNALS: Mapping[str, str] = {
    "train_reward": "reward",
    "kl": "kl",
    "entropy": "entropy",
    "grad_norm": "grad_norm",
    "zero_std": "frac_reward_zero_std",
    "truncated": "completions/clipped_ratio",
    "update_size": "update_size",
}
TEMPLATES = ("templates", "template_share")
# the share of training steps whose loss was not a number
BROKEN = "broken"

Line = Config
logger = logging.getLogger(__name__)


class CurveReader:
    """One trial's evaluations and training signals, read from its file; ``sign`` is -1 if less is
    better.

    The file grows by appends. An attempt replaces it when it resumes from a checkpoint.
    """

    def __init__(self, path: Path, metric: str, sign: int = 1) -> None:
        self.path = path
        self._metric = metric
        self._sign = sign
        # inode
        self._file = -1
        self._begin()

    def _begin(self) -> None:
        """Forget what was read: the attempt repeats the steps after its checkpoint."""
        self.start: float | None = None
        self.steps: list[int] = []
        self.attempts: list[int] = []
        self.completions: list[float] = []
        self.held_out: list[float] = []
        self.errors: list[float | None] = []
        self.signals: dict[str, list[float | None]] = {}
        # bytes
        self._seen = 0
        # training steps since the last evaluation
        self._stretch: list[Line] = []

    def update(self) -> bool:
        """Read new lines, and return whether there were any."""
        replaced, lines = self._read_tail()
        for line in lines:
            if line.get("kind") == "train":
                self._stretch.append(line)
            elif line.get("kind") == "eval":
                self._evaluate(line)
        return replaced or bool(lines)

    def curve(self, number: int, point: Point, state: State, total: float | None) -> Curve:
        """Return what is known as a curve. ``total`` is the completions of a whole training, as far
        as known.
        """
        evaluated = self.completions[-1] if self.completions else 0.0
        return Curve(
            max(total or 0.0, evaluated),
            tuple(self.completions),
            tuple(self.held_out),
            self.start,
            tuple(self.errors),
            {name: tuple(values) for name, values in self.signals.items()},
            number=number,
            state=state,
            point=point,
        )

    def _read_tail(self) -> tuple[bool, list[Json]]:
        """Return whether the file was replaced, and its complete lines since the last call."""
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            return False, []
        replaced = stat.st_ino != self._file or stat.st_size < self._seen
        if replaced:
            self._file = stat.st_ino
            self._begin()
        if stat.st_size == self._seen:
            return replaced, []
        try:
            with open_file(self.path) as file:
                file.seek(self._seen)
                data = file.read(LARGEST)
        except (FileNotFoundError, ValueError):
            # something else in its place: 'grposweep status' names it
            return False, []
        whole = data[: data.rfind(b"\n") + 1]
        self._seen += len(whole)
        return replaced, list(objects(whole.split(b"\n")))

    def _evaluate(self, line: Line) -> None:
        value = as_number(line.get(self._metric))
        step = line.get("step")
        if value is None or not isinstance(step, int):
            return
        if step == 0:
            self.start = self._sign * value
            return
        means = {ours: mean(self._stretch, theirs) for ours, theirs in SIGNALS.items()}
        means[BROKEN] = broken(self._stretch)
        # of the evaluation itself
        if TEMPLATES[1] in line:
            means[TEMPLATES[0]] = as_number(line[TEMPLATES[1]])
        for name, signal in means.items():
            self.signals.setdefault(name, []).append(signal)
        self.steps.append(step)
        attempt = line.get("attempt")
        if not isinstance(attempt, int):
            attempt = 0
        self.attempts.append(attempt)
        # unknown: the axis is steps
        self.completions.append(as_number(line.get("completions")) or float(step))
        self.held_out.append(self._sign * value)
        self.errors.append(as_number(line.get(f"{self._metric}_se")))
        self._stretch = []


def whole_completions(trial: Path, reached: float, step: int) -> float | None:
    """Return the completions of a trial's whole training, by its plan or, for external programs, by
    its heartbeat's steps.
    """
    planned = as_number((read_json(trial / paths.PLAN) or {}).get("total_completions"))
    if planned:
        return planned
    steps = Heartbeat.read(trial).total
    return reached / step * steps if steps and step else None


def mean(stretch: Sequence[Line], name: str) -> float | None:
    """Return a signal's mean over training steps; None if it was not logged or was NaN once."""
    values = [as_number(line[name]) for line in stretch if name in line]
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers and len(numbers) == len(values) else None


def broken(stretch: Sequence[Line]) -> float | None:
    """Return the share of training steps whose loss was NaN, which metrics.jsonl holds as null."""
    logged = [line["loss"] is None for line in stretch if "loss" in line]
    return fmean(logged) if logged else None


ACTIONS = {Action.PAUSE: ControlAction.PAUSE, Action.STOP: ControlAction.PRUNE}
STATES = {
    TrialState.COMPLETE: State.FINISHED,
    TrialState.PRUNED: State.STOPPED,
    TrialState.FAIL: State.STOPPED,
}


@dataclass
class EarlyStoppingMonitor:
    """The state of a sweep's learning curves. All of it can be rebuilt from the trial folders."""

    folder: SweepFolder
    study: SweepStudy
    search: Search
    stopping: StoppingPolicy = field(default_factory=StoppingPolicy)
    # trials that wait for their promotion
    paused: set[int] = field(default_factory=set)
    _readers: dict[int, CurveReader] = field(default_factory=dict)
    _totals: dict[int, float] = field(default_factory=dict)
    # the optimizer step of the last evaluation judged
    _decided: dict[int, int] = field(default_factory=dict)
    # of trials that do not run, and so do not change
    _still: dict[int, Curve] = field(default_factory=dict)
    # what was known when none was promoted, by ``more``
    _none_promoted: dict[bool, tuple[int, ...]] = field(default_factory=dict)
    _guarded: dict[int, bool] = field(default_factory=dict)

    @property
    def stops_early(self) -> bool:
        """Return whether other trials' curves decide about a trial."""
        return type(self.stopping) is not StoppingPolicy

    def watch(self, running: RunningAttempt, has_more: Callable[[], bool]) -> None:
        """Judge a running trial's new evaluations, if any, and send the decision to its attempt.

        ``has_more``: whether new points may be started. With a budget all trials answer that, and
        each tick looks at every running one.
        """
        number = running.folder.number
        reader = self._reader(number, running.folder.head)
        reader.update()
        if running.request.ends_trial or not reader.steps or reader.attempts[-1] < running.attempt:
            return
        is_last = reader.completions[-1] >= self._total(number, reader) > 0
        if is_last or reader.steps[-1] <= self._decided.get(number, 0):
            return
        decision = self._decide(self.study.trials[number], has_more)
        if decision is not None:
            action, reason, guard = decision
            running.request = running.folder.request(action, reason, guard)
            text = "%s asked at step %d: %s"
            logger.info(text, action, reader.steps[-1], reason, extra=running.where)
        self._decided[number] = reader.steps[-1]

    def pause(self, number: int) -> None:
        """Note that this trial stopped running and waits for its promotion."""
        self.paused.add(number)

    def resume(self, number: int) -> None:
        """Note that this trial no longer waits."""
        self.paused.discard(number)
        self._still.pop(number, None)

    def promote(self, more: bool) -> int | None:
        """Return the paused trial that should get a free slot. ``more``: whether new points may be
        started.
        """
        if not self.paused:
            return None
        ended = sum(trial.state.is_finished() for trial in self.study.trials)
        begun = len(self.study.searched)
        decided = sum(self._decided.values())
        state = (ended, begun, len(self.paused), decided)
        # asked at every tick while a slot is free
        if self._none_promoted.get(more) == state:
            return None
        chosen = self.stopping.promote(self.curves(), more)
        if chosen in self.paused:
            return chosen
        self._none_promoted[more] = state
        return None

    def restate(self) -> None:
        """Write the final places of paused trials: more trials have been compared since they
        paused.
        """
        if not self.paused:
            return
        for number, rank in self.stopping.describe(self.curves()).items():
            trial = self.study.trials[number]
            self.folder.of(trial).request(ControlAction.PAUSE, rank)

    def share(self, trial: FrozenTrial) -> float:
        """Return the finished share of a trial's training, from 0 to 1."""
        return self._curve(trial).share

    def curves(self) -> list[Curve]:
        """Return all curves of the search, by trial number."""
        return list(map(self._curve, self.study.searched))

    def budgeted(self) -> int | None:
        """Return the number of trials that ``search.budget`` is for; None without one."""
        return None if self.search.budget is None else self.stopping.trials(self.curves())

    def foreseen(self) -> dict[int, float]:
        """Return values of unfinished trials for the sampler, in the metric's direction.

        One that a guard has ended counts as the worst that has finished, or as its own last value
        where that is worse: a sampler has to learn that trainings collapse there, not how far they
        fall.
        """
        values = self.stopping.predict(self.curves()) if self.stops_early else {}
        trials = self.study.trials
        guarded = [
            trial
            for trial in trials
            if trial.state == TrialState.PRUNED and self._is_guarded(trial)
        ]
        if guarded:
            finished = (trial.value for trial in trials if trial.state == TrialState.COMPLETE)
            worst = min(
                (self.study.sign * value for value in finished if value is not None),
                default=math.inf,
            )
            values |= {
                t.number: min(self.study.sign * t.value, worst)
                for t in guarded
                if t.value is not None
            }
        return {number: self.study.sign * value for number, value in values.items()}

    def _decide(
        self, trial: FrozenTrial, has_more: Callable[[], bool]
    ) -> tuple[ControlAction, str, str] | None:
        """Decide about a running trial: guards first; replicates of leaders on other seeds are not
        stopped early.

        What all others of a branch, or of one factor at a time, are compared with is never ended:
        without it nothing is known.

        Each new evaluation is judged as if it were the latest, so that decisions do not depend on
        how often this is called.
        """
        if not trial.params and self.search.sampler == "one_factor":
            return None
        curve = self._curve(trial)
        alarm = check_curve(curve, is_reward=self.study.sign > 0) if self.search.guards else None
        if alarm is None and self.search.max_template_share is not None:
            alarm = one_template(curve, self.search.max_template_share)
        if alarm is not None:
            return ControlAction.PRUNE, alarm.evidence, alarm.guard
        if not (self.stops_early and not is_replicate(trial)):
            return None
        others = [other for other in self.curves() if other.number != curve.number]
        reader = self._reader(trial.number, "")
        decided = self._decided.get(trial.number, 0)
        for seen, (step, attempt) in enumerate(zip(reader.steps, reader.attempts, strict=True), 1):
            if step > decided and attempt == reader.attempts[-1]:
                decision = self.stopping.decide(curve.until(seen), others, has_more())
                if decision.action in ACTIONS:
                    return ACTIONS[decision.action], decision.reason, ""
        return None

    def _curve(self, trial: FrozenTrial) -> Curve:
        """Return a trial's present curve."""
        number = trial.number
        cached = self._still.get(number)
        if cached is not None and cached.state == _state(trial, number in self.paused):
            return cached
        reader = self._reader(number, str(trial.user_attrs["experiment"])[:6])
        reader.update()
        state = _state(trial, number in self.paused)
        curve = reader.curve(number, trial.params, state, self._total(number, reader))
        if state is not State.RUNNING:
            trained = self.folder.of(trial).result.completions
            curve = replace(curve, trained=min(trained or 0.0, curve.total))
            self._still[number] = curve
            self._readers.pop(number)
        return curve

    def _reader(self, number: int, head: str) -> CurveReader:
        if number not in self._readers:
            path = self.folder.trial(number, head).path / paths.METRICS
            self._readers[number] = CurveReader(path, self.search.metric, self.study.sign)
        return self._readers[number]

    def _total(self, number: int, reader: CurveReader) -> float:
        """Return the completions of the whole training; 0 while unknown."""
        if not self._totals.get(number):
            reached, step = (reader.completions[-1], reader.steps[-1]) if reader.steps else (0.0, 0)
            self._totals[number] = whole_completions(reader.path.parent, reached, step) or 0.0
        return self._totals[number]

    def _is_guarded(self, trial: FrozenTrial) -> bool:
        if trial.user_attrs.get("invalid"):
            return False
        if trial.number not in self._guarded:
            result = self.folder.of(trial).result
            self._guarded[trial.number] = bool(result.guard)
        return self._guarded[trial.number]


def _state(trial: FrozenTrial, is_paused: bool) -> State:
    running = State.PAUSED if is_paused else State.RUNNING
    return STATES.get(trial.state, running)
