"""One sweep over recorded curves: the classes that a real sweep's tick calls, with a recording in place of the training."""

import math
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from pathlib import Path

from outcome import Outcome, draw_trainings
from pool import Pool, Recorded

from grposweep.registries import SAMPLERS
from grposweep.search.early_stopping import (
    CONTINUE,
    Action,
    Curve,
    Decision,
    NoStopping,
    SearchContext,
    State,
    StoppingPolicy,
    build_policy,
)
from grposweep.search.early_stopping.terminator import Terminator
from grposweep.search.sampler import ValidPoints
from grposweep.search.study import SweepStudy

ORACLE = "oracle"


@dataclass(frozen=True)
class Policy:
    """A way of searching: a sampler and a way of stopping, both by the names that a sweep's configuration has."""

    sampler: str
    stopping: str = "none"
    batch: int = 1  # points asked for before any of them is told
    terminator: bool = False  # search.terminator


@dataclass
class RunningAttempt:
    """A started trial: its place, its recording, and how many evaluations of it have been seen."""

    place: int
    recorded: Recorded
    curve: Curve
    seen: int = 0


class Oracle(NoStopping):
    """No policy but a bound: it knows after the first evaluation how each training ends, and finishes none but a new best."""

    def __init__(self, ends: Callable[[int], float]) -> None:
        self._ends = ends  # by trial

    def decide(self, curve: Curve, others: Sequence[Curve]) -> Decision:
        """Stop what does not end above all that have finished."""
        best = max((other.held_out[-1] for other in others if other.state == State.FINISHED), default=-math.inf)
        return CONTINUE if self._ends(curve.number) > best else Decision(Action.STOP)

    def predict(self, curves: Sequence[Curve]) -> dict[int, float]:
        """The truth."""
        return {curve.number: self._ends(curve.number) for curve in curves if curve.state == State.STOPPED}


class Rehearsal:
    """A sweep with some slots over a pool, in which each place has one training, drawn from its seeds."""

    def __init__(self, pool: Pool, policy: Policy, seed: int, journal: Path, slots: int = 1) -> None:
        self.pool, self.policy, self.seed, self.slots = pool, policy, seed, slots
        self.trainings = draw_trainings(pool, seed)
        self.left = list(range(len(pool.places)))
        self.study = SweepStudy(journal, pool.space, "maximize")
        self.stopping: StoppingPolicy = (
            Oracle(self._end) if policy.stopping == ORACLE else build_policy(policy.stopping)
        )
        context = SearchContext(pool.space, pool.plan, seed=seed, has_points=lambda: self.more)
        self.stopping.begin(context)
        self.terminator = Terminator(context) if policy.terminator else None
        self.judged, self.has_converged = 0, False  # trials that had finished
        self.trials: list[RunningAttempt] = []
        self.outcome = Outcome()
        self.budget, self.now = 0.0, 0.0
        self.ends: list[tuple[float, int]] = []  # when each running trial's next evaluation ends, on a simulated clock
        self.waiting = 0  # points of a batch still to start
        self.untold: list[int] = []

    def run(self, budget: float) -> Outcome:
        """New points are started until the budget is spent and one close to the best has finished; then the sweep ends."""
        self.budget = budget
        while True:
            while len(self.ends) < self.slots and self._fill():
                pass
            if not self.ends:
                return self.outcome
            idle = self.slots - len(self.ends)
            now, number = heappop(self.ends)
            self.outcome.slot_seconds += self.slots * (now - self.now)
            self.outcome.idle_seconds += idle * (now - self.now)
            self.now = now
            self._evaluate(self.trials[number])

    @property
    def more(self) -> bool:
        """Whether new points may be started."""
        if self.terminator and len(self.outcome.finished) > self.judged and not self.has_converged:
            self.judged, found = len(self.outcome.finished), self.terminator.judge(self._curves())
            self.has_converged = found is not None and found.is_reached
        is_enough = self.has_converged or (
            self.outcome.completions >= self.budget and self.outcome.arrival(self.pool) is not None
        )
        return bool(self.left) and not is_enough

    def _fill(self) -> bool:
        """Promote or start a trial in a free slot; whether there was one."""
        number = self.stopping.promote(self._curves(), self.more)
        if number is not None:
            self.outcome.resumed += 1
            self._train(number)
            return True
        if not self.waiting and not self.ends:  # a batch is told when all of it has ended
            self._tell()
            self.waiting = self.policy.batch
        if not self.more or not self.waiting:
            return False
        self.waiting -= self.policy.batch > 1
        self._train(self._start())
        return True

    def _end(self, number: int) -> float:
        return self.trials[number].recorded.held_out[-1]

    def _curves(self) -> list[Curve]:
        return [trial.curve for trial in self.trials]

    def _start(self) -> int:
        """Ask for a point, and start the recorded one that is nearest to it."""
        curves = self._curves()
        is_ranked = SAMPLERS[self.policy.sampler].is_ranked
        ranked = self.stopping.propose(curves) if is_ranked else ()
        foreseen = {} if is_ranked else self.stopping.predict(curves)
        valid = ValidPoints(lambda _: True, ())
        point = self.study.ask(valid, self.policy.sampler, self.seed, predicted=foreseen, ranked=ranked)
        assert point is not None
        place = self.pool.nearest(point, self.left)
        self.left.remove(place)
        recorded = self.trainings[place]
        point = self.pool.places[place].point
        number = self.study.add({dial.name: point[dial.name] for dial in self.pool.space.parameters}, {})
        curve = Curve(number, point, State.RUNNING, recorded.completions[-1], (), (), recorded.start)
        self.trials.append(RunningAttempt(place, recorded, curve))
        self.outcome.started.append(place)
        return number

    def _train(self, number: int) -> None:
        """Begin the stretch until a trial's next evaluation, which is paid for at once."""
        trial = self.trials[number]
        recorded, seen = trial.recorded, trial.seen
        trial.curve = replace(trial.curve, state=State.RUNNING)
        before = recorded.completions[seen - 1] if seen else 0.0
        share = (recorded.completions[seen] - before) / recorded.completions[-1]
        self.outcome.completions += share * trial.curve.total
        heappush(self.ends, (self.now + share * (recorded.seconds or 1.0), number))

    def _evaluate(self, trial: RunningAttempt) -> None:
        """Note the evaluation and act upon it."""
        recorded = trial.recorded
        trial.seen += 1
        trial.curve = replace(
            trial.curve,
            completions=recorded.completions[: trial.seen],
            held_out=recorded.held_out[: trial.seen],
            errors=recorded.errors[: trial.seen],
            signals={name: values[: trial.seen] for name, values in recorded.signals.items()},
        )
        number = trial.curve.number
        if trial.seen == len(recorded.held_out):
            trial.curve = replace(trial.curve, state=State.FINISHED)
            self.outcome.finished.append((self.outcome.completions, self.now, trial.place))
        else:
            others = [curve for curve in self._curves() if curve.number != number]
            action = self.stopping.decide(trial.curve, others).action
            if action == Action.CONTINUE:
                self._train(number)
                return
            trial.curve = replace(trial.curve, state=State.PAUSED if action == Action.PAUSE else State.STOPPED)
        self.untold.append(number)
        if self.policy.batch == 1:
            self._tell()

    def _tell(self) -> None:
        for number in self.untold:
            curve = self.trials[number].curve
            evaluations = dict(enumerate(curve.held_out, 1))
            if curve.state == State.FINISHED:
                self.study.tell(number, curve.held_out[-1], evaluations)
            elif curve.state == State.STOPPED:
                self.study.tell(number, None, evaluations, pruned=True)
        self.untold.clear()


def rehearse(pool: Pool, policy: Policy, seed: int, budget: float, slots: int = 1) -> Outcome:
    """One repeat."""
    memory = Path("/dev/shm")  # where there is one, the journal's fsync costs nothing
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        return Rehearsal(pool, policy, seed, Path(folder) / "journal", slots).run(budget)
