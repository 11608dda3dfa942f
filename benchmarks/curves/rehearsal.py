"""One sweep over recorded curves: the classes that a real sweep's tick calls, with a recording in place of the training."""

import math
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from outcome import Outcome, draw_trainings
from pool import Pool, Recorded

from grposweep.search.early_stopping import (
    CONTINUE,
    Action,
    Curve,
    Decision,
    NoStopping,
    State,
    StoppingPolicy,
    build_policy,
)
from grposweep.search.sampler import ValidPoints
from grposweep.search.study import SweepStudy

ORACLE = "oracle"


@dataclass(frozen=True)
class Policy:
    """A way of searching: a sampler and a way of stopping, both by the names that a sweep's configuration has."""

    sampler: str
    stopping: str = "none"
    batch: int = 1  # points asked for before any of them is told


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
    """A sweep with one slot over a pool, in which each place has one training, drawn from its seeds."""

    def __init__(self, pool: Pool, policy: Policy, seed: int, journal: Path) -> None:
        self.pool, self.policy, self.seed = pool, policy, seed
        self.trainings = draw_trainings(pool, seed)
        self.left = list(range(len(pool.places)))
        self.study = SweepStudy(journal, pool.space, "maximize")
        self.stopping: StoppingPolicy = (
            Oracle(self._end) if policy.stopping == ORACLE else build_policy(policy.stopping)
        )
        self.trials: list[RunningAttempt] = []
        self.outcome = Outcome()

    def run(self, budget: float) -> Outcome:
        """New points are started until the budget is spent and one close to the best has finished; then the sweep ends."""
        while True:
            more = bool(self.left) and not self._is_enough(budget)
            number = self.stopping.promote(self._curves(), more)
            if number is not None:
                self.outcome.resumed += 1
                self._train([number])
            elif more:
                self._train([self._start() for _ in range(min(self.policy.batch, len(self.left)))])
            else:
                return self.outcome

    def _is_enough(self, budget: float) -> bool:
        return self.outcome.completions >= budget and self.outcome.arrival(self.pool) is not None

    def _end(self, number: int) -> float:
        return self.trials[number].recorded.held_out[-1]

    def _curves(self) -> list[Curve]:
        return [trial.curve for trial in self.trials]

    def _start(self) -> int:
        """SamplerRequest for a point, and start the recorded one that is nearest to it."""
        curves = self._curves()
        foreseen = self.stopping.predict(curves)
        point = self.study.ask(ValidPoints(lambda _: True, ()), self.policy.sampler, self.seed, predicted=foreseen)
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

    def _train(self, numbers: Sequence[int]) -> None:
        """Train these until each has finished or is stopped, then tell the study."""
        for number in numbers:
            trial = self.trials[number]
            trial.curve = replace(trial.curve, state=State.RUNNING)
            while trial.curve.state == State.RUNNING:
                self._evaluate(trial)
        for number in numbers:
            self._tell(self.trials[number])

    def _evaluate(self, trial: RunningAttempt) -> None:
        """Go on to the next evaluation and act upon it."""
        recorded, before = trial.recorded, trial.curve.share
        trial.seen += 1
        trial.curve = replace(
            trial.curve,
            completions=recorded.completions[: trial.seen],
            held_out=recorded.held_out[: trial.seen],
            errors=recorded.errors[: trial.seen],
            signals={name: values[: trial.seen] for name, values in recorded.signals.items()},
        )
        share = trial.curve.share - before
        self.outcome.completions += share * trial.curve.total
        self.outcome.seconds += share * recorded.seconds
        if trial.seen == len(recorded.held_out):
            trial.curve = replace(trial.curve, state=State.FINISHED)
            self.outcome.finished.append((self.outcome.completions, self.outcome.seconds, trial.place))
            return
        others = [curve for curve in self._curves() if curve.number != trial.curve.number]
        action = self.stopping.decide(trial.curve, others).action
        state = {Action.CONTINUE: State.RUNNING, Action.PAUSE: State.PAUSED, Action.STOP: State.STOPPED}[action]
        trial.curve = replace(trial.curve, state=state)

    def _tell(self, trial: RunningAttempt) -> None:
        curve = trial.curve
        evaluations = dict(enumerate(curve.held_out, 1))
        if curve.state == State.FINISHED:
            self.study.tell(curve.number, curve.held_out[-1], evaluations)
        elif curve.state == State.STOPPED:
            self.study.tell(curve.number, None, evaluations, pruned=True)


def rehearse(pool: Pool, policy: Policy, seed: int, budget: float) -> Outcome:
    """One repeat."""
    memory = Path("/dev/shm")  # where there is one, the journal's fsync costs nothing
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        return Rehearsal(pool, policy, seed, Path(folder) / "journal").run(budget)
