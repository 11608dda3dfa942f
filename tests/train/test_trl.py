"""Real GRPO on the tiny model, in this process: resume, stop, evaluation and what is kept."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from grporecipe.errors import ExitCode, UserError
from grporecipe.files import append_line
from grposweep.storage.completions import read_completions
from grposweep.storage.forks import ForkState, checkpoint_hash
from grposweep.train import trl as grpo
from grposweep.train._evaluation import (
    HeldOutEvaluation,
    group_prompts,
    mean_over_prompts,
    prompt_means,
)
from grposweep.train._restore import REFERENCE
from grposweep.train.attempt import load_attempt
from grposweep.train.run import run_attempt

from .conftest import MakeTrial, control, metrics_of, result_of

# torch and real training: the default tier is for seconds
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cool_tiny", "own_threads")]


def stop_then_continue(folder: Path, step: int) -> None:
    """Two attempts, the first one ended at ``step``."""
    control(folder, "pause", until_step=step)
    assert run_attempt(folder) == ExitCode.STOPPED
    assert result_of(folder)["step"] == step
    assert (folder / result_of(folder)["checkpoint"] / "trainer_state.json").is_file()
    (folder / "control.json").unlink()
    append_line(folder / "attempts.jsonl", {"attempt": 1})
    assert run_attempt(folder) == ExitCode.FINISHED


@pytest.mark.parametrize(
    "overrides",
    [
        # a rollout is used for two steps
        ["batch.num_iterations=2", "kl.enabled=true", "kl.beta=0.1"],
        # two steps per epoch
        ["task.train_prompts=5", "schedule.max_steps=6", "schedule.evaluations=3"],
        # moved at each step
        ["kl.enabled=true", "kl.beta=1", "kl.sync_ref_model=true", "kl.ref_model_sync_steps=1"],
    ],
    ids=["reuse and KL", "later epoch", "a reference that follows"],
)
def test_a_resumed_trial_equals_an_undisturbed_one_bit_for_bit(
    make_trial: MakeTrial, overrides: list[str]
) -> None:
    """Weights, optimizer, random numbers and the order of prompts all come back."""
    disturbed = make_trial(*overrides)
    straight = make_trial(*overrides, name="0001-b")
    stop_then_continue(disturbed, step=3 if "schedule.max_steps=6" in overrides else 2)
    assert run_attempt(straight) == ExitCode.FINISHED
    assert metrics_of(disturbed, timeless=True) == metrics_of(straight, timeless=True)
    assert {line["attempt"] for line in metrics_of(disturbed)} == {0, 1}


def test_a_checkpoint_without_its_moving_reference_is_refused(make_trial: MakeTrial) -> None:
    """Earlier versions continued silently with the model before training as the reference."""
    folder = make_trial(
        "kl.enabled=true", "kl.beta=1", "kl.sync_ref_model=true", "kl.ref_model_sync_steps=1"
    )
    control(folder, "pause", until_step=2)
    assert run_attempt(folder) == ExitCode.STOPPED
    (folder / "checkpoints" / "checkpoint-2" / REFERENCE).unlink()
    (folder / "control.json").unlink()
    append_line(folder / "attempts.jsonl", {"attempt": 1})
    assert run_attempt(folder) == ExitCode.BAD_INPUT
    assert "checkpoint-2 has no reference_model.pt" in result_of(folder)["failure"]["message"]


def test_a_fork_repeats_its_parent_bit_for_bit_unless_it_changes_something(
    make_trial: MakeTrial,
) -> None:
    """A new learning rate is used from the first step on, although torch restores the old one from
    the checkpoint.
    """
    course = ("trainer.keep=all", "schedule.checkpoints=2", "optimizer.lr_scheduler_type=linear")
    parent = make_trial(*course, sweep="parents")
    assert run_attempt(parent) == ExitCode.FINISHED
    source = parent / "checkpoints" / "checkpoint-2"
    state = ForkState("parents", parent.name, 2, 0, checkpoint_hash(source))
    same = make_trial(*course, f"trainer.fork={state.digest}")
    children = {
        "lr": make_trial(*course, f"trainer.fork={state.digest}", "lr=5e-4", name="0001-b"),
        "seed": make_trial(*course, f"trainer.fork={state.digest}", "seed=1000", name="0002-c"),
    }
    state.keep(source, parent, same.parent.parent)
    assert [run_attempt(folder) for folder in (same, *children.values())] == [ExitCode.FINISHED] * 3
    assert metrics_of(same, timeless=True) == metrics_of(parent, timeless=True)
    rates = {
        name: {
            line["step"]: line["learning_rate"]
            for line in metrics_of(folder)
            if line["kind"] == "train"
        }
        for name, folder in {"parent": parent, **children}.items()
    }
    assert [rates["lr"][step] / rates["parent"][step] for step in (1, 2, 3, 4)] == [1, 1, 0.5, 0.5]
    assert rates["seed"] == rates["parent"]
    changed = {name: metrics_of(folder, timeless=True) for name, folder in children.items()}
    assert all(lines[-1] != metrics_of(parent, timeless=True)[-1] for lines in changed.values())


def test_a_crashed_trial_continues_from_its_last_checkpoint(
    make_trial: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 3 was written and is taken back: the checkpoint is of step 2."""
    crashed = make_trial()
    straight = make_trial(name="0001-b")
    log = grpo.Attempt.log

    def crash(attempt: grpo.Attempt, kind: str, step: int, values: dict[str, float]) -> None:
        log(attempt, kind, step, values)
        if step == 3:
            raise MemoryError("staged")

    with monkeypatch.context() as patch:
        patch.setattr(grpo.Attempt, "log", crash)
        assert run_attempt(crashed) == ExitCode.FAILED
    assert result_of(crashed)["failure"]["kind"] == "MemoryError"
    append_line(crashed / "attempts.jsonl", {"attempt": 1})
    assert run_attempt(crashed) == run_attempt(straight) == ExitCode.FINISHED
    assert metrics_of(crashed, timeless=True) == metrics_of(straight, timeless=True)
    assert [line["attempt"] for line in metrics_of(crashed)][-1] == 1


@pytest.mark.parametrize(("keep", "kept"), [("best", ["checkpoint-2"]), ("all", [])])
def test_a_checkpoint_is_written_when_the_last_one_is_too_old(
    make_trial: MakeTrial, monkeypatch: pytest.MonkeyPatch, keep: str, kept: list[str]
) -> None:
    """At every boundary here, though none is planned; keep=all would keep them all, so it has the
    planned ones alone.
    """
    folder = make_trial(
        "schedule.checkpoints=0",
        "schedule.checkpoint_minutes=1e-9",
        "schedule.eval_at_start=false",
        "schedule.evaluations=1",
        f"trainer.keep={keep}",
    )

    def crash(_attempt: grpo.Attempt, _kind: str, step: int, _values: dict[str, float]) -> None:
        if step == 3:
            raise MemoryError("staged")

    monkeypatch.setattr(grpo.Attempt, "log", crash)
    assert run_attempt(folder) == ExitCode.FAILED
    assert [path.name for path in (folder / "checkpoints").glob("checkpoint-*")] == kept


def test_how_often_a_trial_is_evaluated_does_not_change_what_it_learns(
    make_trial: MakeTrial,
) -> None:
    """Evaluations draw random numbers of their own."""
    often = make_trial("schedule.evaluations=4")
    once = make_trial("schedule.evaluations=1", "schedule.eval_at_start=false", name="0001-b")
    assert run_attempt(often) == run_attempt(once) == ExitCode.FINISHED
    learnt = [
        [line for line in metrics_of(folder, timeless=True) if line["kind"] == "train"]
        for folder in (often, once)
    ]
    assert learnt[0] == learnt[1]
    assert len({line["grad_norm"] for line in learnt[0]}) == 4
    assert metrics_of(often)[-1]["eval_reward"] == metrics_of(once)[-1]["eval_reward"]


def test_keep_last_keeps_a_checkpoint_and_no_model(make_trial: MakeTrial) -> None:
    """keep=last: what a longer schedule would continue from."""
    folder = make_trial(
        "trainer.keep=last", "schedule.evaluations=1", "schedule.eval_at_start=false"
    )
    assert run_attempt(folder) == ExitCode.FINISHED
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["checkpoint-4"]
    assert result_of(folder)["model"] is None


def test_a_reward_that_fails_in_training_fails_the_trial_by_name(
    make_trial: MakeTrial, tmp_path: Path
) -> None:
    """It passed preparation, or there was none."""
    (tmp_path / "mine.py").write_text("def broken(completions, **_):\n    return [1.0]\n")
    folder = make_trial(f"task.rewards=[{tmp_path}/mine.py:broken]")
    assert run_attempt(folder) == ExitCode.FAILED
    assert "mine.py:broken" in result_of(folder)["failure"]["message"]


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_a_colocated_engine_does_not_change_the_seed(
    make_trial: MakeTrial, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """It seeds all generators of the process when it starts; a server does not, and nothing changes
    there.
    """

    class Engine:
        def __init__(self, **_: object) -> None:
            if mode == "colocate":
                # of the rank alone
                torch.manual_seed(0)

    monkeypatch.setattr("trl.trainer.grpo_trainer.VLLMGeneration", Engine)
    monkeypatch.setattr(grpo, "wait_for_server", lambda *_: None)
    drawn = []
    for seed in (3, 4):
        attempt = load_attempt(
            make_trial(
                "generation.use_vllm=true",
                f"generation.vllm_mode={mode}",
                f"seed={seed}",
                "loss.importance_sampling_level=token",
                name=f"{seed:04}-a",
            )
        )
        grpo.calm()
        model = grpo.load_model(attempt.experiment.model, grpo.locate_model(attempt))
        arguments = grpo.build_config(attempt, model)
        # it asks the server
        arguments.vllm_importance_sampling_correction = False
        grpo.build_trainer(
            attempt, model, grpo.load_data(attempt.experiment.task), arguments, resumed_at=0
        )
        drawn.append(torch.rand(1).item())
    assert drawn[0] != drawn[1]


def test_the_frozen_weights_under_an_adapter_are_the_file_that_trials_map(
    make_trial: MakeTrial,
) -> None:
    """So the trials of a machine without GPUs have their base weights in memory once."""
    attempt = load_attempt(make_trial("model.lora.r=16"))
    grpo.calm()
    model = grpo.load_model(attempt.experiment.model, grpo.locate_model(attempt))
    data = grpo.load_data(attempt.experiment.task)
    arguments = grpo.build_config(attempt, model)
    trainer = grpo.build_trainer(attempt, model, data, arguments, resumed_at=0)
    lines = [
        line
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith("model.safetensors")
    ]
    mapped = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    frozen = [weight for weight in trainer.model.parameters() if not weight.requires_grad]
    assert len(frozen) > 10
    assert all(
        any(first <= weight.data_ptr() < last for first, last in mapped) for weight in frozen
    )


def test_several_gpus_in_one_process_are_refused(
    make_trial: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL would say DataParallel; we say what to set."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES"):
        grpo.use_devices(load_attempt(make_trial()))


def test_data_that_changed_since_preparation_is_bad_input(make_trial: MakeTrial) -> None:
    """The plan counted other prompts; and a schedule of nothing is no success."""
    # as counted before preparation; and there are fewer now
    folder = make_trial("task.train_prompts=100")
    attempt = load_attempt(folder)
    data = grpo.load_data(attempt.experiment.task)
    data = type(data)(data.train.select(range(50)), data.held_out)
    with pytest.raises(UserError, match="50 training and 8 held-out prompts were found"):
        grpo.check_counts(attempt, data)
    assert run_attempt(make_trial("schedule.max_steps=null", name="0001-b")) == ExitCode.BAD_INPUT


def test_the_held_out_mean_is_over_distinct_prompts_with_its_standard_error() -> None:
    """Two ranks, two completions per prompt; the last batch of rank 1 was filled up with prompt 7
    again.
    """
    rank0 = [(0, 0, 0, 7, 1.0), (0, 0, 1, 7, 0.0), (1, 0, 0, 9, 1.0), (1, 0, 1, 9, 1.0)]
    rank1 = [(0, 1, 0, 8, 0.0), (0, 1, 1, 8, 0.0), (1, 1, 0, 7, 1.0), (1, 1, 1, 7, 1.0)]
    mean, error = mean_over_prompts(prompt_means(rank1 + rank0, generations=2))
    assert mean == pytest.approx((0.5 + 0.0 + 1.0) / 3)
    assert error == pytest.approx(0.5 / 3**0.5)


def ask(held_out: HeldOutEvaluation, prompts: list[str], **columns: list[object]) -> dict[int, int]:
    """Return the families of held-out prompts with these texts and columns."""
    held_out.start()
    ids = list(range(len(prompts)))
    held_out.hear(prompts, ["1"] * len(prompts), {"prompt_id": ids, **columns})
    held_out.record(0, ids, [1.0] * len(prompts))
    return group_prompts([row[3] for row in held_out.completions(0)])


def test_equal_prompts_and_those_of_a_named_family_count_once() -> None:
    """The standard error is the one of their means; without families prompts that differ are
    independent.
    """
    prompts = ["1+1=", " 1+1=", "2+2=", "3+3="]
    held_out = HeldOutEvaluation([1.0], "from")
    assert ask(held_out, ["1+1=", "2+2="]) == {}
    assert ask(held_out, prompts) == {0: 0, 1: 0, 2: 1, 3: 2}
    families = ask(held_out, prompts, **{"from": [1, 1, 2, 2]})
    assert families == {0: 0, 1: 0, 2: 1, 3: 1}
    assert mean_over_prompts({0: 0.0, 1: 0.2, 2: 0.8, 3: 1.0}, families) == pytest.approx(
        (0.5, 0.4)
    )
    # the text of prompt 9 is not known
    assert mean_over_prompts({0: 1.0, 9: 3.0}, families) == pytest.approx((2.0, 1.0))


def test_held_out_rewards_are_weighted_and_skip_what_could_not_be_judged() -> None:
    """As TRL weights them, so that eval_reward means what its users expect."""
    held_out = HeldOutEvaluation(weights=[1.0, 2.0])
    # training: not listened to
    held_out.record(0, [5], [1.0])
    held_out.start()
    held_out.record(0, [5, 5, 6], [1.0, None, None])
    held_out.record(1, [5, 5, 6], [0.5, 1.0, None])
    assert [row[3:] for row in held_out.rows(rank=0)][:2] == [(5, 2.0), (5, 2.0)]
    assert mean_over_prompts(prompt_means(held_out.rows(rank=0), generations=2)) == (2.0, None)


def test_every_step_says_what_it_cost(make_trial: MakeTrial) -> None:
    """Peak memory, tokens per second, and the shares of generation, scoring and training, which
    make up the step.
    """
    folder = make_trial()
    assert run_attempt(folder) == ExitCode.FINISHED
    steps = [line for line in metrics_of(folder) if line["kind"] == "train"]
    assert len(steps) == 4
    for line in steps:
        assert line["time_share/generation"] + line["time_share/scoring"] + line[
            "time_share/training"
        ] == pytest.approx(1.0)
        assert (
            min(
                line[name]
                for name in (
                    "memory/peak",
                    "tokens_per_second",
                    "time/step",
                    "time_share/generation",
                )
            )
            > 0
        )


def test_every_evaluation_keeps_completions_and_measures_how_varied_they_are(
    make_trial: MakeTrial,
) -> None:
    """The same prompts each time, with their rewards; an interruption leaves neither gaps nor
    duplicates.
    """
    disturbed = make_trial()
    straight = make_trial(name="0001-b")
    stop_then_continue(disturbed, step=2)
    assert run_attempt(straight) == ExitCode.FINISHED
    kept = read_completions(straight)
    assert {step: len(group) for step, group in kept.items()} == {0: 8, 2: 8, 4: 8}
    assert len({tuple(c.prompt for c in group) for group in kept.values()}) == 1
    assert all(
        c.reward == c.rewards["dense"] and c.value is not None
        for group in kept.values()
        for c in group
    )
    assert {
        step: [replace(c, attempt=0) for c in group]
        for step, group in read_completions(disturbed).items()
    } == kept
    rows = [line for line in metrics_of(straight) if line["kind"] == "eval"]
    assert all(
        row["samples"] == 32 and 0 < row["diversity"] <= 1 and row["time_share/diversity"] < 0.5
        for row in rows
    )


def test_the_model_of_the_best_evaluation_is_kept_across_an_interruption(
    make_trial: MakeTrial,
) -> None:
    """search.at=best: the same weights as those of a training that ends at that step; checkpoints
    go.
    """
    # breaks: an early one is best
    options = (
        "search.at=best",
        "schedule.max_steps=6",
        "schedule.evaluations=6",
        "lr=3e-2",
    )
    disturbed = make_trial(*options)
    straight = make_trial(*options, name="0001-b")
    stop_then_continue(disturbed, step=3)
    assert run_attempt(straight) == ExitCode.FINISHED
    one = result_of(disturbed)
    other = result_of(straight)
    best = one["best_step"]
    assert (one["objective"], best) == (other["objective"], other["best_step"])
    assert best < 6
    weights = [
        load_file(folder / "model" / "model.safetensors") for folder in (disturbed, straight)
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not (straight / "checkpoints").exists()
    whole = make_trial(*options[1:], "trainer.keep=all", name="0002-c")
    control(whole, "pause", until_step=best)
    assert run_attempt(whole) == ExitCode.STOPPED
    there = load_file(whole / f"checkpoints/checkpoint-{best}/model.safetensors")
    assert all(torch.equal(there[name], weights[1][name]) for name in there)
