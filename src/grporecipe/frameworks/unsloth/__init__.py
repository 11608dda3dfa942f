"""Unsloth: TRL's keys and trainer with Unsloth's own defaults, keys and corrections.

Versions are those of TRL. Sources: unsloth 2026.8.19 unsloth/models/rl.py (defaults of the
configuration, the batch, the loss), rl_replacements.py (top_k), rl_config_compat.py (keys that TRL
does not take).
"""

import re
from dataclasses import replace
from functools import lru_cache, partial

from grporecipe.files import Config, read_own_yaml
from grporecipe.frameworks.trl import FRAMEWORK as TRL_FRAMEWORK
from grporecipe.frameworks.trl import keys as trl_keys
from grporecipe.model.framework import Values
from grporecipe.model.recipe import KeySpec
from grporecipe.model.releases import KeyTable
from grporecipe.model.setting import FrameworkTraits, Version
from grporecipe.model.values import Fields
from grporecipe.registries import Lazy

# its trainer is TRL's, patched
TRAITS = FrameworkTraits("unsloth", "Unsloth", follows_trl=True)
# of TRL, the newest that Unsloth allows
VERSION: Version = (0, 24, 0)
_TABLES = read_own_yaml(__file__, "defaults.yaml")
DEFAULTS: Fields = _TABLES["defaults"]
# of all steps: the warmup if none is set
SHARE = 0.1
OWN = {name: KeySpec(*row) for name, row in _TABLES["own"].items()}
DAPO_CLIP = 0.28


@lru_cache(maxsize=128)
def known(version: Version) -> KeyTable:
    """Return every key that a recipe may set, on a release of TRL, with Unsloth's defaults."""
    takes = trl_keys.known(version)
    changed = {
        name: KeySpec(takes[name].type, value) for name, value in DEFAULTS.items() if name in takes
    }
    # True or "unsloth"
    changed["gradient_checkpointing"] = KeySpec("any", takes["gradient_checkpointing"].default)
    return KeyTable({**OWN, **takes, **changed})


def corrected_size(
    size: int, accumulation: int, processes: int | None, group: int, version: Version
) -> int:
    """Return the micro-batch after Unsloth's correction: G if B W A is no multiple of G (rl.py,
    check_num_generations).

    ``version`` is TRL's. Before 0.17 a micro-step has to hold whole groups, so accumulation does
    not count.
    """
    accumulation = accumulation if version >= (0, 17, 0) else 1
    return group if group > 0 and (accumulation * (processes or 1) * size) % group else size


def derive_own(values: Values, fields: Config) -> Fields:
    """Return the fields that Unsloth changes before TRL sees the configuration."""
    stated = values.stated
    changes = Fields()
    sizes = ("per_device_train_batch_size", "gradient_accumulation_steps", "num_generations")
    if stated.get("steps_per_generation") is None and stated.get("generation_batch_size") is None:
        size, accumulation, group = (fields[name] for name in sizes)
        size = corrected_size(size, accumulation, fields["processes"], group, values.recipe.version)
        changes["per_device_train_batch_size"] = size
    if "warmup_steps" not in stated and "warmup_ratio" not in stated:
        changes["warmup_steps"] = SHARE
    loss = str(fields["loss_type"]).lower()
    if loss == "dapo":
        changes |= {"mask_truncated_completions": True, "epsilon_high": DAPO_CLIP}
    elif loss == "dr_grpo" and fields["scale_rewards"] == "group":
        changes["scale_rewards"] = "none"
    return changes


FRAMEWORK = replace(
    TRL_FRAMEWORK,
    traits=TRAITS,
    # TRL's source would not have Unsloth's own keys
    vendor=None,
    version=VERSION,
    takes=known,
    keys=frozenset(
        ["unsloth_num_chunks", "unsloth_grpo_mini_batch", "unsloth_logit_chunk_multiplier"]
    ),
    programs=re.compile(r"(?i)unsloth"),
    commands={},
    derived=(*TRL_FRAMEWORK.derived, derive_own),
    memory=partial(Lazy("grporecipe.fields.memory:read_trl"), is_unsloth=True),
)
