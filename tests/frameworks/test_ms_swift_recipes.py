"""ms-swift's recipes as ms-swift reads them: its defaults, its words, its scripts."""

from pathlib import Path
from typing import Any

import pytest

from grporecipe.errors import UserError
from grporecipe.fields.recipes import read_recipe
from grporecipe.files import Json
from grporecipe.frameworks.ms_swift import keys as ms_swift
from grporecipe.linting.linter import Diagnostic, lint_recipe
from grporecipe.model import planning
from grporecipe.model.recipe import Recipe, VersionSource
from grporecipe.model.setting import Setting, Version
from grporecipe.reading.load import Options, load_recipe
from verdicts import codes_of, lint_text


def recipe(
    processes: int | None = 8,
    train_prompts: int | None = None,
    version: Version = ms_swift.VERSION,
    **config: Any,
) -> Recipe:
    """A recipe of a release."""
    asked = VersionSource("asked", "--framework-version", "")
    keys = {"rlhf_type": "grpo", **config}
    return Recipe("ms-swift", version, keys, processes, train_prompts, version_source=asked)


def read(*counts: int | None, **config: Any) -> Setting:
    """The setting behind a recipe."""
    return read_recipe(recipe(*counts, **config)).setting


def lint(*counts: int, **config: Any) -> dict[str, str]:
    """What lint says, by code."""
    found = lint_recipe(recipe(*counts, **config)).diagnostics
    return {finding.code: finding.message for finding in found}


def test_the_table_of_keys_is_of_the_version_judged_by() -> None:
    """Otherwise keys would be judged by one release and rules by another."""
    assert ms_swift.table()["version"] == ".".join(map(str, ms_swift.VERSION))


def test_an_empty_recipe_has_ms_swifts_defaults_and_not_trls() -> None:
    """arguments/rlhf_args.py, sft_args.py, trainers/arguments.py."""
    s = read()
    assert (s.per_device_train_batch_size, s.gradient_accumulation_steps, s.num_generations) == (
        1,
        1,
        8,
    )
    assert (s.beta, s.loss_type, s.temperature, s.learning_rate) == (0.04, "grpo", 0.9, 1e-4)
    assert (s.lr_scheduler_type, s.max_completion_length, s.epochs) == ("cosine", 512, 3.0)
    # nothing is held out
    assert not s.evaluates


def test_the_learning_rate_follows_the_tuner() -> None:
    """sft_args.py _init_override."""
    assert [read(tuner_type=tuner).learning_rate for tuner in ("full", "lora", "adalora")] == [
        1e-5,
        1e-4,
        1e-4,
    ]


def test_the_guides_case_takes_1320_steps() -> None:
    """8,000 rows, of which a hundredth is held out, on 6 processes: 7,920 prompts in rollouts of
    12.
    """
    s = read(
        6,
        8000,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_iterations=2,
        num_train_epochs=1,
        split_dataset_ratio=0.01,
        per_device_eval_batch_size=4,
    )
    assert (s.train_prompts, s.eval_prompts) == (7920, 80)
    assert (planning.prompts_per_rollout(s), planning.total_steps(s)) == (12, 1320)


def test_both_sizes_of_a_rollout_may_be_set_if_they_agree() -> None:
    """TRL refuses the two together."""
    both = {"per_device_train_batch_size": 4, "steps_per_generation": 2}
    assert "GB501" not in lint(generation_batch_size=64, **both)
    assert "8 x 4 x 2" in lint(generation_batch_size=96, **both)["GB501"]


@pytest.mark.parametrize(("processes", "fits"), [(1, False), (7, False), (8, True), (16, True)])
def test_the_defaults_fit_eight_processes_and_not_one(processes: int, fits: bool) -> None:
    """B = A = 1 and G = 8, as its classes say."""
    assert ("GB101" not in lint(processes)) == fits


@pytest.mark.parametrize(
    "config",
    [
        {"bf16": True, "fp16": True},
        {"bf16": True, "fp16": True, "torch_dtype": "float16"},
        {"bf16": True, "torch_dtype": "float32"},
        {"fp16": True, "torch_dtype": "bfloat16"},
        {"bf16_full_eval": True, "fp16_full_eval": True},
    ],
)
def test_two_precisions_at_once_are_refused(config: Json) -> None:
    """Set, or derived from torch_dtype (base_args/model_args.py _init_mixed_precision); one of them
    as false is fine.
    """
    assert "transformers takes at most one" in lint(**config)["GV505"]
    assert "GV505" not in lint(**{**config, "fp16": False, "fp16_full_eval": False})


@pytest.mark.parametrize(
    ("version", "config", "code"),
    [
        # torch_dtype alone set the precision, and overwrote both keys
        ((3, 3, 0), {"bf16": True, "fp16": True}, "GV505"),
        # the mode of vLLM followed from the server's address
        ((3, 10, 3), {"use_vllm": True}, "GT502"),
    ],
)
def test_an_older_release_does_not_check_it(version: Version, config: Json, code: str) -> None:
    """Before 3.3.1, and before 3.11.1."""
    assert code not in lint(version=version, **config)


def test_kl_in_the_reward_is_no_kl_in_the_loss() -> None:
    """And with the group's deviation its coefficient cancels out."""
    s = read(beta=0.1, kl_in_reward=True)
    assert (s.kl_placement, s.beta, s.kl_reward_coefficient, s.kl_reward_estimator) == (
        "reward",
        0.0,
        0.1,
        "k1",
    )
    assert "GK503" in lint(beta=0.1, kl_in_reward=True)
    assert read(beta=0.1, advantage_estimator="rloo").kl_placement == "reward"
    assert read(beta=0.1, kl_in_reward=True, scale_rewards="gdpo").kl_placement == "loss"


def test_an_adapter_is_synchronised_with_nothing_and_no_message_says_so() -> None:
    """TRL refuses it."""
    assert "GK501" in lint(sync_ref_model=True, tuner_type="lora", beta=0.04)
    assert "GK501" not in lint(sync_ref_model=True, tuner_type="full", beta=0.04)


def test_ppos_penalty_is_not_grpos() -> None:
    """`swift rlhf` takes the keys of all its methods."""
    said = lint(kl_coef=0.1)
    assert "GRPO does not read it" in said["GV507"]
    assert "GV501" not in said


def unknown_key(release: Version, key: str, value: Any) -> Diagnostic:
    """What lint says of a key that the release does not have."""
    found = lint_recipe(recipe(version=release, **{key: value})).diagnostics
    return next(finding for finding in found if finding.code == "GV501")


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [("train_type", "full", "tuner_type"), ("num_generation_s", 8, "num_generations")],
)
def test_an_unknown_key_is_an_error_with_the_one_that_was_meant(
    key: str, value: Any, meant: str
) -> None:
    """An older release's word, or a typo: the fix is the key of today."""
    assert unknown_key(ms_swift.VERSION, key, value).fixes[0].change == {key: None, meant: value}


def test_the_beginning_of_one_key_is_that_key() -> None:
    """As argparse has it; of two it is none."""
    assert read(per_device_train=8).per_device_train_batch_size == 8
    # or num_generations_eval
    assert "GV501" in lint(num_generation=8)


def test_null_is_the_word_none_to_ms_swift() -> None:
    """A YAML's values become words of a command line."""
    assert "the text None" in lint(num_generations=None)["GV502"]


def test_text_that_is_a_number_is_one() -> None:
    """YAML 1.1 takes 1e-6 for text; argparse does not mind."""
    assert read(learning_rate="1e-6").learning_rate == 1e-6
    assert "GV502" not in lint(learning_rate="1e-6")


def test_a_script_says_its_processes_in_variables(tmp_path: Path) -> None:
    """On the command itself or exported before; without them there is one process."""
    command = (
        "swift rlhf --rlhf_type grpo --per_device_train_batch_size 8 --reward_funcs "
        "format --dataset a\n"
    )
    for head, processes in (
        ("NPROC_PER_NODE=4 \\\nNNODES=2 \\\n", 8),
        ("export NPROC_PER_NODE=6\n", 6),
        ("", 1),
    ):
        assert lint_text(tmp_path, f"#!/bin/bash\n{head}{command}").setting.processes == processes
    assert lint_text(tmp_path, f"NPROC_PER_NODE=$GPUS \\\n{command}").setting.processes is None


def test_a_yaml_behind_a_script_brings_its_environment(tmp_path: Path) -> None:
    """`swift rlhf FILE`: what the shell has set stays, and the command line wins over the file."""
    (tmp_path / "grpo.yaml").write_text(
        "ENV: {NPROC_PER_NODE: 2}\nrlhf_type: grpo\nnum_generations: 4\nbeta: 0.1\n"
    )
    found = lint_text(tmp_path, "swift rlhf grpo.yaml --beta 0.2\n").setting
    assert (found.processes, found.num_generations, found.beta) == (2, 4, 0.2)
    assert lint_text(tmp_path, "NPROC_PER_NODE=4 swift rlhf grpo.yaml\n").setting.processes == 4
    assert read_recipe(load_recipe(tmp_path / "grpo.yaml", Options())).setting.processes == 2


def test_megatrons_steps_a_generation_are_optimizer_steps(tmp_path: Path) -> None:
    """Two steps of 16 completions per rollout; four data ranks of 8 GPUs in micro-batches of 2."""
    text = (
        "NPROC_PER_NODE=8 megatron rlhf --rlhf_type grpo --micro_batch_size 2 "
        "--global_batch_size 16 \\\n"
        "--steps_per_generation 2 --num_generations 4 --tensor_model_parallel_size 2 "
        "--train_iters 100 --lr 1e-6\n"
    )
    verdict = lint_text(tmp_path, text)
    s = verdict.setting
    assert (
        planning.completions_per_rollout(s),
        planning.completions_per_step(s),
        planning.steps_per_rollout(s),
    ) == (
        32,
        16,
        2,
    )
    assert (planning.total_steps(s), s.learning_rate) == (100, 1e-6)
    assert not [finding for finding in verdict.diagnostics if finding.severity == "error"]


def test_another_training_is_no_grpo() -> None:
    """Without rlhf_type `swift rlhf` trains DPO."""
    with pytest.raises(UserError, match="rlhf_type is dpo, the default"):
        read_recipe(Recipe("ms-swift", ms_swift.VERSION, {"beta": 0.1}))


def test_held_out_prompts_that_fill_no_batch_are_never_scored() -> None:
    """ms-swift always drops the last evaluation batch."""
    sizes = {"per_device_eval_batch_size": 8, "split_dataset_ratio": 0.01}
    assert (
        "2 of 10 held-out prompts" in lint(4, 1000, per_device_train_batch_size=8, **sizes)["GE502"]
    )
    assert "GE501" in lint(4, 100, per_device_train_batch_size=8, **sizes)


@pytest.mark.parametrize(
    ("release", "key"),
    [
        ((3, 10, 3), "train_type"),
        ((4, 0, 4), "train_type"),
        ((4, 0, 0), "tuner_type"),
        ((3, 3, 1), "num_infer_workers"),
        ((3, 5, 3), "vllm_device"),
        ((3, 12, 6), "overwrite_output_dir"),
        ((3, 10, 0), "kl_in_reward"),
    ],
)
def test_a_release_takes_its_own_words(release: Version, key: str) -> None:
    """As the arguments of that release, whose parser lets no other key pass."""
    assert key in ms_swift.known(release)
    value = ms_swift.known(release)[key].default or "x"
    assert "GV501" not in lint(version=release, **{key: value})


@pytest.mark.parametrize(
    ("release", "key", "near"),
    [
        ((4, 1, 0), "train_type", "tuner_type"),
        ((3, 10, 3), "tuner_type", "train_type"),
        ((3, 9, 3), "kl_in_reward", "3.10.0"),
    ],
)
def test_a_word_of_another_release_is_named_with_its_own(
    release: Version, key: str, near: str
) -> None:
    """Its successor or predecessor, or the release that it came with."""
    found = unknown_key(release, key, "full")
    assert near in found.message or near in found.fixes[0].change


def test_the_tuner_of_release_3_is_read() -> None:
    """``train_type: full`` has the learning rate of full training, and no adapter."""
    s = read(version=(3, 10, 3), train_type="full")
    assert (s.lora, s.learning_rate) == (False, 1e-5)
    assert read(version=(3, 8, 0), scale_rewards=False).scale_rewards == "none"


@pytest.mark.parametrize(
    "config",
    [
        {"use_vllm": True, "micro_batch_size": 2, "global_batch_size": 16},
        {
            "use_vllm": True,
            "micro_batch_size": 2,
            "colocate_groups": [["train", "rollout"]],
            "rollout": {"gpus": 4},
        },
    ],
)
def test_vllm_needs_no_mode_with_megatron(config: Json) -> None:
    """`megatron rlhf`, with --use_ray too, does not run the check of `swift rlhf`."""
    assert "GT502" in lint(use_vllm=True)
    assert "GT502" not in lint(**config)


def test_a_recipe_for_megatron_has_no_key_of_another_release(tmp_path: Path) -> None:
    """Its keys are in no table, so they choose no release."""
    keys = "micro_batch_size: 2\nglobal_batch_size: 16\nlr: 1e-6\nloss_type: real\n"
    found = lint_text(tmp_path, f"rlhf_type: grpo\n{keys}", "grpo.yaml")
    assert found.recipe.version == ms_swift.VERSION
    assert "GL503" in codes_of(found.diagnostics)


@pytest.mark.parametrize("release", ms_swift.releases()[::8])
def test_every_release_reads_an_empty_recipe(release: Version) -> None:
    """Its defaults may be of another type, or none: ``top_k`` was None once."""
    s = read(version=release)
    assert (s.beta, s.num_generations, s.loss_type) == (0.04, 8, "grpo")
