"""A setting written in a framework's own words: its recipe, the command that launches it, and what got lost.

Fixes in a recipe's own words: changes of a setting's fields as changes of native keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grposweep.frameworks.trl.reader import COUNTED, DERIVED, NEVER_NATIVE, read_mapping
from grposweep.recipe import Recipe
from grposweep.setting import Setting


@dataclass(frozen=True)
class TranslatedRecipe:
    """A native recipe, every default that differs from other frameworks' made explicit.

    ``recipe`` is the text of the native file ``file_name`` (a YAML, or a script); ``command`` launches it from the folder
    it is in, with ``environment`` beside what is there; ``losses`` say what the framework cannot do, or does otherwise,
    and why.
    """

    recipe: str
    file_name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    losses: tuple[str, ...] = ()


def native(change: Mapping[str, Any], recipe: Recipe, setting: Setting) -> dict[str, Any] | None:
    """A change of fields as a change of native keys, None removing a key; None where a recipe has no words for it.

    ``processes`` stays: the command that starts a recipe sets it.
    """
    found: dict[str, Any] = {}
    for name, value in change.items():
        if name == "processes":
            found["processes"] = value
        elif name == "gradient_checkpointing":
            found[name] = value
        elif name in COUNTED or name in NEVER_NATIVE or name == "parameters":
            return None
        elif name == "evaluates":
            if value:
                return None
            found["eval_strategy"] = "no"
        elif name == "warmup_steps" and setting.key(name) == "warmup_ratio":
            found |= {"warmup_ratio": value} if value < 1 else {"warmup_steps": int(value), "warmup_ratio": None}
        elif DERIVED.get(name) in ("accelerator_config", "parallelism_config"):
            found |= _nested(name, value, recipe, found)
        else:
            found[setting.key(name)] = value
    return found


def _nested(name: str, value: Any, recipe: Recipe, found: Mapping[str, Any]) -> dict[str, Any]:
    """One size inside a mapping; the rest of it stays."""
    inner = {"tensor_parallel_size": "tp_size", "context_parallel_size": "cp_size", "sequence_parallel_size": "sp_size"}
    word = inner.get(name, name)
    if word in recipe.config:
        return {word: value}
    key = DERIVED[name]
    return {key: {**read_mapping(found.get(key, recipe.config.get(key))), word: value}}
