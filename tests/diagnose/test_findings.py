"""Each problem is found in a log that has it, and none is found in healthy logs."""

import json
import math
from pathlib import Path

import pytest

from grporecipe.diagnose._findings import Diagnosis, diagnose
from grporecipe.diagnose._log import Log
from grporecipe.files import read_own_yaml
from support import PROJECT, grposweep, lines, unwrap

from .made import FLAT, Row, run, swift, table, verl_console

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


@pytest.mark.parametrize("seed", range(8))
def test_a_healthy_log_has_no_problem(seed: int) -> None:
    """A loss near 0 is only a note."""
    diagnosis = judge(run(120, seed))
    assert (diagnosis.healthy, [finding.name for finding in diagnosis.findings]) == (
        True,
        ["loss_near_zero"],
    )


CASES = read_own_yaml(__file__, "logs.yaml")
CONVERTED = read_own_yaml(__file__, "converted.yaml")
UNMOVED = read_own_yaml(__file__, "unmoved.yaml")


def broken(name: str) -> list[Row]:
    """Return the log of a case."""
    return run(100, **CASES[name]["logs"])


@pytest.mark.parametrize("case", CASES)
def test_each_problem_is_found_with_its_steps_and_its_cause(case: str) -> None:
    """It has a range of steps in the log. Its advice names no cause that the log excludes."""
    findings = {finding.name: finding for finding in judge(broken(case)).findings}
    name = case.split()[0]
    if CASES[case].get("never"):
        assert name not in findings
        return
    finding = findings[name]
    assert 0 <= finding.steps[0] < finding.steps[1] <= 100
    assert CASES[case]["says"] in f"{finding.evidence} {finding.advice}"
    assert (finding.level == "note") == case.endswith("is a note")


@pytest.mark.parametrize("cause", UNMOVED)
def test_a_training_that_has_not_moved_is_found_in_its_first_tenth(cause: str) -> None:
    """Of 100 steps, with the cause; one step before it is too early, and one step that moved is
    enough against it.
    """
    steps, changed = UNMOVED[cause].values()
    (finding,) = [
        f for f in judge(run(steps, **changed), total=100).findings if f.level == "problem"
    ]
    assert (finding.name, finding.steps) == ("nothing_moved", (1, steps))
    assert cause in finding.evidence
    assert judge(run(steps - 1, **changed), total=100).healthy
    assert "nothing_moved" not in found(judge([*run(steps, **changed), *run(1)], total=100))


def test_a_warm_up_that_begins_at_zero_is_named_with_the_cause() -> None:
    """Each cause with its number of steps."""
    rows = run(6, learning_rate="1e-6 * (step - 1)", update_size="0")
    finding = judge(rows, total=60).findings[0]
    assert "the learning rate was 0 (1 of them)" in finding.evidence
    assert "stayed the same (5 of them)" in finding.evidence


def test_a_recipe_after_the_log_names_the_settings_to_change(tmp_path: Path) -> None:
    """With the line that sets each, or that it is the default."""
    (tmp_path / "log.jsonl").write_text(swift(broken("kl_drift")))
    (tmp_path / "recipe.yaml").write_text(
        "model_name_or_path: m\nnum_generations: 8\nlearning_rate: 1.0e-3\n"
    )
    ended = grposweep(tmp_path, "diagnose", "log.jsonl", "recipe.yaml")
    assert "recipe.yaml: learning_rate=0.001 (line 3), beta=0 (default)" in unwrap(ended.out), (
        ended.out + ended.err
    )
    said = json.loads(grposweep(tmp_path, "diagnose", "log.jsonl", "recipe.yaml", "--json").out)
    assert said["findings"][0]["settings"].startswith("recipe.yaml: learning_rate=0.001 (line 3)")


@pytest.mark.parametrize(("release", "prompts", "kl"), CONVERTED["kl"])
def test_the_kl_that_verl_logs_is_converted_by_its_recipe(
    tmp_path: Path, release: str, prompts: str, kl: list[float] | None
) -> None:
    """Without the release or the sizes it is not judged, because it may not be in nats."""
    (tmp_path / "log").write_text(verl_console(run(60, kl="1", reward="step")))
    (tmp_path / "run.sh").write_text(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=512"
        f" actor_rollout_ref.actor.ppo_mini_batch_size={prompts} trainer.n_gpus_per_node=8"
        " actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 actor_rollout_ref.rollout.n=8\n"
    )
    said = json.loads(grposweep(tmp_path, "diagnose", "log", "run.sh", "--json").out)
    assert "not in nats" in said["not_judged"]["kl_drift"]
    (tmp_path / ".grposweep.toml").write_text(f'framework-version = "{release}"\n')
    said = json.loads(grposweep(tmp_path, "diagnose", "log", "run.sh", "--json").out)
    drift = [each["numbers"]["kl"] for each in said["findings"] if each["name"] == "kl_drift"]
    assert drift == (kl or [])
    assert ("kl_drift" in said["not_judged"]) == (kl is None)


@pytest.mark.parametrize(("options", "release", "lacks", "head"), CONVERTED["weights"])
def test_the_reward_that_trl_logs_without_its_weights_gets_them(
    tmp_path: Path, options: str, release: str, lacks: str, head: str
) -> None:
    """TRL 0.27.0 to 0.29.1 log the plain sum, here 0.5, of training and of evaluations."""
    rows = run(60, **CONVERTED["rewards"])
    (tmp_path / "log").write_text(table(rows).replace(lacks, "other"))
    (tmp_path / "run.sh").write_text(f"trl grpo --num_generations 8 {options}\n")
    (tmp_path / ".grposweep.toml").write_text(f'framework-version = "{release}"\n')
    said = grposweep(tmp_path, "diagnose", "log", "run.sh").out
    assert head in said, said
    assert ("reward was best" in said) == ("flat: " not in said) == (head == "is weighted"), said


def test_bfloat16_weights_lose_updates_of_a_small_learning_rate() -> None:
    """A trial's configuration has the type of the weights. Without it nothing is reported."""
    rows = run(100, reward=FLAT)
    assert found(judge(rows, weights="bfloat16")) == {"precision"}
    assert found(judge(rows, weights="float32")) == {"flat"}


def test_a_flat_reward_is_not_reported_early_or_in_warm_up() -> None:
    """100 of 1,000 steps are too few, and a learning rate that still rises explains a flat
    reward.
    """
    assert found(judge(run(100, reward=FLAT), total=1000)) == set()
    warm = judge(run(100, reward=FLAT, learning_rate="step * 1e-8"))
    assert found(warm) == set()
    assert "warm_up" in {finding.name for finding in warm.findings}


def test_a_noisy_reward_is_not_called_flat() -> None:
    """The interval of its change includes a large gain."""
    assert found(judge(run(30, reward="0.3 + 0.25 * sin(step * 12.9898)"))) == set()


def test_checks_without_data_are_listed() -> None:
    """Each has the data that it lacks."""
    rows = [{"reward": row["reward"], "loss": row["loss"]} for row in run(100)]
    missing = judge(rows).not_judged
    assert (missing["kl_drift"], missing["precision"]) == (
        "kl",
        "learning_rate, the type of the weights",
    )


def test_the_best_step_is_named_and_an_evaluation_below_its_start() -> None:
    """If there are evaluations, they decide."""
    held_out = [0.5, 0.6, 0.7, 0.8, 0.65, 0.5, 0.4, 0.4]
    log = [
        {"step": 10 * i, "eval_reward": value, "eval_reward_se": 0.01, "reward": 0.5}
        for i, value in enumerate(held_out)
    ]
    diagnosis = diagnose(Log.build("log", "made", log))
    assert found(diagnosis) == {"below_start"}
    for row in log[-2:]:
        row["eval_reward"] = 0.6
    diagnosis = diagnose(Log.build("log", "made", log))
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
