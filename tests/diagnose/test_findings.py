"""Each problem is found in a log that has it, and none is found in healthy logs."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from grporecipe.diagnose._findings import Diagnosis, diagnose
from grporecipe.diagnose._log import Log
from support import PROJECT, grposweep, lines

from .made import Row, run, swift

CURVES = PROJECT / "benchmarks" / "curves"
SIGNALS = {
    "train_reward": "reward",
    "zero_std": "frac_reward_zero_std",
    "truncated": "completions/clipped_ratio",
}


def judge(rows: list[Row], total: int | None = None, weights: str | None = None) -> Diagnosis:
    """Return the diagnosis of training steps."""
    log = Log.build("log", "made", [{"step": i, **row} for i, row in enumerate(rows, 1)], total)
    log.weights = weights
    return diagnose(log)


def found(diagnosis: Diagnosis) -> set[str]:
    """Return the names of the findings that are no notes."""
    return {finding.name for finding in diagnosis.findings if finding.level != "note"}


def flat(_step: int) -> float:
    """Return rewards without a trend."""
    return 0.3 + 0.02 * (-1) ** _step


@pytest.mark.parametrize("seed", range(8))
def test_a_healthy_log_has_no_problem(seed: int) -> None:
    """A loss near 0 is only a note."""
    diagnosis = judge(run(120, seed))
    assert (diagnosis.healthy, [finding.name for finding in diagnosis.findings]) == (
        True,
        ["loss_near_zero"],
    )


BROKEN: dict[str, dict[str, Callable[[int], float]]] = {
    "non_finite": {"loss": lambda step: math.nan if step > 80 else 0.1},
    "kl_blow_up": {"reward": flat, "kl": lambda step: step / 5},
    "entropy_collapse": {"reward": flat, "entropy": lambda step: 0.5 * 0.8**step},
    "entropy_fall": {"reward": flat, "entropy": lambda step: max(0.49 * 0.94**step, 0.009)},
    "entropy_explosion": {"reward": flat, "entropy": lambda step: 0.5 + step / 20},
    "no_variance": {
        "reward": lambda _: 0.0,
        "frac_reward_zero_std": lambda _: 1.0,
        "reward_std": lambda _: 0.0,
    },
    "all_truncated": {
        "reward": flat,
        "completions__clipped_ratio": lambda step: min(step / 40, 1.0),
    },
    "reward_fallen": {"reward": lambda step: 0.6 if step < 50 else 0.05},
    "learning_rate_zero": {"reward": flat, "learning_rate": lambda _: 0.0},
    "non_finite_gradient": {"grad_norm": lambda _: math.nan, "loss": lambda _: 0.0},
    "no_gradient": {"reward": flat, "grad_norm": lambda _: 0.0},
    "no_update": {"reward": flat, "update_size": lambda _: 0.0},
    "best_step": {"reward": lambda step: 0.3 + 0.005 * min(step, 60) - 0.008 * max(step - 60, 0)},
    "rate_too_high": {
        "reward": lambda step: 0.1 + 0.05 * min(step, 10) - 0.02 * min(max(step - 10, 0), 20),
        "entropy": lambda step: max(2 * 0.7**step, 0.05),
    },
    "flat": {"reward": flat},
    "falling": {"reward": lambda step: 0.6 - 0.0015 * step},
    "few_groups": {"reward": flat, "frac_reward_zero_std": lambda _: 0.9},
    "kl_drift": {"reward": flat, "kl": lambda step: step / 40},
    "kl_spikes": {"reward": flat, "kl": lambda step: 5.0 if step % 25 == 0 else 0.01},
    "grad_spikes": {"reward": flat, "grad_norm": lambda step: 50.0 if step % 25 == 0 else 0.5},
    "truncation": {"completions__clipped_ratio": lambda _: 0.7},
    "length_growth": {"reward": flat, "completions__mean_length": lambda step: 300.0 + 5 * step},
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_problem_is_found_with_its_steps(name: str) -> None:
    """It has a range of steps in the log, evidence and advice. The healthy log does not have it."""
    diagnosis = judge(run(100, **BROKEN[name]))
    finding = next((finding for finding in diagnosis.findings if finding.name == name), None)
    assert finding, found(diagnosis)
    assert 0 <= finding.steps[0] < finding.steps[1] <= 100
    assert finding.evidence
    assert finding.advice


def test_entropy_that_falls_fast_is_no_problem_while_the_reward_stays() -> None:
    """Half of the rates that SmolLM2 learnt with on an H100 did so."""
    rows = run(
        100,
        reward=lambda step: 0.1 + 0.06 * min(step, 10),
        entropy=lambda step: max(2 * 0.7**step, 0.05),
    )
    assert "rate_too_high" not in found(judge(rows))


# The logged steps that each cause takes, and what is logged.
UNMOVED: dict[str, tuple[int, dict[str, Callable[[int], float]]]] = {
    "the learning rate was 0": (5, {"learning_rate": lambda _: 0.0}),
    "the weights stayed the same": (5, {"update_size": lambda _: 0.0}),
    # as if the B of LoRA stays zero
    "the gradient was 0": (5, {"grad_norm": lambda _: 0.0}),
    "no group had any variance": (
        10,
        {"grad_norm": lambda _: 0.0, "frac_reward_zero_std": lambda _: 1.0},
    ),
}


@pytest.mark.parametrize("cause", UNMOVED)
def test_a_training_that_has_not_moved_is_found_in_its_first_tenth(cause: str) -> None:
    """Of 100 steps, with the cause; one step before it is too early, and one step that moved is
    enough against it.
    """
    steps, changed = UNMOVED[cause]
    (finding,) = [
        f for f in judge(run(steps, **changed), total=100).findings if f.level == "problem"
    ]
    assert (finding.name, finding.steps) == ("nothing_moved", (1, steps))
    assert cause in finding.evidence
    assert judge(run(steps - 1, **changed), total=100).healthy
    assert "nothing_moved" not in found(judge([*run(steps, **changed), *run(1)], total=100))


def test_a_warm_up_that_begins_at_zero_is_named_with_the_cause() -> None:
    """Each cause with its number of steps."""
    diagnosis = judge(
        run(6, learning_rate=lambda step: 1e-6 * (step - 1), update_size=lambda _: 0.0), total=60
    )
    (finding,) = [f for f in diagnosis.findings if f.level == "problem"]
    assert "the learning rate was 0 (1 of them)" in finding.evidence
    assert "stayed the same (5 of them)" in finding.evidence


def test_few_groups_say_that_the_reward_has_not_risen() -> None:
    """They are why, so the flat reward is no finding of its own."""
    (found,) = (
        one for one in judge(run(100, **BROKEN["few_groups"])).findings if one.name == "few_groups"
    )
    assert found.evidence == (
        "90% of the groups had no variance in their rewards, and the training reward has not risen"
    )


def test_a_recipe_after_the_log_names_the_settings_to_change(tmp_path: Path) -> None:
    """With the line that sets each, or that it is the default."""
    (tmp_path / "log.jsonl").write_text(swift(run(100, **BROKEN["kl_drift"])))
    (tmp_path / "recipe.yaml").write_text(
        "model_name_or_path: m\nnum_generations: 8\nlearning_rate: 1.0e-3\n"
    )
    ended = grposweep(tmp_path, "diagnose", "log.jsonl", "recipe.yaml")
    assert "recipe.yaml: learning_rate=0.001 (line 3), beta=0 (default)" in " ".join(
        ended.out.split()
    ), ended.out + ended.err
    said = json.loads(grposweep(tmp_path, "diagnose", "log.jsonl", "recipe.yaml", "--json").out)
    assert said["findings"][0]["settings"].startswith("recipe.yaml: learning_rate=0.001 (line 3)")


def test_a_falling_reward_is_not_called_flat() -> None:
    """The advice for a flat reward is a higher learning rate, which is wrong here."""
    diagnosis = judge(run(100, **BROKEN["falling"]))
    assert "flat" not in found(diagnosis)
    advice = " ".join(finding.advice for finding in diagnosis.findings)
    assert "raise the learning rate" not in advice
    assert "Lower the learning rate" in advice


def test_bfloat16_weights_lose_updates_of_a_small_learning_rate() -> None:
    """A trial's configuration has the type of the weights. Without it nothing is reported."""
    rows = run(100, reward=flat)
    assert found(judge(rows, weights="bfloat16")) == {"precision"}
    assert found(judge(rows, weights="float32")) == {"flat"}


def test_a_flat_reward_is_not_reported_early_or_in_warm_up() -> None:
    """100 of 1,000 steps are too few, and a learning rate that still rises explains a flat
    reward.
    """
    assert found(judge(run(100, reward=flat), total=1000)) == set()
    warm = judge(run(100, reward=flat, learning_rate=lambda step: step * 1e-8))
    assert found(warm) == set()
    assert "warm_up" in {finding.name for finding in warm.findings}


def test_a_noisy_reward_is_not_called_flat() -> None:
    """The interval of its change includes a large gain."""
    assert found(judge(run(30, reward=lambda step: 0.3 + 0.25 * math.sin(step * 12.9898)))) == set()


def test_checks_without_data_are_listed() -> None:
    """Each has the data that it lacks."""
    rows = [{"reward": row["reward"], "loss": row["loss"]} for row in run(100)]
    missing = judge(rows).not_judged
    assert (missing["kl_drift"], missing["precision"]) == (
        "kl",
        "learning_rate, the type of the weights",
    )


def test_a_training_that_mostly_generates_is_named() -> None:
    """By the share of generation in a step."""
    findings = judge(run(100, time_share__generation=lambda _: 0.95)).findings
    assert "generation_bound" in [finding.name for finding in findings]


def test_the_best_step_is_named_and_an_evaluation_below_its_start() -> None:
    """If there are evaluations, they decide."""
    held_out = [0.5, 0.6, 0.7, 0.8, 0.65, 0.5, 0.4, 0.4]
    log = [
        {"step": 10 * i, "eval_reward": value, "eval_reward_se": 0.01, "reward": 0.5}
        for i, value in enumerate(held_out)
    ]
    diagnosis = diagnose(Log.build("log", "made", log))
    assert found(diagnosis) == {"below_start"}
    diagnosis = diagnose(
        Log.build(
            "log",
            "made",
            [*log[:-2], {**log[-2], "eval_reward": 0.6}, {**log[-1], "eval_reward": 0.6}],
        )
    )
    assert [(f.name, f.numbers["best_step"]) for f in diagnosis.findings] == [("best_step", 30)]


def recorded(curve: dict[str, object]) -> Log:
    """Return a recorded training as a log with evaluations."""
    rows: list[dict[str, object]] = [{"step": 0, "eval_reward": curve["start"]}]
    steps = list(curve["steps"])  # type: ignore[call-overload]  # JSON
    for i, step in enumerate(steps):
        row = {
            "step": step,
            "eval_reward": curve["held_out"][i],
            "eval_reward_se": curve["held_out_se"][i],
        }  # type: ignore[index]
        for name in ("train_reward", "kl", "entropy", "grad_norm", "zero_std", "truncated"):
            if (value := curve[name][i]) is not None:  # type: ignore[index]
                row[SIGNALS.get(name, name)] = value
        rows.append(row)
    return Log.build("curve", "recorded", rows, steps[-1])


@pytest.mark.parametrize("task", ["arithmetic", "successor"])
def test_recorded_trainings_that_rose_are_healthy_and_collapsed_ones_are_found(task: str) -> None:
    """Checked on every sixth curve of benchmarks/curves."""
    wrong = []
    for curve in lines(CURVES / f"{task}.jsonl")[::6]:
        if len(curve["held_out"]) < len(curve["steps"]):
            continue
        end, start, best = curve["held_out"][-1], curve["start"], max(curve["held_out"])
        noise = 4.3 * curve["held_out_se"][-1]
        healthy = diagnose(recorded(curve)).healthy
        if (end > start + noise and end > best - noise and not healthy) or (
            end < start / 2 and healthy
        ):
            wrong.append(json.dumps(curve["point"]))
    assert wrong == []


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e308, -1e308, 0.0, 1e-320])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 30])
def test_no_number_breaks_a_check(value: float, count: int) -> None:
    """Every metric at once, in logs of every length, with evaluations and without."""
    names = list(run(1)[0])
    rows = [
        {"step": i, **dict.fromkeys([*names, "eval_reward", "update_size"], value)}
        for i in range(count)
    ]
    half = [{**row, **(run(1)[0] if i % 2 else {})} for i, row in enumerate(rows)]
    for made in (rows, half):
        assert diagnose(Log.build("log", "made", made)).log.end == count - 1
