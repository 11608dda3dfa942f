"""What a controller makes of learning curves: each evaluation is judged once, and control.json
keeps the decision.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from grporecipe.files import Json
from grposweep.search.early_stopping import Action, Curve, Decision, State, StoppingPolicy
from grposweep.storage.folders import SweepFolder
from grposweep.train.records import MetricsFile
from toy_launcher import Place, open_controller


class Pauses(StoppingPolicy):
    """Pauses each trial at each of its evaluations, and keeps what it was shown; promotes when
    ``promotes`` is set.
    """

    def __init__(self) -> None:
        self.shown: list[tuple[Curve, Sequence[Curve]]] = []
        self.promotes = False

    def decide(self, curve: Curve, others: Sequence[Curve], more: bool) -> Decision:  # noqa: ARG002 - the contract's arguments
        self.shown.append((curve, others))
        return Decision(Action.PAUSE, "as always")

    def promote(self, curves: Sequence[Curve], more: bool) -> int | None:  # noqa: ARG002 - the contract's arguments
        paused = [curve.number for curve in curves if curve.state is State.PAUSED]
        return paused[0] if self.promotes and paused else None


class Sweep:
    """Two trials of two learning rates, both running; ``come_back`` is the next controller."""

    def __init__(self, path: Path, stopping: StoppingPolicy, *words: str) -> None:
        self.folder, self.place, self.stopping = SweepFolder(path), Place(), stopping
        self.words = words or ("lr=1e-3,2e-3",)
        self.come_back()

    def come_back(self) -> None:
        """A controller that knows nothing but the folder."""
        self.controller = open_controller(self.folder, self.place, self.stopping, *self.words)
        self.controller.tick()

    def begin(self, number: int, value: float) -> None:
        """A trial's evaluation before training."""
        metrics = MetricsFile(self.place.jobs[number].folder, 0)
        metrics.write("eval", 0, 0, {"eval_reward": value})

    def evaluate(self, name: str, *values: float) -> Json:
        """Return the requests to a trial after evaluations, which the controller sees together."""
        for value in values:
            self.place.evaluate(name, value)
        self.controller.tick()
        return self.asked(name)

    def asked(self, name: str) -> Json:
        """Action, reason and guard in a trial's control.json."""
        path = self.place.jobs[int(name)].folder / "control.json"
        return dict(json.loads(path.read_text())) if path.exists() else {"action": "run"}


def test_a_decision_is_on_disk_with_its_reason_and_is_made_once(tmp_path: Path) -> None:
    """Another evaluation before the boundary, or another controller, changes nothing."""
    sweep = Sweep(tmp_path, policy := Pauses())
    asked = sweep.evaluate("1", 0.5)
    assert (asked["action"], asked["reason"]) == ("pause", "as always")
    assert sweep.evaluate("1", 0.6) == asked
    sweep.come_back()
    assert sweep.asked("1") == asked
    assert len(policy.shown) == 1


def test_evaluations_that_are_seen_together_are_judged_one_by_one(tmp_path: Path) -> None:
    """A controller that looks rarely decides as one that looks often."""

    class Looks(Pauses):
        def decide(self, curve: Curve, others: Sequence[Curve], more: bool) -> Decision:
            super().decide(curve, others, more)
            return Decision(Action.CONTINUE)

    sweep = Sweep(tmp_path, policy := Looks())
    sweep.evaluate("1", 0.5, 0.6)
    sweep.evaluate("1", 0.7)
    assert [curve.held_out for curve, _ in policy.shown] == [(0.5,), (0.5, 0.6), (0.5, 0.6, 0.7)]


def test_a_promoted_trial_is_judged_by_new_evaluations_only(tmp_path: Path) -> None:
    """The evaluation that it was paused for is not judged again, whichever controller looks."""
    sweep = Sweep(tmp_path, policy := Pauses())
    sweep.evaluate("1", 0.5)
    sweep.place.finish("1", "finished")
    policy.promotes = True
    sweep.controller.tick()
    sweep.come_back()
    assert (sweep.place.jobs[2].folder, sweep.place.jobs[2].attempt) == (
        sweep.place.jobs[1].folder,
        1,
    )
    assert sweep.asked("2")["action"] == "run"
    assert sweep.evaluate("2", 0.6)["action"] == "pause"
    assert [curve.held_out for curve, _ in policy.shown] == [(0.5,), (0.5, 0.6)]


def test_the_last_evaluation_ends_a_trial_by_itself(tmp_path: Path) -> None:
    """Nothing is left to save."""
    sweep = Sweep(tmp_path, Pauses())
    (sweep.place.jobs[1].folder / "plan.json").write_text('{"total_completions": 128}')
    assert sweep.evaluate("1", 0.1, 0.1)["action"] == "run"


def test_a_guard_ends_a_collapsed_trial_without_any_early_stopping(tmp_path: Path) -> None:
    """The reward falls below what the model had before training."""
    sweep = Sweep(tmp_path, StoppingPolicy())
    sweep.begin(1, 0.5)
    assert sweep.evaluate("1", 0.1)["action"] == "run"
    asked = sweep.evaluate("1", 0.1)
    assert (asked["action"], asked["guard"]) == ("prune", "reward_fallen")
    assert "from 0.5 before training to 0.1" in asked["reason"]


def test_no_guard_ends_what_all_others_are_compared_with(tmp_path: Path) -> None:
    """Without the control of a fork, or the base of one factor at a time, no effect is known."""
    sweep = Sweep(tmp_path, StoppingPolicy(), "search=one_factor", "search.seeds=2")
    sweep.begin(0, 0.5)
    assert sweep.evaluate("0", 0.1, 0.1, 0.1)["action"] == "run"


@pytest.mark.parametrize(("value", "told"), [(0.05, 0.05), (0.4, 0.1)])
def test_a_sampler_is_told_the_worst_of_a_collapsed_trial(
    tmp_path: Path, value: float, told: float
) -> None:
    """Its own last value, or that of the worst finished trial (0.1)."""
    sweep = Sweep(tmp_path, StoppingPolicy())
    sweep.begin(1, 0.9)
    assert sweep.evaluate("1", value, value)["action"] == "prune"
    sweep.place.finish("1", "finished")
    sweep.place.finish("0", "finished")
    sweep.controller.tick()
    assert sweep.controller.early_stopping.foreseen() == {1: told}


def test_a_policy_is_shown_which_trials_run_are_paused_and_have_finished(tmp_path: Path) -> None:
    """A paused trial stays paused for the next controller, and runs again once it is promoted."""
    sweep = Sweep(tmp_path, policy := Pauses())
    sweep.evaluate("1", 0.5)
    sweep.place.finish("1", "finished")
    sweep.controller.tick()
    sweep.come_back()
    sweep.evaluate("0", 0.4)
    (curve, others) = policy.shown[-1]
    assert (curve.number, curve.state) == (0, State.RUNNING)
    assert [(other.number, other.state) for other in others] == [(1, State.PAUSED)]
    policy.promotes = True
    sweep.come_back()
    sweep.evaluate("2", 0.6)
    assert policy.shown[-1][0].state is State.RUNNING


def test_a_policy_is_shown_what_has_finished(tmp_path: Path) -> None:
    """With the evaluations that it has."""
    sweep = Sweep(tmp_path, policy := Pauses())
    sweep.place.finish("0", "finished")
    sweep.controller.tick()
    sweep.evaluate("1", 0.5)
    assert [(other.number, other.state) for other in policy.shown[-1][1]] == [(0, State.FINISHED)]
