"""One sweep of a fixed number of trials over recorded curves: a real sweep's classes, with a
recording for each training.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from outcome import Outcome, draw_trainings
from own_asha import OwnAsha
from pool import Pool, Recorded

from grposweep.search.early_stopping import Action, Curve, State, StoppingPolicy, build_policy
from grposweep.search.early_stopping.rank import RankPolicy
from grposweep.search.sampler import ValidPoints
from grposweep.search.study import SweepStudy


@dataclass(frozen=True)
class Policy:
    """A sampler and an early-stopping policy, by the names that a sweep's configuration has.

    ``effort`` is None for a policy that takes none. ``batch`` is how many points start before a
    result is told.
    """

    sampler: str
    stopping: str = "none"
    effort: float | None = None
    batch: int = 1


@dataclass
class StartedTrial:
    """A started trial: its place in the pool, its recording and its curve so far."""

    place: int
    recorded: Recorded
    curve: Curve

    def set_state(self, state: State) -> None:
        """Change the state of the curve."""
        self.curve = replace(self.curve, state=state)


class Rehearsal:
    """A sweep of so many trials at most, with some slots, over a pool in which each place has one
    training.
    """

    def __init__(
        self,
        pool: Pool,
        policy: Policy,
        seed: int,
        trials: int,
        slots: int = 1,
        budget: float | None = None,
        first: Sequence[int] = (),
    ) -> None:
        # places that start first
        self.first = list(first)
        self.pool, self.policy, self.seed, self.slots = pool, policy, seed, slots
        self.trainings = draw_trainings(pool, seed)
        self.left = list(range(len(pool.places)))
        self.most = min(trials, len(self.left))
        self.study = SweepStudy(pool.space, "maximize")
        # completions; trials that are cut by its end do not count
        self.budget = budget
        self.over = False
        effort = 1.0 if policy.effort is None else policy.effort
        self.stopping: StoppingPolicy = OwnAsha()
        if policy.stopping != "own_asha":
            self.stopping = build_policy(policy.stopping, effort)
        if budget is not None and isinstance(self.stopping, RankPolicy):
            self.stopping = RankPolicy(budget=lambda _: budget)
        self.trials: list[StartedTrial] = []
        self.outcome = Outcome()
        self.now = 0.0
        # when each running trial's next evaluation ends, on a simulated clock
        self.ends: list[tuple[float, int]] = []
        # points of a batch still to start
        self.waiting = 0
        self.untold: list[int] = []

    def run(self) -> Outcome:
        """Replay until nothing is left to start or to resume."""
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
        """Return whether new points may be started."""
        wanted = self.stopping.trials(self._curves())
        return not self.over and len(self.trials) < min(
            self.most, self.most if wanted is None else wanted
        )

    def _fill(self) -> bool:
        """Promote or start a trial in a free slot; return whether there was one."""
        number = self.stopping.promote(self._curves(), self.more)
        if number is not None:
            self.outcome.resumed += 1
            self._train(number)
            return True
        # a batch is told when all of it has ended
        if not self.waiting and not self.ends:
            self._tell()
            self.waiting = self.policy.batch
        if not self.more or not self.waiting:
            return False
        self.waiting -= self.policy.batch > 1
        self._train(self._start())
        return True

    def _curves(self) -> list[Curve]:
        return [trial.curve for trial in self.trials]

    def _start(self) -> int:
        """Ask for a point, and start the recorded one that is nearest to it."""
        predicted = self.stopping.predict(self._curves())
        valid = ValidPoints(lambda _: True, ())
        asked = self.study.ask(valid, self.policy.sampler, self.seed, predicted=predicted)
        assert asked is not None
        place = self.first.pop(0) if self.first else self.pool.nearest(asked, self.left)
        self.left.remove(place)
        recorded, point = self.trainings[place], self.pool.places[place].point
        number = self.study.add(
            {dial.name: point[dial.name] for dial in self.pool.space.parameters}, {}
        )
        curve = Curve(
            recorded.completions[-1],
            (),
            (),
            recorded.start,
            number=number,
            state=State.RUNNING,
            point=point,
        )
        self.trials.append(StartedTrial(place, recorded, curve))
        self.outcome.started.append(place)
        self.outcome.full += curve.total
        return number

    def _train(self, number: int) -> None:
        """Begin the training until a trial's next evaluation. Its completions are counted at
        once.
        """
        trial = self.trials[number]
        trial.set_state(State.RUNNING)
        done = trial.curve.completions
        spent = trial.recorded.completions[len(done)] - (done[-1] if done else 0.0)
        if self.budget is not None and self.outcome.completions + spent > self.budget * (1 + 1e-9):
            self.over = True
            trial.set_state(State.STOPPED)
            return
        self.outcome.completions += spent
        seconds = spent / trial.curve.total * (trial.recorded.seconds or 1.0)
        heappush(self.ends, (self.now + seconds, number))

    def _evaluate(self, trial: StartedTrial) -> None:
        """Add an evaluation to a curve, and act upon it."""
        recorded, seen = trial.recorded, len(trial.curve.held_out) + 1
        trial.curve = replace(
            trial.curve,
            completions=recorded.completions[:seen],
            held_out=recorded.held_out[:seen],
            errors=recorded.errors[:seen],
            signals={name: values[:seen] for name, values in recorded.signals.items()},
        )
        if seen == len(recorded.held_out):
            trial.set_state(State.FINISHED)
            self.outcome.finished.append((self.outcome.completions, trial.place))
        else:
            others = [other.curve for other in self.trials if other is not trial]
            action = self.stopping.decide(trial.curve, others, self.more).action
            if action == Action.CONTINUE:
                self._train(trial.curve.number)
                return
            trial.set_state(State.PAUSED if action == Action.PAUSE else State.STOPPED)
        self.untold.append(trial.curve.number)
        if self.policy.batch == 1:
            self._tell()

    def _tell(self) -> None:
        for number in self.untold:
            curve = self.trials[number].curve
            if curve.state == State.FINISHED:
                self.study.tell(number, curve.held_out[-1])
            elif curve.state == State.STOPPED:
                self.study.tell(number, None, dict(enumerate(curve.held_out, 1)), pruned=True)
        self.untold.clear()
