"""The rules on recipes themselves, all registered once this is imported; lint needs them, sweeps do not."""

from grposweep.rules import (
    dotted_keys,
    easyr1_keys,
    keys,
    kl_unread,
    memory_unknown,
    micro_sizes,
    ms_swift_keys,
    ms_swift_megatron,
    ms_swift_refused,
    values,
    verl_keys,
)
from grposweep.rules.registry import RECIPE_RULES

__all__ = ["FILES", "RECIPE_RULES"]

FILES = (
    dotted_keys, easyr1_keys, keys, kl_unread, memory_unknown, micro_sizes, ms_swift_keys, ms_swift_megatron, ms_swift_refused,
    values, verl_keys,
)  # fmt: skip
