"""search.at=best: the objective is the best evaluation, and what its being a maximum gains is taken
off.
"""

import random
from statistics import fmean

import pytest

from grporecipe.errors import ExitCode
from grporecipe.files import append_line
from grposweep.schema import Search
from grposweep.train.records import find_objective, optimism
from grposweep.train.run import run_attempt

from .conftest import MakeTrial, control, metrics_of, result_of


def lines(*values: float | None, noise: float | None = 0.0) -> list[dict[str, float | None]]:
    """Evaluations at steps 0, 10, 20, ..."""
    return [
        {"step": 10 * n, "eval_reward": value, "eval_reward_se": 0.1, "eval_reward_noise": noise}
        for n, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("search", "worth", "step"),
    [
        (Search(), 0.4, None),
        (Search(at="best"), 0.8, 20),
        (Search(at="best", direction="minimize"), 0.3, 10),
        (Search(at="best", last=2), 0.6, 30),
    ],
    ids=["last", "best", "minimised", "a mean of two"],
)
def test_the_objective_is_the_last_evaluation_or_the_best_after_training_began(
    search: Search, worth: float, step: int | None
) -> None:
    """The value before training (0.9) is no result of a training."""
    found = find_objective(lines(0.9, 0.3, 0.8, 0.4, None if search.at == "best" else 0.4), search)
    assert found.objective == pytest.approx(worth)
    assert found.best_step == step


def test_an_unknown_noise_is_told_as_that() -> None:
    """The value is then the maximum itself."""
    found = find_objective(lines(0.1, 0.3, 0.8, noise=None), Search(at="best"))
    assert (found.objective, found.best_step, found.optimism) == (0.8, 20, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("truth", "share"),
    [
        ([0.5] * 10, 0.25),
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6], 0.5),
        ([n / 10 for n in range(10)], 1.5),
    ],
    ids=["flat", "plateau", "rising"],
)
def test_what_a_maximum_of_noise_gains_is_taken_off(truth: list[float], share: float) -> None:
    """Over 200 trainings the mean error of the corrected maximum is a small part of that of the
    maximum itself.
    """
    chance = random.Random(1)
    error = 0.03
    raw = []
    corrected = []
    for _ in range(200):
        seen = [value + chance.gauss(0, error) for value in truth]
        place = seen.index(max(seen))
        raw.append(seen[place] - truth[place])
        corrected.append(raw[-1] - optimism(seen, [error] * len(seen)))
    assert abs(fmean(corrected)) < share * max(fmean(raw), 0.002)


def test_a_resumed_trial_has_the_same_best_step_value_and_model(make_fake: MakeTrial) -> None:
    """The fake trainer's noise makes the best evaluation an early one."""
    options = ("search.at=best", "trainer.args.noise=0.2", "schedule.evaluations=4", "seed=3")
    disturbed = make_fake(*options)
    straight = make_fake(*options, name="0001-b")
    control(disturbed, "pause", until_step=2)
    assert run_attempt(disturbed) == ExitCode.STOPPED
    (disturbed / "control.json").unlink()
    append_line(disturbed / "attempts.jsonl", {"attempt": 1})
    assert run_attempt(disturbed) == run_attempt(straight) == ExitCode.FINISHED
    keys = ("objective", "best_step", "optimism", "model")
    one, other = (
        {key: result_of(folder).get(key) for key in keys} for folder in (disturbed, straight)
    )
    assert one == other
    seen = {
        line["step"]: line["eval_reward"]
        for line in metrics_of(straight)
        if line["kind"] == "eval" and line["step"]
    }
    assert one["best_step"] == max(seen, key=lambda step: seen[step])
    assert one["objective"] == pytest.approx(max(seen.values()) - one["optimism"])
    assert one["optimism"] > 0


def test_a_result_without_at_best_names_no_step(make_fake: MakeTrial) -> None:
    """Nor an optimism."""
    folder = make_fake()
    assert run_attempt(folder) == ExitCode.FINISHED
    assert not {"best_step", "optimism"} & set(result_of(folder))
