"""ms-swift's recipes as ms-swift reads them: its defaults, its words, its scripts."""

from pathlib import Path
from typing import Any

import pytest

from grporecipe.errors import UserError
from grporecipe.fields.recipes import read_recipe
from grporecipe.files import Json, read_own_yaml
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


MEANINGS = read_own_yaml(__file__, "ms_swift.yaml")


@pytest.mark.parametrize("row", MEANINGS.values(), ids=MEANINGS)
def test_keys_mean_what_the_release_makes_of_them(row: Json) -> None:
    """Its defaults, the words of its command line, and what its rules say."""
    version = tuple(row.get("version", ms_swift.VERSION))
    counts = row.get("processes", 8), row.get("prompts"), version
    s, said = read(*counts, **row["config"]), lint(*counts, **row["config"])
    fields, plan, says = (row.get(name, {}) for name in ("fields", "plan", "says"))
    assert {name: getattr(s, name) for name in fields} == fields
    assert {name: getattr(planning, name)(s) for name in plan} == plan
    for code, words in says.items():
        assert words in said[code]
    assert said.keys().isdisjoint(row.get("silent", ()))


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
