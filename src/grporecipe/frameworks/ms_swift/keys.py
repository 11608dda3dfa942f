"""The keys of `swift rlhf` by release, and how its parser reads them.

`make ms-swift-release` (benchmarks/tools/ms_swift_keys.py) writes ``keys.json``: the newest release
from ms-swift's own parser, and what others had otherwise, back to 3.1.1, the first with GRPO. Other
sources: ms-swift 4.6.0 cli/main.py parse_yaml_args (a YAML's values become words of a command
line), argparse (abbreviations).

The second half is of ms-swift's Megatron back-end (`megatron rlhf --rlhf_type grpo`), whose sizes
and steps have other units. A step takes ``global_batch_size`` completions in micro-batches of
``micro_batch_size`` a data rank; ``steps_per_generation`` counts optimizer steps, not micro-steps.
Its other keys are not judged, because their table requires Megatron itself. Sources: ms-swift 4.6.0
megatron/arguments/megatron_args.py, examples/megatron/grpo.
"""

import json
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

from grporecipe.files import Config, read_own_yaml
from grporecipe.model.recipe import KeySpec, Recipe
from grporecipe.model.releases import KeyTable, change_at, key_span, load_table, releases_of
from grporecipe.model.setting import FrameworkTraits, Version
from grporecipe.model.values import Fields, Value, convert, listed
from grporecipe.registries import NEWEST

# environment variables in a YAML file, no key of the parser
ENVIRONMENT = "ENV"


TRAITS = FrameworkTraits("ms-swift", "ms-swift", extends_trl=True)
VERSION: Version = NEWEST["ms-swift"]
# rlhf_trainers/rollout_mixin.py _setup_teacher
TAKES_ALL_FOR_TAUGHT: Version = (4, 4, 0)
# vllm_mode has no default since this release
PLACE_IS_CHECKED: Version = (3, 11, 1)


table = partial(load_table, __package__)
releases = partial(releases_of, __package__)


@lru_cache(maxsize=128)
def _entries(version: Version) -> Mapping[str, list[Any]]:
    """Return type, default and choices of each key, for the newest release that is not newer than a
    version.
    """
    entries: dict[str, list[Any]] = dict(table()["keys"])
    for name, changes in table()["earlier"].items():
        entries.pop(name, None)
        last = change_at(changes, version)[1:]
        if last:
            entries[name] = [*last]
    return entries


@lru_cache(maxsize=128)
def known(version: Version = VERSION) -> KeyTable:
    """Return every key that a release takes, with its type and default."""
    return KeyTable(
        (name, KeySpec(entry[0], entry[1])) for name, entry in _entries(version).items()
    )


def choices(name: str, version: Version) -> tuple[str, ...]:
    """Return the choices of a key; empty if any value is allowed."""
    entry = _entries(version)[name]
    if len(entry) > 2:
        return tuple(entry[2])
    return ()


@lru_cache(maxsize=1024)
def span(name: str) -> tuple[Version, Version | None] | None:
    """Return the releases that added and removed a key (None: still there); None for a key that
    never existed.
    """
    if name not in table()["earlier"]:
        if name in table()["keys"]:
            return (releases()[0], None)
        return None
    return key_span(table()["earlier"][name])


@lru_cache(maxsize=4096)
def spelled(name: str, version: Version) -> str:
    """Return the key that the parser understands: dashes count as underscores, and a unique prefix
    is enough.
    """
    plain = name.replace("-", "_")
    if plain in known(version) or plain == ENVIRONMENT:
        return plain
    meant = [key for key in known(version) if key.startswith(plain)]
    return meant[0] if len(meant) == 1 else plain


def read_value(value: Any, kind: str) -> Value:
    """Read a value as the parser does, from its text: ``null`` is the word None, and ``8.0`` is no
    whole number.
    """
    if kind.startswith("list"):
        trouble = "type" if value in ([], None) else ""
        return Value(listed(value), trouble)
    if isinstance(value, list):
        return Value(None, "type") if len(value) != 1 else read_value(value[0], kind)
    if value is None:
        return Value(None, "type")
    text = json.dumps(value) if isinstance(value, dict) else str(value)
    converted = convert(text, kind.rstrip("?"))
    return Value(converted.value) if converted.trouble == "string" else converted


ANYTHING = KeySpec("any", None)
MARKS = frozenset(["micro_batch_size", "global_batch_size", "tensor_model_parallel_size"])
TABLES = read_own_yaml(__file__, "names.yaml")
# keys and their defaults
COUNTS: Config = TABLES["counts"]
NUMBERS = {"lr": None, "lr_warmup_fraction": None}
MEGATRON_KEYS: dict[str, str] = TABLES["megatron"]


def is_megatron(recipe: Recipe) -> bool:
    """Return whether a recipe is for the Megatron back-end: by its command, or by keys that the
    other one does not have.
    """
    return bool(MARKS & recipe.config.keys()) or (recipe.launch.launcher == "megatron")


def keys_of_recipe(recipe: Recipe) -> KeyTable:
    """Return the keys that a recipe may set. For Megatron's back-end, which has no table, all keys
    are allowed.
    """
    takes = known(recipe.version)
    if is_megatron(recipe):
        return KeyTable({**dict.fromkeys(recipe.config, ANYTHING), **takes})
    return takes


def read_numbers(config: Config) -> Fields:
    """Return the numbers for sizes and schedule. An unreadable value is replaced by its default."""
    numbers: Fields = {**COUNTS, **NUMBERS}
    for name in numbers.keys() & config.keys():
        kind = "int" if name in COUNTS else "float"
        value = read_value(config[name], kind)
        if not value.trouble:
            numbers[name] = value.value
    return numbers


def data_ranks(v: Config, processes: int | None) -> int | None:
    """Return the number of data ranks."""
    shared = (
        v["tensor_model_parallel_size"]
        * v["pipeline_model_parallel_size"]
        * v["context_parallel_size"]
    )
    return None if processes is None else max(processes // max(shared, 1), 1)


def completions(v: Config) -> int:
    """Return the completions of a rollout, as given or from its number of optimizer steps."""
    total = v["generation_batch_size"]
    steps = v["steps_per_generation"]
    if total is None:
        total = v["global_batch_size"]
        if steps is not None:
            total *= steps
    return int(total)


def megatron_fields(config: Config, processes: int | None) -> Fields:
    """Return the fields of a setting in micro-steps of the data ranks. Sizes that do not divide are
    left to GB503.
    """
    v = read_numbers(config)
    ranks, step, rollout = data_ranks(v, processes), v["global_batch_size"], completions(v)
    accumulation = max(step // max(v["micro_batch_size"] * (ranks or 1), 1), 1)
    fields = {
        "data_processes": ranks,
        "tensor_parallel_size": v["tensor_model_parallel_size"],
        "pipeline_parallel_size": v["pipeline_model_parallel_size"],
        "context_parallel_size": v["context_parallel_size"],
        "per_device_train_batch_size": v["micro_batch_size"],
        "gradient_accumulation_steps": accumulation,
        "generation_batch_size": rollout,
        "steps_per_generation": accumulation * max(rollout // max(step, 1), 1),
        "max_steps": v["train_iters"],
        "epochs": v["num_train_epochs"],
        "warmup_steps": v["lr_warmup_fraction"] or float(v["lr_warmup_iters"]),
        "evaluates": False,
        "eval_strategy": "no",
    }
    if v["train_iters"]:
        fields["epochs"] = None
    if v["lr"] is not None:
        fields["learning_rate"] = v["lr"]
    return fields
