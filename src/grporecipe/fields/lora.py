"""Read and write LoRA and data sets in the frameworks' forms: rank, alpha, modules and names.

Sources: trl trainer/model_config.py; ms-swift arguments/tuner_args.py; verl workers/config/model.py
and workers/fsdp_workers.py; EasyR1 workers/actor/config.py (LoraConfig); peft
tuners/tuners_utils.py (check_target_module_exists: a text is an expression for a module's whole
name).
"""

import re
from typing import Any

from grporecipe.model.framework import Field
from grporecipe.model.values import Names, listed

# Source: peft utils/constants.py TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.

# PEFT's choice for most models if none are named
PEFT_TARGETS = ("q_proj", "v_proj")


def lora_rows(rank: str, alpha: str, targets: str, usual: int) -> tuple[Field, ...]:
    """Return the rows of LoRA, which a rank above 0 switches on. ``usual`` is the default alpha."""
    return (
        Field("lora", rank, "int", 0, read=lambda value: value > 0, fixable=False),
        Field("lora_rank", rank, "int", 0, fixable=False, judged=False),
        Field("lora_alpha", alpha, "float", usual, fixable=False),
        Field("lora_targets", targets, "any", "all-linear", read=as_modules, fixable=False),
    )


# PEFT matches a module's whole name
_ALTERNATIVES = r"\.\*\\\.\(([\w|]{1,500})\)"


def as_modules(value: Any) -> Names:
    """Return the modules with adapters, from one name, several names, or an expression that lists
    them.
    """
    if match := re.fullmatch(_ALTERNATIVES, str(value)):
        return tuple(match[1].split("|"))
    return tuple(map(str, _items(value)))


def one_name(value: Any) -> str | None:
    """Return the data set that a key names; None for several, which a setting cannot hold."""
    names = _items(value)
    if len(names) != 1:
        return None
    return str(names[0])


def _items(value: Any) -> list[Any]:
    """Return the items of a list, or one value; none of an empty one."""
    if not value:
        return []
    return listed(value)
