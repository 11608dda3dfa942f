"""LoRA, data and keys without a counterpart: kept, copied or listed by ``translate``, never dropped silently."""

from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig

from grporecipe.fields.recipes import read_recipe, write_recipe
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.setting import Setting
from grporecipe.model.values import flatten
from grporecipe.reading.load import Options, build_recipe, load_recipe, parse_recipe
from grporecipe.translate import read_back, translate, translate_file
from grposweep.config.compose import to_experiment
from grposweep.config.from_setting import native_keys
from grposweep.config.to_setting import read_setting

Compose = Callable[[list[str]], DictConfig]
BASE = {"model_name_or_path": "Qwen/Qwen2.5-0.5B", "num_generations": 8, "max_steps": 10}
LORA = ("lora", "lora_rank", "lora_alpha", "lora_targets")
OPTIM = "actor_rollout_ref.actor.optim"
LISTED = "not translated, so set it yourself if you need it: "


def read(config: dict[str, Any], name: str = "trl") -> Setting:
    """Return a recipe as a setting."""
    return read_recipe(build_recipe({**BASE, **config}, Options(name, processes=8))).setting


@pytest.mark.parametrize("target", FRAMEWORKS)
@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from([1, 8, 64]),
    st.sampled_from([16.0, 48.0]),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([["all-linear"], ["q_proj"], ["q_proj", "o_proj"]]),
)
def test_adapters_are_the_same_in_every_framework(
    target: str, rank: int, alpha: float, dropout: float, modules: list[str]
) -> None:
    """Rank, alpha and modules read back; a dropout that the target does not have is named."""
    s = read(
        {"use_peft": True, "lora_r": rank, "lora_alpha": alpha, "lora_dropout": dropout, "lora_target_modules": modules}
    )
    written = write_recipe(s, target)
    after = read_back(written, target, s)
    assert [getattr(after, name) for name in LORA] == [True, rank, alpha, tuple(modules)]
    assert after.lora_dropout == dropout or any(loss.startswith("lora_dropout=") for loss in written.losses)


def test_a_recipe_without_adapters_gets_none() -> None:
    """Their defaults differ, and mean nothing without LoRA."""
    for source, target in permutations(FRAMEWORKS, 2):
        config: dict[str, Any] = {"rlhf_type": "grpo", "tuner_type": "full"} if source == "ms-swift" else {}
        s = read_recipe(build_recipe(config, Options(source, processes=8))).setting
        assert not read_back(write_recipe(s, target), target, s).lora


@pytest.mark.parametrize(
    ("target", "key"), [("ms-swift", "val_dataset"), ("easyr1", "val_files"), ("openrlhf", "eval.dataset")]
)
def test_held_out_data_keep_their_name(target: str, key: str) -> None:
    """A path or a name on the hub, where both frameworks name such data apart."""
    s = Setting(processes=8, dataset_name="train.parquet", eval_dataset_name="test.parquet")
    text = write_recipe(s, target).recipe
    assert (
        "test.parquet" in text[text.index(key) :].partition("\n")[0] + text[text.index(key) :].partition("\n")[2][:20]
    )


def test_several_data_sets_are_listed_and_not_written_as_one_name() -> None:
    """A setting holds one."""
    script = "python3 -m verl.trainer.main_ppo data.train_files=[a.parquet,b.parquet] algorithm.adv_estimator=grpo\n"
    recipe = parse_recipe(Path("run.sh"), script, Options(processes=8))
    done = translate(read_recipe(recipe).setting, "trl", recipe)
    assert "dataset_name" not in yaml.safe_load(next(iter(done.files.values())))
    assert any(loss.startswith(LISTED) and "a.parquet" in loss for loss in done.losses)


OWN = {
    "output_dir": "out",
    "report_to": ["wandb"],
    "attn_implementation": "sdpa",
    "reward_funcs": ["accuracy"],
    "bf16": False,
}


def test_keys_without_a_counterpart_are_listed() -> None:
    """By name and value, once; a key at its default says nothing."""
    recipe = build_recipe({**BASE, **OWN, "seed": 42, "temperature": 1.0}, Options("trl", processes=8))
    done = translate(read_recipe(recipe).setting, "verl", recipe)
    listed = next(loss for loss in done.losses if loss.startswith(LISTED))
    assert {word.partition("=")[0] for word in listed.removeprefix(LISTED).split(", ")} == OWN.keys()


def test_a_framework_on_trl_takes_them_as_they_are() -> None:
    """Open-R1 has them all under the same names."""
    recipe = build_recipe({**BASE, **OWN, "dtype": "bfloat16"}, Options("trl", processes=8))
    done = translate(read_recipe(recipe).setting, "open-r1", recipe)
    written = yaml.safe_load(next(iter(done.files.values())))
    assert {name: written.get(name) for name in OWN} == OWN
    assert written["torch_dtype"] == "bfloat16"
    assert not any(loss.startswith(LISTED) for loss in done.losses)


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("trl", {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs.min_lr_rate": 0.1}),
        ("verl", {f"{OPTIM}.lr_scheduler_type": "cosine", f"{OPTIM}.min_lr_ratio": 0.1}),
    ],
)
def test_the_lowest_rate_of_a_cosine_is_kept(target: str, wanted: dict[str, Any]) -> None:
    """TRL has it in a mapping, others under a key of its own."""
    rate = {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}}
    recipe = build_recipe({**BASE, **rate}, Options("trl", processes=8))
    done = translate(read_recipe(recipe).setting, target, recipe)
    written = flatten(yaml.safe_load(next(iter(done.files.values()))))
    assert {key: written.get(key) for key in wanted} == wanted
    assert not any("lr_scheduler" in loss for loss in done.losses)


def test_the_other_launches_of_a_script_are_mentioned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One recipe is written, the last."""
    launch = "accelerate launch --num_processes 8 -m trl.scripts.grpo --max_steps 10 --num_generations {}\n"
    script = tmp_path / "run.sh"
    script.write_text(launch.format(8) + launch.format(4))
    assert translate_file(script, "ms-swift", Options(), None) == 0
    out = capsys.readouterr().out
    assert "1 more in this file: one recipe, the one on line 2, is translated" in out
    assert "num_generations: 4" in out


def test_ms_swift_takes_the_keys_of_transformers() -> None:
    """Others of TRL mean something else there, or have another name: they are listed."""
    recipe = build_recipe({**BASE, **OWN}, Options("trl", processes=8))
    done = translate(read_recipe(recipe).setting, "ms-swift", recipe)
    written = yaml.safe_load(next(iter(done.files.values())))
    assert (written["output_dir"], written["bf16"], "reward_funcs" in written) == ("out", False, False)
    listed = next(loss for loss in done.losses if loss.startswith(LISTED))
    assert listed == f'{LISTED}attn_implementation=sdpa, reward_funcs=["accuracy"]'


def test_a_translation_is_linted_by_its_own_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``launch.sh`` names recipe.yaml of its own folder, also where the working directory has another one."""
    (tmp_path / "out").mkdir()
    (tmp_path / "recipe.yaml").write_text("num_generations: 7\n")
    (tmp_path / "out" / "recipe.yaml").write_text("num_generations: 4\nlearning_rate: 1.0e-06\n")
    launch = tmp_path / "out" / "launch.sh"
    launch.write_text("#!/bin/sh\naccelerate launch --num_processes 8 -m trl.scripts.grpo --config recipe.yaml\n")
    monkeypatch.chdir(tmp_path)
    assert parse_recipe(launch, launch.read_text(), Options()).config["num_generations"] == 4


@pytest.mark.parametrize("target", ["trl", "open-r1", "verl"])
def test_what_best_writes_has_the_types_and_further_arguments_of_the_winner(compose: Compose, target: str) -> None:
    """In the framework's own keys, or listed; tests/train/test_best_as_trl.py compares all arguments of TRL."""
    words = ["model.dtype=bfloat16", "trainer.args.disable_dropout=true", "model.lora.enabled=true", "model.lora.r=4"]
    experiment = to_experiment(compose(words))
    done = translate(read_setting(experiment), target, native=native_keys(experiment))
    written = yaml.safe_load(next(iter(done.files.values())))
    if target == "verl":
        assert written["actor_rollout_ref"]["model"]["lora_rank"] == 4
        assert any(
            loss.startswith(LISTED) and "dtype=bfloat16" in loss and "disable_dropout=true" in loss
            for loss in done.losses
        )
    else:
        dtype = "dtype" if target == "trl" else "torch_dtype"
        assert (written[dtype], written["bf16"], written["lora_r"]) == ("bfloat16", True, 4)
        assert written["disable_dropout"] is True


def test_what_ms_swift_says_in_its_own_form_is_translated_or_named() -> None:
    """A tuner under its older name, a list of modules as one word, and a number of rows in the name of the data."""
    data = {"dataset": ["hf::AI/math:en#1000"], "val_dataset": ["AI/math#50"]}
    said = {"model": "m", **data, "tuner_type": "lora", "target_modules": "all-linear"}
    older = {"train_type" if key == "tuner_type" else key: value for key, value in said.items()}
    for config, version in ((said, (4, 0, 4)), (older, (3, 12, 0))):
        recipe = build_recipe({**config, "rlhf_type": "grpo"}, Options("ms-swift", version, processes=8))
        found = translate(read_recipe(recipe).setting, "trl", recipe)
        (listed,) = [line for line in found.losses if line.startswith(LISTED)]
        assert listed == f"{LISTED}dataset=hf::AI/math:en#1000, val_dataset=AI/math#50"
        written = yaml.safe_load(next(iter(found.files.values())))
        assert (written["dataset_name"], written["use_peft"]) == ("AI/math", True)
        assert "vllm_mode" not in written


def lines_of(framework: str, target: str, config: dict[str, Any]) -> tuple[str, str]:
    """What a translation writes, and its list of losses."""
    recipe = build_recipe(config, Options(framework, processes=8))
    found = translate(read_recipe(recipe).setting, target, recipe)
    return next(iter(found.files.values())), "\n".join(found.losses)


@pytest.mark.parametrize("target", ["trl", "open-r1", "unsloth", "ms-swift", "easyr1", "verl", "openrlhf"])
def test_weights_of_rewards_are_copied_or_listed(target: str) -> None:
    """The trained objective is their sum."""
    rewards = {"reward_funcs": ["accuracy_reward", "think_format_reward"], "reward_weights": [1.0, 0.2]}
    text, listed = lines_of("trl", target, {**BASE, **rewards})
    assert "reward_weights:\n- 1.0\n- 0.2" in text or "reward_weights=[1.0, 0.2]" in listed


@pytest.mark.parametrize("target", ["ms-swift", "verl", "openrlhf"])
def test_a_split_that_the_target_cannot_name_is_listed(target: str) -> None:
    """Without it the held-out data are the training data."""
    data = {"data.train_files": "o/math@train", "data.val_files": "o/math@test", "trainer.val_freq": 5}
    text, listed = lines_of("easyr1", target, {**data, "worker.rollout.n": 5})
    assert "data.train_files=o/math@train, data.val_files=o/math@test" in listed
    assert "evaluates nothing" not in listed
    assert "o/math@" not in text


@pytest.mark.parametrize(("target", "names"), [("trl", False), ("easyr1", False), ("open-r1", False), ("verl", True)])
def test_a_recipe_without_rewards_says_so_unless_the_framework_chooses_them(target: str, names: bool) -> None:
    """verl chooses by the data, and nothing else does."""
    keys = {"algorithm.adv_estimator": "grpo", "actor_rollout_ref.rollout.n": 5, "data.train_files": "d.parquet"}
    assert ("reward functions and the columns of the data" in lines_of("verl", target, keys)[1]) != names
    ours = translate(read(BASE), target)  # of a trial, whose rewards its recipe holds already
    assert target != "trl" or "reward" not in "".join(ours.losses)


def test_a_path_of_the_shell_stays_as_it_is_written(tmp_path: Path) -> None:
    """Another folder would be worse than one that has to be written out."""
    script = tmp_path / "run.sh"
    keys = "algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=5 trainer.n_gpus_per_node=8"
    script.write_text(f"python3 -m verl.trainer.main_ppo {keys} data.train_files=$HOME/data/a.parquet\n")
    recipe = load_recipe(script, Options("auto", processes=8))
    found = translate(read_recipe(recipe).setting, "trl", recipe)
    text = next(iter(found.files.values()))
    assert "dataset_name: $HOME/data/a.parquet" in text
    assert "data.train_files=$HOME/data/a.parquet: written as it is" in "\n".join(found.losses)


@pytest.mark.parametrize(
    ("framework", "config"),
    [
        ("verl", {"algorithm.adv_estimator": "grpo", "trainer.project_name": "mine", "actor_rollout_ref.rollout.n": 5}),
        (
            "easyr1",
            {"worker.rollout.n": 5, "worker.reward.reward_function": "math.py:score", "data.prompt_key": "problem"},
        ),
        ("ms-swift", {"rlhf_type": "grpo", "model": "m", "reward_funcs": ["mine"], "external_plugins": ["p.py"]}),
        ("trl", {**BASE, "learning_rate": "1e-6", "reward_funcs": ["accuracy_reward"]}),
    ],
)
def test_a_recipe_translated_to_its_own_framework_keeps_every_key(framework: str, config: dict[str, Any]) -> None:
    """Names of projects, rewards and columns too, and nothing is said to be lost."""
    text, listed = lines_of(framework, framework, config)
    written = flatten(yaml.safe_load(text))
    for key, value in config.items():
        assert written[key] in (value, 1e-6), key
    assert "not translated" not in listed
    assert "reward" not in listed
