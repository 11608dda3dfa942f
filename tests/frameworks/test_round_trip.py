"""A key of a recipe is in its translation, or in the list of what is lost: for every pair of frameworks, key by key."""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from grporecipe.fields.recipes import read_recipe
from grporecipe.frameworks.easyr1.recipes import CHOICES
from grporecipe.frameworks.verl.keys import SINCE
from grporecipe.model import planning
from grporecipe.model.framework import FRAMEWORKS, known_keys
from grporecipe.model.recipe import KeySpec, Recipe
from grporecipe.model.setting import Setting
from grporecipe.reading.load import Options, build_recipe, parse_recipe
from grporecipe.translate import Translation, translate
from support import examples, known_recipes

NAMES = sorted(FRAMEWORKS)
TRL_BASE = {"model_name_or_path": "Qwen/Qwen2.5-0.5B", "max_steps": 16, "use_vllm": True, "beta": 0.04}
BASE: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("trl", "open-r1", "unsloth"), TRL_BASE),
    "ms-swift": {"rlhf_type": "grpo", "model": "Qwen/Qwen2.5-0.5B", "max_steps": 16, "use_vllm": True, "vllm_mode": "colocate"},
    "easyr1": {"data.rollout_batch_size": 16, "worker.actor.global_batch_size": 8, "worker.rollout.n": 8,
               "trainer.n_gpus_per_node": 4},
    "verl": {"data.train_batch_size": 16, "actor_rollout_ref.actor.ppo_mini_batch_size": 8, "trainer.n_gpus_per_node": 4,
             "actor_rollout_ref.rollout.n": 8, "algorithm.adv_estimator": "grpo"},
    "openrlhf": {"rollout.batch_size": 16, "train.batch_size": 64, "rollout.n_samples_per_prompt": 8,
                 "actor.num_gpus_per_node": 4, "algo.advantage.estimator": "group_norm"},
}  # fmt: skip
# Values of keys that take words, besides those of verl's and EasyR1's own tables.
WORDS = {
    "loss_type": ("grpo", "dr_grpo", "bnpo"), "scale_rewards": ("none",), "importance_sampling_level": ("sequence",),
    "lr_scheduler_type": ("cosine", "constant"), "optim": ("adafactor",), "eval_strategy": ("epoch", "steps"),
    "save_strategy": ("no", "epoch"), "vllm_mode": ("server",), "tuner_type": ("lora", "adalora"), "deepspeed": ("zero3",),
    "advantage_estimator": ("rloo",), "vllm_importance_sampling_mode": ("token_mask",), "report_to": ("wandb",),
    "rollout_importance_sampling_mode": ("token_mask",), "torch_dtype": ("bfloat16",), "dtype": ("bfloat16",),
    "actor.lr_scheduler": ("constant",), "algo.kl.estimator": ("k2",), "actor.policy_loss_type": ("gspo",),
    "actor.eps_clip_low_high": ([0.1, 0.3],), "actor.adam.betas": ([0.8, 0.9],), "data.train_files": ("a/b@val",),
    "generation_kwargs": ({"top_a": 1},), "fsdp": ("full_shard",), "optimizer": ("adam",),
    **CHOICES, **SINCE,
}  # fmt: skip
# Sizes, which may change if the plan's numbers are kept, and epochs, which steps override.
SIZES = re.compile(
    r"num_generations|batch_size|gradient_accumulation|steps_per_generation|epochs|max_steps|total_training_steps|num_episodes|num_processes"
)
# Fields that the plan's numbers or other fields hold, or the command (sharding).
PLANNED = frozenset({"framework", "epochs", "loads_reference", "sharding", "loss_average"})
# The words of messages about a field.
SAID_AS = {
    "dataset_name": "dataset_train_split",
    "kl_": "KL",
    "eval_dataset_name": "held-out data",
    "eval_steps": "held-out data",
    "dynamic_batching": "dynamic batching|micro-batches",
    "lora_targets": "modules",
}


def values(key: str, spec: KeySpec) -> list[Any]:
    """Values of a key other than its default."""
    kind, default = spec.type.removeprefix("auto ").rstrip("?"), spec.default
    if key in WORDS:
        found: list[Any] = list(WORDS[key])
    elif kind == "bool" or isinstance(default, bool):
        found = [not default]
    elif kind == "int" or isinstance(default, int):
        found = [1, 3, 64]
    elif kind == "float" or isinstance(default, float):
        found = [0.25, 0.5, 0.9]
    else:
        found = (
            [["a", "b"]]
            if kind == "list" or isinstance(default, list)
            else [{"a": 1}]
            if isinstance(default, dict)
            else ["word"]
        )
    return [value for value in found if value != default]


@st.composite
def recipes(draw: st.DrawFn) -> tuple[Recipe, list[str]]:
    """A recipe with a few keys at other values than the defaults, and these keys."""
    source = draw(st.sampled_from(NAMES))
    takes = FRAMEWORKS[source].takes(FRAMEWORKS[source].version)
    every = sorted(
        key for key in takes if key not in BASE[source] and not SIZES.search(key) and values(key, takes[key])
    )
    held = sorted({*every} & {*FRAMEWORKS[source].keys_at(FRAMEWORKS[source].version).values()})
    keys = draw(st.lists(st.sampled_from(held) | st.sampled_from(every), min_size=1, max_size=4, unique=True))
    config = {key: draw(st.sampled_from(values(key, takes[key]))) for key in keys}
    recipe = build_recipe({**BASE[source], **config}, options(source))
    return recipe, sorted(recipe.config.keys() - BASE[source].keys())


def options(name: str) -> Options:
    """Four processes, and the framework's default release."""
    counts_itself = FRAMEWORKS[name].counts_itself or FRAMEWORKS[name].is_dotted
    return Options(name, FRAMEWORKS[name].version, None if counts_itself else 4, 1000)


def read(recipe: Recipe) -> Setting:
    """Its setting."""
    return read_recipe(recipe).setting


def translated(recipe: Recipe, target: str) -> Translation:
    """Its translation."""
    return translate(read(recipe), target, recipe)


def is_named(name: str, key: str, losses: tuple[str, ...]) -> bool:
    """Whether a list of losses names a field or its key."""
    words = (re.escape(name), re.escape(key), *(word for start, word in SAID_AS.items() if name.startswith(start)))
    return any(re.search(rf"(?<![\w.])({'|'.join(words)})(?![\w.]\w)", loss) for loss in losses)


def silent_keys(recipe: Recipe, keys: Iterable[str], target: str) -> list[str]:
    """Return the keys without which the translation is the same, and that its list does not name.

    A key that states a default of its own framework or of the other one needs no word, nor one that is written anyway.
    """
    done, found, takes = translated(recipe, target), [], known_keys(recipe)
    text = yaml.safe_load(next(iter(done.files.values())))
    empty = read(build_recipe(BASE[target], options(target)))
    for key in keys:
        rest = replace(recipe, config={name: value for name, value in recipe.config.items() if name != key})
        without = translated(rest, target)
        is_default = key in takes and takes[key].default == recipe.config[key]
        is_written = isinstance(text, dict) and text.get(key, takes) == recipe.config[key]
        if (
            is_default
            or is_written
            or (done.files, done.command, done.losses) != (without.files, without.command, without.losses)
        ):
            continue
        here, alone = read(recipe), read(rest)
        key_now = FRAMEWORKS[recipe.framework].renamed.get(key, key)
        names = [name for name, native in here.keys.items() if native in (key, key_now)]
        says_default = any(getattr(here, name) == getattr(alone, name) == recipe.config[key] for name in names)
        says_default |= names == ["epsilon_high"] and here.epsilon_high == here.epsilon
        is_default_there = bool(names) and all(getattr(here, name) == getattr(empty, name) for name in names)
        if not (
            says_default or is_default_there or any(is_named(name, key, done.losses) for name in (*names, key_now))
        ):
            found.append(key)
    return found


def fields_changed(recipe: Recipe, keys: Iterable[str], target: str) -> list[tuple[str, Any, Any]]:
    """Return the fields of these keys that differ after both translations, and that neither list names."""
    before, there = read(recipe), translated(recipe, target)
    back = translated(parse_recipe(Path(*there.files), *there.files.values(), options(target)), recipe.framework)
    after = read(parse_recipe(Path(*back.files), *back.files.values(), options(recipe.framework)))
    losses = (*there.losses, *back.losses)
    return [
        (name, getattr(before, name), getattr(after, name))
        for name in before.given - PLANNED
        if (key := before.keys.get(name, "")) in keys and not is_same(before, after, name)
        and not is_named(name, key, losses) and (before.lora or not name.startswith("lora_"))
    ]  # fmt: skip


def is_same(before: Setting, after: Setting, name: str) -> bool:
    """Whether a field has the same value. Shares of all steps are compared as steps."""
    here, there = (getattr(s, name) for s in (before, after))
    if here == there or name not in ("eval_steps", "save_steps", "warmup_steps"):
        return bool(here == there)
    total = planning.total_steps(before) or 1
    steps = [value * total if value and value < 1 else value or 0 for value in (here, there)]
    return abs(steps[0] - steps[1]) <= max(0.02 * steps[0], 1)


def check_translation(drawn: tuple[Recipe, list[str]], target: str) -> None:
    """No key is silent, and no field changes without a message."""
    assert silent_keys(*drawn, target) == []
    assert fields_changed(*drawn, target) == []


@settings(max_examples=25, deadline=None, derandomize=True)
@given(drawn=recipes(), target=st.sampled_from(NAMES))
def test_no_key_is_lost_without_a_message(drawn: tuple[Recipe, list[str]], target: str) -> None:
    """A few recipes; the slow tier has hundreds."""
    check_translation(drawn, target)


@pytest.mark.slow
@settings(max_examples=examples(1000), deadline=None, derandomize=True)
@given(drawn=recipes(), target=st.sampled_from(NAMES))
def test_no_key_of_many_recipes_is_lost(drawn: tuple[Recipe, list[str]], target: str) -> None:
    """Every framework into every other one; thousands of recipes in the thorough tier."""
    check_translation(drawn, target)


@pytest.mark.slow
@pytest.mark.parametrize("source", NAMES)
def test_no_key_of_a_public_recipe_is_lost(source: str) -> None:
    """Recipes of tests/corpus, five of each framework, into every other one; fifteen in the thorough tier."""
    for row in known_recipes(source)[: examples(15)]:
        recipe = build_recipe(row["config"], options(source))
        for target in NAMES:
            keys = [key for key in recipe.config if key != "rlhf_type" and not SIZES.search(key)]
            assert silent_keys(recipe, keys, target) == [], (row["id"], target)
