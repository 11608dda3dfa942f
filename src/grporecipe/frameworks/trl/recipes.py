"""TRL's and Open-R1's recipes: the key of each field of a setting, reading and writing.

A written recipe states every number that affects the training, including defaults. Sources: trl
trainer/grpo_config.py by release (keys.json), scripts/grpo.py; transformers training_args.py;
open-r1 README (its launch). The estimators' gradients and the defaults of EasyR1, verl and ms-swift
are compared in docs/reference/frameworks.md.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from grporecipe.fields.lora import as_modules
from grporecipe.fields.reading import collect_converted, release_defaults
from grporecipe.files import Config, without
from grporecipe.frameworks.trl.keys import BACK, NAMES, RENAMES, is_async, known, span
from grporecipe.model.framework import ABSENT, RELEASE, Field, Framework, NativeChange, Values
from grporecipe.model.planning import save_every, total_steps
from grporecipe.model.recipe import KeySpec, KeySpecs, Recipe
from grporecipe.model.releases import KeyTable
from grporecipe.model.setting import ROWS, Setting, Version
from grporecipe.model.values import Fields, Value, convert, model_size, read_mapping, without_none

# Renamed keys are read under their new name, so that the arithmetic is the one the author meant.
# GV101 reports them.
RENAMED = {
    **{old: new for old, new in RENAMES.items() if new in ROWS or old in ROWS},
    "use_liger_loss": "use_liger_kernel",
}
# read in every version because their meaning is clear; GV101 reports versions without them
EXTRA = {
    "warmup_ratio": KeySpec("float?", None),
    "split_batches": KeySpec("bool?", None),
    "tp_size": KeySpec("int?", None),
    "num_processes": KeySpec("int?", None),
}
# Sizes that another trainer may count differently: many generate G completions for each prompt of a
# batch.
BATCH_KEYS = frozenset(
    [
        "per_device_train_batch_size",
        "steps_per_generation",
        "generation_batch_size",
        "per_device_eval_batch_size",
        "num_generations_eval",
        "auto_find_batch_size",
        "accelerator_config",
        "accelerator_config.split_batches",
    ]
)
# the meaning of a bool in every release
SCALES = {"True": "group", "False": "none"}


def read_strategy(value: Any) -> str:
    """Return a strategy (no, steps, epoch). ``no`` without quotes is false in YAML."""
    return "no" if str(value) in ("False", "None") else str(value)


def read_steps(count: int | None) -> int | None:
    """Return a number of steps; -1 means unset."""
    if count is not None and count >= 0:
        return count
    return None


def _epochs(values: Values) -> Any:
    """Return the epochs. If they are unset or -1, a number of steps overrides them."""
    epochs = values.stated.get("num_train_epochs", ABSENT)
    if read_steps(values.stated.get("max_steps")) is None:
        return epochs
    if epochs is ABSENT or (epochs or 0) <= 0:
        return None
    return epochs


def _save_steps(values: Values) -> Any:
    is_other = read_strategy(values.stated.get("save_strategy", "steps")) != "steps"
    if is_other:
        return None
    return values.stated.get("save_steps", ABSENT)


def _warmup(values: Values) -> Any:
    """Return the warmup in steps, which win, or as a share of all. Transformers 4 has no shares in
    ``warmup_steps``.
    """
    steps = values.stated.get("warmup_steps")
    ratio = values.stated.get("warmup_ratio")
    if ratio and not steps:
        return ratio
    has_ratio = "warmup_ratio" in known(values.recipe.version) and values.recipe.version < (
        0,
        27,
        2,
    )
    if steps is not None and steps < 1 and has_ratio:
        if steps >= 0:
            return 0
        return steps
    return ABSENT if steps is None else steps


def _rewards(values: Values) -> Any:
    """Return the number of rewards: a recipe holds the list, a setting its length."""
    rewards = values.stated.get("reward_funcs")
    return (
        len(rewards) + bool(values.stated.get("reward_model_name_or_path"))
        if isinstance(rewards, list)
        else ABSENT
    )


def read_split(values: Values) -> Any:
    """Return whether a batch is split among the processes, by accelerate's configuration."""
    split = read_mapping(values.stated.get("accelerator_config")).get(
        "split_batches", values.stated.get("split_batches")
    )
    return ABSENT if split is None else bool(split)


def _inside(name: str, word: str) -> Field:
    """Return the row of a parallel size inside a mapping."""

    def size(values: Values) -> Any:
        inside = read_mapping(values.stated.get("parallelism_config")).get(
            word, values.stated.get(word)
        )
        return (
            inside
            if isinstance(inside, int) and not isinstance(inside, bool) and inside > 0
            else ABSENT
        )

    return Field(name, f"parallelism_config.{word}", derive=size)


def _length(weights: Any) -> int | None:
    if isinstance(weights, list):
        return len(weights)
    return None


def _as_json(kwargs: Any) -> str | None:
    mapping = read_mapping(kwargs)
    if mapping:
        return json.dumps(mapping, sort_keys=True)
    return None


# Keys that affect the training, in the order of a recipe. Every other key is written only if it is
# not the default.
ALWAYS: Sequence[str] = NAMES["always"]
# Fields whose key has another name, whose value needs a conversion, or that the functions below
# write.
CONVERTED = (
    Field("epochs", "num_train_epochs", derive=_epochs),
    Field(
        "evaluates",
        "eval_strategy",
        RELEASE,
        read=lambda word: read_strategy(word) != "no",
        plain=False,
    ),
    Field("lora", "use_peft", RELEASE, read=bool, plain=False),
    *(
        Field(name, key, RELEASE, fixable=False, judged=name == "lora_alpha", plain=False)
        for name, key in (
            ("lora_rank", "lora_r"),
            ("lora_alpha", "lora_alpha"),
            ("lora_dropout", "lora_dropout"),
        )
    ),
    Field(
        "lora_targets", "lora_target_modules", RELEASE, read=as_modules, fixable=False, plain=False
    ),
    Field("rewards", "reward_funcs", derive=_rewards, fixable=False),
    Field(
        "parameters",
        "model_name_or_path",
        fixable=False,
        derive=lambda values: (
            model_size(str(values.stated.get("model_name_or_path") or "")) or ABSENT
        ),
    ),
    Field("split_batches", "accelerator_config.split_batches", derive=read_split),
    _inside("tensor_parallel_size", "tp_size"),
    _inside("sequence_parallel_size", "sp_size"),
    _inside("context_parallel_size", "cp_size"),
    Field(
        "scale_rewards",
        "scale_rewards",
        RELEASE,
        read=lambda word: SCALES.get(str(word), str(word)),
        plain=False,
    ),
    Field("max_steps", "max_steps", RELEASE, read=read_steps, plain=False),
    Field(
        "warmup_steps",
        "warmup_steps",
        derive=_warmup,
        also=frozenset({"warmup_steps", "warmup_ratio"}),
    ),
    Field("eval_strategy", "eval_strategy", RELEASE, read=read_strategy, plain=False),
    Field("save_strategy", "save_strategy", RELEASE, read=read_strategy, plain=False),
    Field("save_steps", "save_steps", derive=_save_steps),
    Field(
        "reward_weights",
        "reward_weights",
        RELEASE,
        fixable=False,
        plain=False,
        read=_length,
        # a setting holds their number
        write=lambda _: None,
    ),
    Field(
        "generation_kwargs",
        "generation_kwargs",
        RELEASE,
        judged=False,
        write=json.loads,
        read=_as_json,
    ),
    Field(
        "gradient_checkpointing",
        "gradient_checkpointing",
        RELEASE,
        read=lambda is_on: is_on is True or is_on == "unsloth",
    ),
    Field("vllm_mode", "vllm_mode", RELEASE, write=lambda mode: mode or None),
    *(
        Field(name, name, RELEASE, plain=False)
        for name in (
            "lr_scheduler_type",
            "eval_steps",
            "per_device_eval_batch_size",
            "num_generations_eval",
            "minimum_learning_rate_ratio",
        )
    ),
)
# Fields that TRL has a key for under their own name.
SAME = {name for name, known in ROWS.items() if known.native} - {
    row.name for row in CONVERTED if row.key != row.name
}


def _by_release(row: Field) -> Field:
    """Return a row with the key that the newest release has, and the one before it was renamed."""
    key = RENAMES.get(row.key, row.key)
    old = BACK.get(key, "")
    added = span(key)
    known_before = span(old)
    if row.type != RELEASE or added is None or known_before is None:
        return row
    before = {added[0]: old} if known_before[0] < added[0] else {}
    return replace(row, key=key, before=before)


OTHERS = sorted(SAME.difference(ALWAYS, (row.name for row in CONVERTED)))
FIELDS = (
    *(_by_release(Field(name, name, RELEASE, always=True)) for name in ALWAYS),
    *map(_by_release, CONVERTED),
    *(_by_release(Field(name, name, RELEASE, judged=ROWS[name].judged)) for name in OTHERS),
)


def collect(framework: Framework, recipe: Recipe) -> Values:
    """Return the relevant keys, with the types that TRL sees."""
    takes = _readable(framework, recipe.version)
    if recipe.vendored is not None:
        takes = KeyTable({**EXTRA, **recipe.vendored})
    values = collect_converted(framework, recipe, takes, RENAMED, _convert)
    return replace(values, bad=values.bad | BATCH_KEYS) if has_own_batches(recipe) else values


def has_own_batches(recipe: Recipe) -> bool:
    """Return whether the trainer makes batches in its own way, so that TRL's sizes and checks do
    not apply.
    """
    return is_async(recipe) or recipe.code.own_trainer


@lru_cache(maxsize=128)
def _readable(framework: Framework, version: Version) -> KeyTable:
    return KeyTable({**EXTRA, **framework.takes(version)})


def _convert(value: Any, kind: str) -> Value:
    """Convert a value as `convert` does, but accept 8.0 for a count, which GV104 reports."""
    converted = convert(value, kind)
    return converted if converted.value is None else Value(converted.value)


def unstated(values: Config, version: Version) -> Fields:
    """Return the behaviour of releases that do not have a key yet."""
    loss = "bnpo" if version >= (0, 16, 0) else "grpo"
    before = {
        "loss_type": loss,
        "use_bias_correction_kl": None,
        # its own process, or up to 0.15 its own GPU
        "vllm_mode": "server",
        "vllm_importance_sampling_correction": False,
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_max": values.get("vllm_importance_sampling_cap"),
    }
    return without(before, values)


def keys_of(values: Values) -> dict[str, str]:
    """Return the key of the warmup if it is a share and no steps are set, which win."""
    is_share = values.stated.get("warmup_ratio") and not values.stated.get("warmup_steps")
    if is_share:
        return {"warmup_steps": "warmup_ratio"}
    return {}


def derive_launch(values: Values, fields: Config) -> Fields:
    """Return the processes, if only the recipe states them, and the GPUs that one process sees."""
    processes = fields["processes"]
    if processes is None:
        processes = values.stated.get("num_processes")
    return {"processes": processes, "visible_gpus": values.recipe.launch.visible_gpus}


def change_warmup(value: Any, _: Recipe, s: Setting, __: Config) -> Fields:
    """Return the change of keys for another warmup. A recipe may have an own key for a share."""
    if s.key("warmup_steps") != "warmup_ratio":
        return {"warmup_steps": value}
    return (
        {"warmup_ratio": value} if value < 1 else {"warmup_steps": int(value), "warmup_ratio": None}
    )


def change_evaluates(value: Any, *_: Any) -> Fields | None:
    """Return the change of keys that switches evaluation off. None for on, because no single key
    states the data.
    """
    if value:
        return None
    return {"eval_strategy": "no"}


def _change_inside(row: Field) -> NativeChange:
    """Return the change of one size inside a mapping. The rest of the mapping stays."""
    key, _, word = row.key.partition(".")

    def change(value: Any, recipe: Recipe, _: Setting, fields: Config) -> Fields:
        if word in recipe.config:
            return {word: value}
        return {key: {**read_mapping(fields.get(key, recipe.config.get(key))), word: value}}

    return change


SPECIAL: dict[str, NativeChange] = {
    "evaluates": change_evaluates,
    "warmup_steps": change_warmup,
    **{row.name: _change_inside(row) for row in CONVERTED if "." in row.key},
}


EVALUATED = ("per_device_eval_batch_size", "num_generations_eval")
# scale_rewards before TRL 0.22
BOOLEAN_SCALES = {"group": True, "none": False}


def _write_release(framework: Framework, s: Setting, takes: KeySpecs, default: Config) -> Fields:
    """Return the keys of a release that are always written, or whose field is not the default, in
    the table's order.
    """
    native_keys: Fields = {}
    for row in framework.fields:
        key = next((name for name in (row.key, *row.before.values()) if name in takes), None)
        if row.type != RELEASE or not row.plain or key is None:
            continue
        value = getattr(s, row.name)
        kind = takes[key].type
        if value is None and (default.get(row.name) is None or not kind.endswith("?")):
            # the release's default
            continue
        if row.always or value != default.get(row.name):
            native = row.native(value)
            if native is None and not kind.endswith("?"):
                continue
            native_keys[key] = (
                int(native) if isinstance(native, float) and kind.startswith("int") else native
            )
    return native_keys


def native_keys(framework: Framework, s: Setting, version: Version) -> Fields:
    """Return a setting in completions as a recipe's keys and values."""
    takes = framework.takes(version)
    native = _write_release(framework, s, takes, release_defaults(framework, version))
    if native.get("top_k") == 0 and takes["top_k"].default is None:
        # 0 is "all tokens" only since TRL 0.27
        native["top_k"] = None
    if s.steps_per_generation == s.gradient_accumulation_steps:
        # the default, in every release that has it
        native.pop("steps_per_generation", None)
    native |= {**_scaling(s, takes), **_schedule(s, takes), **evaluation(s, EVALUATED)}
    return {**native, **saving(s), **_model(s, takes)}


def _scaling(s: Setting, takes: KeySpecs) -> Fields:
    if "scale_rewards" not in takes:
        return {}
    if takes["scale_rewards"].type.startswith("bool"):
        return {"scale_rewards": BOOLEAN_SCALES.get(s.scale_rewards, True)}
    return {"scale_rewards": s.scale_rewards}


def _schedule(s: Setting, takes: KeySpecs) -> Fields:
    """Return the run's length and its learning rate's schedule."""
    if 0 < s.warmup_steps < 1 and takes["warmup_steps"].type == "int":
        return {**length_and_rate(s), "warmup_ratio": s.warmup_steps}
    warmup = _steps(s.warmup_steps) or 0
    return {**length_and_rate(s), "warmup_steps": warmup}


def length_and_rate(s: Setting) -> Fields:
    """Return the length in optimizer steps if they are known or given, else in epochs; and the
    learning rate's schedule.
    """
    steps = (
        s.max_steps if s.budget_completions is None and not s.ends_with_epochs else total_steps(s)
    )
    length: Fields = {}
    if steps:
        length = {"max_steps": steps}
    elif s.epochs:
        length = {"num_train_epochs": s.epochs}
    if s.minimum_learning_rate_ratio and s.lr_scheduler_type == "cosine":
        ratio = {"min_lr_rate": s.minimum_learning_rate_ratio}
        return {**length, "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": ratio}
    return {**length, "lr_scheduler_type": s.lr_scheduler_type}


def evaluation(s: Setting, names: tuple[str, ...] = ("per_device_eval_batch_size",)) -> Fields:
    """Return the keys of evaluation: when it runs, and the sizes with these names.

    A number of evaluations is spread over the steps if these are known.
    """
    if not s.evaluates or s.eval_strategy == "no":
        return {"eval_strategy": "no"}
    sizes = without_none({name: getattr(s, name) for name in names})
    total = total_steps(s)
    if s.evaluations and total:
        return {"eval_strategy": "steps", "eval_steps": max(total // s.evaluations, 1), **sizes}
    native: Fields = {"eval_strategy": s.eval_strategy or "steps", **sizes}
    return native if s.eval_steps is None else {**native, "eval_steps": _steps(s.eval_steps)}


def saving(s: Setting) -> Fields:
    """Return the keys of saving checkpoints."""
    every = save_every(s.replace({"save_steps": None})) if s.checkpoints else s.save_steps
    if s.save_strategy not in (None, "steps"):
        return {"save_strategy": s.save_strategy}
    if every is None:
        return {}
    return {"save_strategy": "steps", "save_steps": _steps(every)}


def _model(s: Setting, takes: KeySpecs) -> Fields:
    sizes = {
        "tp_size": s.tensor_parallel_size,
        "cp_size": s.context_parallel_size,
        "sp_size": s.sequence_parallel_size,
    }
    large = {name: size for name, size in sizes.items() if size > 1}
    native: Fields = {}
    # TRL's weights are float32 unless a recipe sets another type
    if s.weights_dtype == "bfloat16":
        key = "dtype" if "dtype" in takes else "torch_dtype"
        native[key] = "bfloat16"
    if s.lora:
        alpha = s.lora_alpha
        # a whole number is the form of keys
        if alpha == int(alpha):
            alpha = int(alpha)
        native |= {
            "use_peft": True,
            "lora_r": s.lora_rank,
            "lora_alpha": alpha,
            "lora_dropout": s.lora_dropout,
        }
        if s.lora_targets:
            native["lora_target_modules"] = list(s.lora_targets)
    if large:
        native["parallelism_config"] = large
    return native


def _steps(every: float) -> float:
    """Return a frequency in optimizer steps, or below 1 as a share of all."""
    return int(every) if every >= 1 else every
