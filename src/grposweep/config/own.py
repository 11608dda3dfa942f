"""A setting in our own words: the values of the groups that a run can change, as configuration takes them."""

from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

from grposweep.config.read import KEYS, PROGRAM_OWNS
from grposweep.config.schema import Experiment
from grposweep.plan import micro_steps_per_generation
from grposweep.setting import Setting

# The groups whose values are a recipe's numbers; the others say what is trained, where, and how it is searched.
NUMBERS = ("batch", "optimizer", "kl", "loss", "schedule", "generation")


def own_values(s: Setting, every: bool = False) -> dict[str, Any]:
    """``lr``, ``seed`` and one mapping a group of NUMBERS; what the setting leaves open keeps its default here.

    A number of evaluations or checkpoints is 0: as often as the recipe says. ``every``: also what a program that keeps its
    recipe would say itself.
    """
    found: dict[str, Any] = {name: {} for name in NUMBERS}
    for name, path in KEYS.items():
        group, _, key = path.partition(".")
        value = getattr(s, name)
        if name in PROGRAM_OWNS and not every:
            continue
        if not key and value is not None:
            found[path] = value
        elif group in NUMBERS and (value not in (None, "") or _is_optional(path)):
            found[group][key] = value
    found["optimizer"]["learning_rate"] = "${lr}"
    found["kl"]["enabled"] = s.beta != 0
    found["batch"] |= _sizes(s)
    found["schedule"] |= _length(s) | {"evaluations": 0, "checkpoints": 0, "eval_at_start": False}
    return {name: found[name] for name in ("lr", "seed", *NUMBERS) if name in found}


def _sizes(s: Setting) -> dict[str, Any]:
    """Sizes as they are, micro-steps where they are not the accumulation; a rollout's size follows from them."""
    micro_steps = micro_steps_per_generation(s)
    return {
        "steps_per_generation": None if micro_steps == s.gradient_accumulation_steps else micro_steps,
        "prompts_per_step": None,
        "max_per_device_train_batch_size": max(s.per_device_train_batch_size, 64),
    }


def _length(s: Setting) -> dict[str, Any]:
    """Exactly one length: the steps override the epochs, as in TRL."""
    steps = s.max_steps if s.max_steps is not None and s.max_steps > 0 else None
    return {"max_steps": steps, "epochs": s.epochs if steps is None else None, "budget_completions": None}


def _is_optional(path: str) -> bool:
    """Whether a key of the schema may be null."""
    schema: Any = Experiment
    *sections, last = path.split(".")
    for section in sections:
        schema = get_type_hints(schema)[section]
        assert is_dataclass(schema)
    return type(None) in get_args({field.name: get_type_hints(schema)[field.name] for field in fields(schema)}[last])
