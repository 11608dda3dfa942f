"""``grposweep continue``: a trial continues from its last checkpoint to the end of a longer
schedule.
"""

import pytest

from grporecipe.errors import UserError
from grposweep.config.compose import load_experiment
from grposweep.storage.folders import TrialFolder
from grposweep.sweep.continuation import continue_trial
from in_process import Sweep
from refused import says
from support import Printed, lines, sampled, trials

FAKE = (
    "trainer=fake",
    "schedule=steps",
    "schedule.max_steps=4",
    "schedule.evaluations=2",
    "name=s",
    "lr=1e-3,1e-4",
)


@pytest.fixture
def finished(sweep_here: Sweep) -> list[TrialFolder]:
    """The trials of a sweep that keeps the winner's last checkpoint."""
    return list(map(TrialFolder, trials(sweep_here(*FAKE, "trainer.keep=best_checkpoint"))))


def test_the_winner_is_trained_longer_and_its_curve_is_one_piece(
    finished: list[TrialFolder],
) -> None:
    """The loser's checkpoint is gone. Evaluations stay as far apart, and a warmup stays as long as
    it was.
    """
    assert [(trial.path / "checkpoints" / "checkpoint-4").is_dir() for trial in finished] == [
        True,
        False,
    ]
    assert continue_trial(finished[0], ["schedule.max_steps=8"]) == 0
    (longer,) = trials(next(finished[0].sweep.path.parent.glob("s-*")))
    assert [line["step"] for line in lines(longer / "metrics.jsonl") if line["kind"] == "eval"] == [
        0,
        2,
        4,
        6,
        8,
    ]
    experiment = load_experiment(longer / "config.yaml")
    assert (experiment.optimizer.warmup_steps, experiment.schedule.budget_completions) == (1, None)


@pytest.mark.parametrize(
    ("trial", "overrides", "why"),
    sampled(
        [
            (
                1,
                ["schedule.max_steps=8"],
                "no checkpoint (trainer.keep=best_checkpoint) ... trainer.keep=last",
            ),
            (0, [], "no length: a trial continues to the end of one longer schedule"),
            (0, ["schedule.evaluations=3"], "Set one of schedule.max_steps"),
            (0, ["schedule.max_steps=4"], "has trained 4. Set a longer one"),
            (0, ["schedule.max_steps=8", "schedule.epochs=1"], "one longer schedule"),
        ],
        3,
    ),
)
def test_what_cannot_continue_is_refused_with_what_to_set(
    finished: list[TrialFolder], trial: int, overrides: list[str], why: str
) -> None:
    """No folder is made."""
    with pytest.raises(UserError, match=says(why)):
        continue_trial(finished[trial], overrides)
    assert not list(finished[0].sweep.path.parent.glob("s-*"))


@pytest.mark.slow
def test_a_decaying_rate_is_asked_about(sweep_here: Sweep, printed: Printed) -> None:
    """It says what differs, and without a terminal it needs --yes."""
    (trial,) = map(
        TrialFolder,
        trials(sweep_here(*FAKE[:-1], "lr=1e-3", "optimizer=adamw_linear", "trainer.keep=last")),
    )
    with pytest.raises(UserError, match="Add --yes"):
        continue_trial(trial, ["schedule.max_steps=8"])
    assert "optimizer.lr_scheduler_type=linear follows the length" in printed()
    assert continue_trial(trial, ["schedule.max_steps=8"], yes=True) == 0


@pytest.mark.slow
def test_a_sweep_of_a_sweep_of_one_trial_has_a_short_name(finished: list[TrialFolder]) -> None:
    """The name is that of the first sweep and its trial."""
    outputs = finished[0].sweep.path.parent
    words = ["schedule.max_steps=6"]
    assert continue_trial(finished[0], words) == 0
    (first,) = outputs.glob("s-0-continue-*")
    assert continue_trial(TrialFolder(trials(first)[0]), ["schedule.max_steps=8"]) == 0
    (second,) = set(outputs.glob("s-0-continue-*")) - {first}
    assert second.name.startswith("s-0-continue-")
