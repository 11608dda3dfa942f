"""Read recipes for TRL and Open-R1, with the defaults of the recipe's release filled in.

Sources: trl trainer/grpo_config.py by release (keys.json), transformers training_args.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

from grposweep.frameworks.base import Framework, KeySpec, NativeChange, ParsedRecipe, model_size, read_mapping
from grposweep.frameworks.parsing.values import convert
from grposweep.frameworks.trl.keys import DERIVED, SAME, known
from grposweep.recipe import Recipe
from grposweep.setting import Setting, Version

KEYS = {row.name: row.key for row in DERIVED}
HOLDERS = {name: key.partition(".")[0] for name, key in KEYS.items()}  # the key that a recipe sets
SHARE_KEYS = {**KEYS, "warmup_steps": "warmup_ratio"}

# Read as what they were renamed to, so that the arithmetic is that of the recipe's author; GV101 says so.
RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "vllm_importance_sampling_cap": "vllm_importance_sampling_clip_max",
    "vllm_max_model_len": "vllm_max_model_length",
    "use_liger_loss": "use_liger_kernel",
}
EXTRA = {  # read in every version: their meaning is plain, and GV101 says where they do not exist
    "warmup_ratio": KeySpec("float?", None),
    "split_batches": KeySpec("bool?", None),
    "tp_size": KeySpec("int?", None),
    "num_processes": KeySpec("int?", None),
}
NULLABLE = frozenset(field.name for field in fields(Setting) if "None" in str(field.type))
WORDS = frozenset(field.name for field in fields(Setting) if field.type in (str, str | None))
SCALES = {"True": "group", "False": "none"}  # what a bool means since 0.22, and meant before


def parse(framework: Framework, recipe: Recipe) -> ParsedRecipe:
    """Return the setting, and what of it could not be read."""
    takes = framework.takes(recipe.version)
    values, bad = _values(recipe.config, takes)
    changes: dict[str, Any] = {key: value for key, value in values.items() if key in SAME}
    given = set(changes)
    _derive(values, changes, given, recipe.version)
    unknown = fields_of(bad | set(recipe.unresolved))
    lines = {name: recipe.lines[key] for name in given if (key := _key(name, values)) in recipe.lines}
    processes = recipe.processes if recipe.processes is not None else values.get("num_processes")
    if changes.get("max_steps") is not None and "epochs" not in changes:
        changes["epochs"] = None  # the default does not count
    setting = Setting(
        **{
            **defaults(framework, recipe.version),
            **changes,
            "processes": processes,
            "train_prompts": recipe.train_prompts,
            "launcher": recipe.launch.launcher if recipe.launch else None,
            "visible_gpus": recipe.launch.visible_gpus if recipe.launch else None,
            "given": frozenset({"framework", *given}),  # never empty: that would be an experiment of ours
            "keys": SHARE_KEYS if values.get("warmup_ratio") else KEYS,
            "lines": lines,
        }
    )
    return ParsedRecipe(setting, unknown)


@lru_cache(maxsize=128)
def defaults(framework: Framework, version: Version) -> Mapping[str, Any]:
    """Return the fields of a recipe that sets nothing."""
    takes = framework.takes(version)
    values = {name: key.default for name, key in takes.items()}
    found: dict[str, Any] = {name: value for name, value in values.items() if name in SAME and value is not None}
    found |= {name: None for name in SAME & set(values) if takes[name].type.endswith("?") and values[name] is None}
    _derive({name: values[name] for name in ("scale_rewards", "eval_strategy", "num_train_epochs", "save_steps",
                                             "max_steps", "reward_funcs") if name in values}, found, set(), version)  # fmt: skip
    return {"framework": framework.traits, "version": version, **_before(values, version), **found}


def _before(values: Mapping[str, Any], version: Version) -> dict[str, Any]:
    """What releases did before they had a key for it."""
    return {
        "loss_type": "bnpo" if version >= (0, 16, 0) else "grpo",
        "use_bias_correction_kl": None,
        "vllm_mode": "server",  # a process of its own, or up to 0.15 a GPU of its own
        "vllm_importance_sampling_correction": False,
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_max": values.get("vllm_importance_sampling_cap"),
    }


def _values(config: Mapping[str, Any], takes: Mapping[str, KeySpec]) -> tuple[dict[str, Any], set[str]]:
    """The keys that matter, in the types that TRL would see; and those whose value it could not use."""
    values: dict[str, Any] = {}
    bad: set[str] = set()
    for key, value in config.items():
        name = RENAMED.get(key, key) if value is not None else key
        if key not in takes and name not in takes and key not in EXTRA:
            continue
        if name != key and config.get(name) is not None:
            continue  # the newer word counts
        kind = (takes.get(name) or takes.get(key) or EXTRA[key]).type
        found = convert(value, kind)
        if found.trouble == "type" and found.value is None:
            bad.add(name)
        elif found.value is None and name in SAME - NULLABLE:
            bad.add(name)  # an annotation may allow None where the arithmetic does not
        else:
            values[name] = str(found.value) if name in WORDS and found.value is not None else found.value
    return values, bad


def _derive(values: Mapping[str, Any], changes: dict[str, Any], given: set[str], version: Version) -> None:
    """The fields that are more than a key of the same name."""

    def put(field: str, value: Any) -> None:
        changes[field] = value
        given.add(field)

    if "eval_strategy" in values:
        put("eval_strategy", _strategy(values["eval_strategy"]))
        put("evaluates", changes["eval_strategy"] != "no")
    if "save_strategy" in values:
        put("save_strategy", _strategy(values["save_strategy"]))
        if changes["save_strategy"] != "steps":
            changes["save_steps"] = None
    if "scale_rewards" in values:
        put("scale_rewards", SCALES.get(str(values["scale_rewards"]), str(values["scale_rewards"])))
    _derive_schedule(values, changes, given, version)
    _derive_model(values, put)
    _derive_topology(values, put)


def _derive_schedule(values: Mapping[str, Any], changes: dict[str, Any], given: set[str], version: Version) -> None:
    """max_steps counts from 0 (-1: unset) and overrides the epochs; warmup is steps, or a share."""
    if "num_train_epochs" in values:
        changes["epochs"] = values["num_train_epochs"]
        given.add("epochs")
    if "max_steps" in values:
        steps = values["max_steps"]
        changes["max_steps"] = steps if steps is not None and steps >= 0 else None
        if changes["max_steps"] is not None and (changes.get("epochs") or 0) <= 0:
            changes["epochs"] = None  # -1 beside a number of steps means unset
            given.discard("epochs")
    steps, ratio = values.get("warmup_steps"), values.get("warmup_ratio")
    if steps is not None and steps < 1 and "warmup_ratio" in known(version) and version < (0, 27, 2):
        changes["warmup_steps"] = 0 if steps >= 0 else steps  # transformers 4 has no shares in warmup_steps
    if ratio and not steps:
        changes["warmup_steps"] = ratio
        given.add("warmup_steps")


def _derive_model(values: Mapping[str, Any], put: Callable[[str, Any], None]) -> None:
    if "use_peft" in values:
        put("lora", bool(values["use_peft"]))
    if size := model_size(str(values.get("model_name_or_path") or "")):
        put("parameters", size)
    rewards = values.get("reward_funcs")
    if isinstance(rewards, list):
        put("rewards", len(rewards) + bool(values.get("reward_model_name_or_path")))
    if "reward_weights" in values:
        weights = values["reward_weights"]
        put("reward_weights", len(weights) if isinstance(weights, list) else None)


def _derive_topology(values: Mapping[str, Any], put: Callable[[str, Any], None]) -> None:
    accelerator, parallel = (
        read_mapping(values.get("accelerator_config")),
        read_mapping(values.get("parallelism_config")),
    )
    if values.get("split_batches") is not None or "split_batches" in accelerator:
        put("split_batches", bool(accelerator.get("split_batches", values.get("split_batches"))))
    for field, key in (("tensor", "tp_size"), ("context", "cp_size"), ("sequence", "sp_size")):
        size = parallel.get(key, values.get(key))
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            put(f"{field}_parallel_size", size)


def _strategy(value: Any) -> str:
    """``no`` without quotes is false in YAML."""
    return "no" if value in (False, None, "False", "None") else str(value)


def _key(field: str, values: Mapping[str, Any]) -> str:
    """The key that a field was read from."""
    if field == "warmup_steps" and values.get("warmup_ratio"):
        return "warmup_ratio"
    return HOLDERS.get(field, field)


def fields_of(names: set[str]) -> frozenset[str]:
    """The fields behind keys that could not be read."""
    found = {name for name, key in HOLDERS.items() if key in names} | (names & SAME)
    if "warmup_ratio" in names:
        found.add("warmup_steps")
    return frozenset(found)


def change_warmup(value: Any, _: Recipe, s: Setting, __: Mapping[str, Any]) -> dict[str, Any]:
    """Return the change of keys for another warmup, where a recipe may state a share under a key of its own."""
    if s.key("warmup_steps") != "warmup_ratio":
        return {"warmup_steps": value}
    return {"warmup_ratio": value} if value < 1 else {"warmup_steps": int(value), "warmup_ratio": None}


def change_evaluates(value: Any, *_: Any) -> dict[str, Any] | None:
    """Return the change of keys that ends evaluation; which data to evaluate on, no key alone can say."""
    return None if value else {"eval_strategy": "no"}


def _inside(name: str) -> NativeChange:
    """Return the change of one size inside a mapping; the rest of the mapping stays."""
    key, _, word = KEYS[name].partition(".")

    def change(value: Any, recipe: Recipe, _: Setting, found: Mapping[str, Any]) -> dict[str, Any]:
        if word in recipe.config:
            return {word: value}
        return {key: {**read_mapping(found.get(key, recipe.config.get(key))), word: value}}

    return change


SPECIAL: dict[str, NativeChange] = {
    "gradient_checkpointing": lambda value, *_: {"gradient_checkpointing": value},
    "evaluates": change_evaluates,
    "warmup_steps": change_warmup,
    **{name: _inside(name) for name, key in KEYS.items() if "." in key},
}
