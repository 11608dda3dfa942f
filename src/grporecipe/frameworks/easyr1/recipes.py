"""EasyR1: its keys by release, and how its recipes are read and written.

A recipe is dotted keys over its dataclasses. ``keys.json`` is written by
benchmarks/tools/easyr1_keys.py from EasyR1's own classes. Sources: EasyR1 0.3.3
verl/trainer/main.py (OmegaConf: classes, then ``config=``, then the dot-list),
verl/trainer/config.py, verl/workers/*/config.py, verl/trainer/core_algos.py,
verl/workers/fsdp_workers.py.
"""

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from grporecipe.fields import dotted
from grporecipe.fields.lora import lora_rows, one_name
from grporecipe.fields.writing import warmup_change
from grporecipe.files import Config, read_own_yaml
from grporecipe.model.framework import Field, NativeChange, Values, table_of
from grporecipe.model.recipe import Recipe
from grporecipe.model.releases import (
    KeyTable,
    key_span,
    keys_at_release,
    load_table,
    releases_of,
    text,
)
from grporecipe.model.setting import FrameworkTraits, Setting, Version
from grporecipe.model.values import Fields, model_size
from grporecipe.registries import NEWEST

TRAITS = FrameworkTraits("easyr1", "EasyR1", unit="prompts", syntax="dotted")
VERSION: Version = NEWEST["easyr1"]
# before, KL in the loss is in worker.actor: use_kl_loss, kl_loss_coef, kl_loss_type
ALGORITHM_KL: Version = (0, 3, 0)
# the base of EasyR1's own scripts
EXAMPLE = "examples/config.yaml"
ACTOR, ALGORITHM, ROLLOUT = "worker.actor", "algorithm", "worker.rollout"
LORA = f"{ACTOR}.model.lora"
# read under the present name in every version; GV301 reports those that a version does not have
RENAMED = {
    "worker.actor.ulysses_sequence_parallel_size": "worker.actor.ulysses_size",
    "worker.actor.optim.warmup_style": "worker.actor.optim.lr_scheduler_type",
    "trainer.total_episodes": "trainer.total_epochs",
}
_TABLES = read_own_yaml(__file__, "fields.yaml")
# the rows that need code; the others and the order are in fields.yaml
OWN = (
    Field(
        "sequence_parallel_size",
        f"{ACTOR}.ulysses_size",
        "int",
        1,
        before={(0, 3, 1): f"{ACTOR}.ulysses_sequence_parallel_size"},
    ),
    Field("loads_reference", f"{ALGORITHM}.disable_kl", write=lambda loads: not loads),
    Field(
        "kl_placement", f"{ALGORITHM}.use_kl_loss", before={ALGORITHM_KL: f"{ACTOR}.use_kl_loss"}
    ),
    Field(
        "kl_estimator",
        f"{ALGORITHM}.kl_penalty",
        write=dotted.estimator_word,
        before={ALGORITHM_KL: f"{ACTOR}.kl_loss_type"},
    ),
    Field("kl_reward_estimator", f"{ALGORITHM}.kl_penalty", write=dotted.estimator_word),
    Field("beta", f"{ALGORITHM}.kl_coef", before={ALGORITHM_KL: f"{ACTOR}.kl_loss_coef"}),
    Field(
        "epsilon",
        f"{ACTOR}.clip_ratio_low",
        "float",
        0.2,
        before={ALGORITHM_KL: f"{ACTOR}.clip_ratio"},
    ),
    Field(
        "epsilon_high",
        f"{ACTOR}.clip_ratio_high",
        "float",
        0.3,
        before={ALGORITHM_KL: f"{ACTOR}.clip_ratio"},
    ),
    dotted.clip(f"{ACTOR}.clip_ratio_dual", 3.0),
    dotted.unless("sapo_temperature_pos", f"{ACTOR}.tau_positive", 1.0),
    dotted.unless("sapo_temperature_neg", f"{ACTOR}.tau_negative", 1.05),
    Field("epochs", "trainer.total_epochs", "int?", before={(0, 3, 1): "trainer.total_episodes"}),
    dotted.frequency("save_steps", "trainer.save_freq"),
    dotted.frequency("eval_steps", "trainer.val_freq"),
    Field("dataset_name", "data.train_files", "any", read=one_name, judged=False),
    Field("eval_dataset_name", "data.val_files", "any", read=one_name, judged=False),
    Field(
        "model_name_or_path", f"{ACTOR}.model.model_path", "str", "", read=lambda name: name or None
    ),
    *lora_rows(f"{LORA}.rank", f"{LORA}.alpha", f"{LORA}.target_modules", 64),
    dotted.top_k(f"{ROLLOUT}.top_k"),
)
FIELDS = table_of(_TABLES["fields"], OWN)
CHOICES: Mapping[str, list[str]] = _TABLES["choices"]
# Keys that EasyR1 overwrites with another key's value after reading.
OVERWRITTEN: Mapping[str, str] = _TABLES["overwritten"]


table = partial(load_table, __package__)
releases = partial(releases_of, __package__)


@cache
def known(version: Version = VERSION) -> KeyTable:
    """Return the keys of a release. EasyR1 overwrites those whose type begins with ``auto``."""
    return keys_at_release(table()["keys"], version)


def span(name: str) -> tuple[Version, Version | None] | None:
    """Return the releases that added and removed a key (None: still there); None for a key that
    never existed.
    """
    return key_span(table()["keys"].get(name))


@cache
def example(version: Version) -> Config:
    """Return ``examples/config.yaml`` of a release, the base of EasyR1's own scripts and most
    others.
    """
    name = text(max(release for release in releases() if release <= version))
    return dict(table()["examples"][name])


def base_config(name: str, version: Version) -> Config | None:
    """Return EasyR1's own example if the name is its path; None for other names."""
    if name.removeprefix("./") == EXAMPLE:
        return example(version)
    return None


# EasyR1's losses under TRL's names; its token mean is taken over all ranks.
LOSSES = {"default": "dapo", "gspo": "dapo", "gspo_token": "dapo"}
WRITTEN: Mapping[str, list[str]] = _TABLES["written"]


def keys_of(values: Values) -> dict[str, str]:
    """Return the native keys that depend on the recipe's other keys."""
    keys = dotted.key_of_gpus(values)
    if not values.get(f"{ACTOR}.optim.lr_warmup_steps", "int"):
        keys["warmup_steps"] = f"{ACTOR}.optim.lr_warmup_ratio"
    return keys


def derive_kl(values: Values, _: Config) -> Fields:
    """Return the fields of KL. It is in the loss or in the reward, never in both; ``disable_kl``
    switches it off.
    """
    reward = {
        "kl_reward_coefficient": values.number("algorithm.kl_coef"),
        "kl_reward_estimator": _estimator(values.word("algorithm.kl_penalty")),
    }
    if values.recipe.version < ALGORITHM_KL:
        in_loss = values.flag(f"{ACTOR}.use_kl_loss", True)
        name = _estimator(values.word(f"{ACTOR}.kl_loss_type"))
        loss = {"beta": values.number(f"{ACTOR}.kl_loss_coef"), "kl_estimator": name}
    else:
        if values.flag("algorithm.disable_kl"):
            return {"kl_placement": "none", "loads_reference": False}
        in_loss = values.flag("algorithm.use_kl_loss")
        loss = {
            "beta": reward["kl_reward_coefficient"],
            "kl_estimator": reward["kl_reward_estimator"],
        }
    fields = {"kl_placement": "reward", **reward}
    if in_loss:
        fields = {"kl_placement": "loss", **loss}
    return {"loads_reference": True, **fields}


def _estimator(word: str) -> str:
    return dotted.ESTIMATORS.get(word, word)


def derive_loss(values: Values, _: Config) -> Fields:
    """Return the loss in TRL's terms. In TRL a ratio per sequence is an importance sampling
    level.
    """
    word = values.word(f"{ACTOR}.loss_type", "default")
    average = values.word(f"{ACTOR}.loss_avg_mode", "token")
    fields: Fields = {
        "loss_type": LOSSES.get(word, word),
        "importance_sampling_level": "token",
        "scale_rewards": "group",
    }
    if word in LOSSES and average == "seq":
        fields["loss_type"] = "grpo"
    if word.startswith("gspo"):
        fields["importance_sampling_level"] = "sequence"
    if values.recipe.version < ALGORITHM_KL:
        fields["delta"] = None
    return fields


def derive_length(values: Values, fields: Config) -> Fields:
    """Return warmup and epochs. Warmup in rollouts overrides a share, and epochs are ignored if
    steps are set.
    """
    steps = values.get(f"{ACTOR}.optim.lr_warmup_steps", "int")
    states_epochs = {"trainer.total_epochs", "trainer.total_episodes"} & values.given
    length: Fields = {
        "warmup_steps": values.number(f"{ACTOR}.optim.lr_warmup_ratio"),
        "parameters": model_size(fields["model_name_or_path"] or ""),
    }
    if steps is not None:
        length["warmup_steps"] = float(steps)
    if fields["max_steps"] is not None and not states_epochs:
        length["epochs"] = None
    # A fork whose workers ask a server has no engine of its own, whose limit would count.
    if any(key.startswith(f"{ROLLOUT}.server_url") for key in values.given):
        length["max_batched_tokens"] = None
    return length


DERIVED = (
    dotted.derive_processes,
    derive_kl,
    derive_loss,
    derive_length,
    dotted.derive_shared(f"{ACTOR}.optim.betas"),
)


def _placed(value: Any, _: Recipe, s: Setting, __: Config) -> Fields | None:
    if value == "none" and s.version >= ALGORITHM_KL:
        return {"algorithm.disable_kl": True}
    if value in ("loss", "reward"):
        return {s.key("kl_placement"): value == "loss"}
    return None


SPECIAL: dict[str, NativeChange] = {
    "processes": dotted.change_gpus,
    "kl_placement": _placed,
    "warmup_steps": warmup_change(
        f"{ACTOR}.optim.lr_warmup_steps", f"{ACTOR}.optim.lr_warmup_ratio"
    ),
}
