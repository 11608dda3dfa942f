"""What a controller makes of learning curves: asked once, remembered by nobody but the trial folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from grposweep.schema import Search
from grposweep.search.early_stopping import Action, Decision, NoStopping
from grposweep.search.early_stopping.learning_curve import Curve, State
from grposweep.search.space import Choice, Parameter, Space
from grposweep.search.study import SweepStudy
from grposweep.storage.folders import Asked, SweepFolder
from grposweep.sweep.early_stopping import EarlyStoppingMonitor
from grposweep.sweep.outcomes import write_pruned
from grposweep.train.records import Metrics

SPACE = Space((Parameter("lr", Choice((1e-3, 2e-3), (1e-3, 2e-3))),))


class Pauses(NoStopping):
    """Everything, at each of its evaluations; keeps what it was shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[Curve, Sequence[Curve]]] = []

    def judge(self, curve: Curve, others: Sequence[Curve]) -> Decision:
        self.shown.append((curve, others))
        return Decision(Action.PAUSE, "as always")


class NodeContext:
    """A sweep of two trials, the second one running in its first attempt."""

    def __init__(self, path: Path, stopping: Any = None) -> None:
        self.folder = SweepFolder(path)
        self.study = SweepStudy(path / "study.journal", SPACE, "maximize")
        self.stopping = stopping or NoStopping()
        for number, rate in enumerate((1e-3, 2e-3)):
            self.study.add({"lr": rate}, {"experiment": f"{number}abcdef"})
            self.trial(number).path.mkdir(parents=True)
        self.attempt(0)

    def trial(self, number: int) -> Any:
        """Its folder."""
        return self.folder.trial(number, f"{number}abcdef")

    def attempt(self, number: int) -> None:
        """A controller that knows nothing but the folders, and a new attempt."""
        self.overseer = EarlyStoppingMonitor(self.folder, self.study, Search(), self.stopping)
        folder = self.trial(1)
        self.running: Any = type("Running", (), {"folder": folder, "attempt": number, "asked": folder.asked})()
        self.metrics = Metrics(folder.path / "metrics.jsonl", number)

    def evaluate(self, step: int, value: float) -> Asked:
        """What the trial is asked after an evaluation."""
        self.metrics.write("train", step, 8 * step, {"loss": 0.1})
        self.metrics.write("eval", step, 8 * step, {"eval_reward": value})
        self.overseer.watch(self.running)
        return self.asked

    @property
    def asked(self) -> Asked:
        return Asked(**vars(self.trial(1).asked))


def test_a_decision_is_on_disk_with_its_reason_and_is_made_once(tmp_path: Path) -> None:
    """Another evaluation before the boundary, or another controller, changes nothing."""
    place = NodeContext(tmp_path, policy := Pauses())
    assert place.evaluate(2, 0.5) == Asked("pause", "as always")
    place.evaluate(4, 0.6)
    place.attempt(0)
    place.overseer.watch(place.running)
    assert len(policy.shown) == 1


def test_a_promoted_trial_is_judged_by_new_evaluations_only(tmp_path: Path) -> None:
    """What it was paused for lies behind it, whichever controller looks."""
    place = NodeContext(tmp_path, policy := Pauses())
    place.evaluate(2, 0.5)
    (place.trial(1).path / "control.json").unlink()
    place.attempt(1)
    place.overseer.watch(place.running)
    assert place.asked.action == "run"
    assert place.evaluate(4, 0.6).action == "pause"
    assert [curve.held_out for curve, _ in policy.shown] == [(0.5,), (0.5, 0.6)]


def test_the_last_evaluation_ends_a_trial_by_itself(tmp_path: Path) -> None:
    """There is nothing left to save."""
    place = NodeContext(tmp_path, Pauses())
    (place.trial(1).path / "plan.json").write_text('{"total_completions": 32}')
    assert place.evaluate(4, 0.1).action == "run"


def test_a_guard_asks_for_the_end_and_a_replicate_is_guarded_as_well(tmp_path: Path) -> None:
    """Whatever the way of stopping; without guards nothing happens."""
    place = NodeContext(tmp_path)
    place.metrics.write("eval", 0, 0, {"eval_reward": 0.5})
    place.evaluate(2, 0.1)
    asked = place.evaluate(4, 0.1)
    assert (asked.action, asked.guard) == ("prune", "reward_fallen")
    assert "from 0.5 before training to 0.1" in asked.reason


@pytest.mark.parametrize(("value", "told"), [(0.1, 0.1), (0.4, 0.3)])
def test_a_sampler_is_told_the_worst_of_a_collapsed_trial(tmp_path: Path, value: float, told: float) -> None:
    """Its own last value, or that of the worst finished trial."""
    place = NodeContext(tmp_path)
    place.study.tell(0, 0.3)
    write_pruned(place.trial(1), Asked("prune", "it collapsed", "kl_blow_up"))
    place.study.tell(1, None, {2: value}, pruned=True)
    assert place.overseer.foreseen() == {1: told}


def test_a_paused_trial_is_shown_as_paused_and_running_ones_as_running(tmp_path: Path) -> None:
    """And one that ended as what it became."""
    place = NodeContext(tmp_path, Pauses())
    place.evaluate(2, 0.5)
    place.overseer.pause(1)
    place.study.tell(0, 0.3)
    assert [curve.state for curve in place.overseer.curves()] == [State.FINISHED, State.PAUSED]
    place.overseer.go_on(1)
    assert place.overseer.curves()[1].state == State.RUNNING
