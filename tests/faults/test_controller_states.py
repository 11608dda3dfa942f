"""Any interleaving of ticks, ends of jobs, deaths and requests keeps what a sweep promises."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from optuna.trial import TrialState

from grposweep.search.early_stopping import CONTINUE, Action, Curve, Decision, State, StoppingPolicy
from grposweep.storage.damage import disorder
from grposweep.storage.folders import SweepFolder, TrialFolder
from support import examples
from toy_launcher import Died, Place, open_controller

SLOTS, TARGET, BUDGET_HOURS = 2, 4, 9.0
GRID = ("lr=1e-3,2e-3,3e-3,4e-3", f"search.budget={BUDGET_HOURS:g}h")
ENDS = ("finished", "crash", "memory", "silent", "taken", "cancelled")


class Halves(StoppingPolicy):
    """Pauses what is below the others' median, stops what is near nothing, promotes the best at the
    end if it is good.
    """

    def decide(self, curve: Curve, others: Sequence[Curve], more: bool) -> Decision:  # noqa: ARG002 - the contract's arguments
        """By the last evaluation alone."""
        last = [other.held_out[-1] for other in others if other.held_out]
        if curve.held_out[-1] < 0.1:
            return Decision(Action.STOP, "next to nothing")
        return (
            Decision(Action.PAUSE, "below the median")
            if last and curve.held_out[-1] < median(last)
            else CONTINUE
        )

    def promote(self, curves: Sequence[Curve], more: bool) -> int | None:
        """The best of the paused ones."""
        paused = [curve for curve in curves if curve.state is State.PAUSED]
        best = max(paused, key=lambda curve: curve.held_out[-1], default=None)
        return best.number if best is not None and not more and best.held_out[-1] > 0.3 else None

    def predict(self, curves: Sequence[Curve]) -> dict[int, float]:
        """Their last values."""
        return {curve.number: curve.held_out[-1] for curve in curves if curve.held_out}


class Sweep(RuleBasedStateMachine):
    """One sweep of four trials, two at once."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = SweepFolder(Path(tempfile.mkdtemp()))
        self.jobs, self.told = Place(), dict[int, Any]()
        self.jobs.budget_hours = BUDGET_HOURS
        self.come_back()

    @rule()
    def come_back(self) -> None:
        """The controller disappears, and another one takes over."""
        self.jobs.open = True
        self.controller = open_controller(self.folder, self.jobs, Halves(), *GRID)

    @rule(dies=st.sampled_from(["", "", "before", "after"]))
    def tick(self, dies: str) -> None:
        """One look; it may die at its first submission."""
        self.controller.busy_until = 0.0
        self.jobs.dies = dies
        try:
            self.controller.tick()
        except Died:
            self.come_back()

    @precondition(lambda self: self.jobs.alive)
    @rule(data=st.data(), how=st.sampled_from(ENDS))
    def job_ends(self, data: st.DataObject, how: str) -> None:
        """In any way, with and without a reader."""
        self.jobs.finish(data.draw(st.sampled_from(sorted(self.jobs.alive))), how)

    @precondition(lambda self: self.jobs.alive)
    @rule(
        data=st.data(),
        value=st.sampled_from([0.05, 0.2, 0.4, 0.6]),
        broken=st.sampled_from([False, False, True]),
    )
    def job_evaluates(self, data: st.DataObject, value: float, broken: bool) -> None:
        """It is better or worse than others, or has collapsed."""
        self.jobs.evaluate(data.draw(st.sampled_from(sorted(self.jobs.alive))), value, broken)

    @rule()
    def place_is_busy_or_not(self) -> None:
        """It takes nothing more, or again."""
        self.jobs.is_busy = not self.jobs.is_busy

    @rule(now=st.booleans())
    def user_asks_to_stop(self, now: bool) -> None:
        """At the next boundary, or now."""
        self.jobs.open = False
        if now:
            self.controller.kill()
        else:
            self.controller.stop()

    @invariant()
    def no_more_than_there_are_slots_for(self) -> None:
        """By the controller and by the place."""
        assert len(self.controller.running) <= SLOTS
        assert len(self.jobs.alive) <= SLOTS

    @invariant()
    def trials_are_distinct_and_within_the_target(self) -> None:
        """None is run for another's experiment."""
        experiments = [trial.user_attrs["experiment"] for trial in self.controller.started]
        assert len(set(experiments)) == len(experiments) <= TARGET

    @invariant()
    def what_has_ended_stays_as_it_is(self) -> None:
        """State, value and number of attempts."""
        now = {
            trial.number: (trial.state, trial.value, self.attempts(trial))
            for trial in self.controller.started
            if trial.state.is_finished()
        }
        assert {number: now.get(number) for number in self.told} == self.told
        self.told = now

    @invariant()
    def a_paused_trial_does_not_run_and_says_why(self) -> None:
        """Its promotion finds it again under any controller."""
        for number in self.controller.early_stopping.paused:
            folder = self.controller.folder.of(self.controller.study.trials[number])
            assert folder.control.action == "pause"
            assert folder.control.reason
            assert not folder.is_done
            assert number not in self.controller.running
            assert folder.path not in {job.folder for job in self.jobs.alive.values()}

    @invariant()
    def a_trial_that_was_stopped_early_says_why(self) -> None:
        """In its result, even if the attempt died before it obeyed."""
        for trial in self.controller.started:
            if trial.state == TrialState.PRUNED:
                assert self.controller.folder.of(trial).result.reason

    @invariant()
    def attempts_are_noted_in_order(self) -> None:
        """Announced, started and ended once, in this order."""
        for trial in self.folder.trials():
            assert list(disorder(trial.attempts())) == []

    def attempts(self, trial: Any) -> int:
        """How many jobs it had."""
        folder: TrialFolder = self.controller.folder.of(trial)
        return sum(job.folder == folder.path for job in self.jobs.jobs)

    def teardown(self) -> None:
        """Left alone, every sweep comes to its end: by its target or by its budget. A paused trial
        may stay paused.
        """
        self.jobs.is_busy = False
        for _ in range(4 * TARGET):
            self.come_back()
            self.tick("")
            for name in list(self.jobs.alive):
                self.jobs.finish(name, "finished")
            self.tick("")
        finished = sum(trial.state.is_finished() for trial in self.controller.started)
        finished += len(self.controller.early_stopping.paused)
        assert finished == TARGET or self.jobs.hours >= BUDGET_HOURS
        shutil.rmtree(self.folder.path)


QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much]


@pytest.mark.slow
class TestManyInterleavings(Sweep.TestCase):  # type: ignore[name-defined,misc]
    """Others each time."""

    settings = settings(
        max_examples=examples(90),
        stateful_step_count=50,
        suppress_health_check=QUIET,
    )
