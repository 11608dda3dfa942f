"""Open-R1's own keys, beside those of the TRL release that it pins, and its check of a data set mixture.

Source: open-r1 src/open_r1/configs.py (GRPOConfig, GRPOScriptArguments, ScriptArguments.__post_init__).
"""

from functools import lru_cache
from typing import Any

from grposweep.frameworks.base import KeySpec, KeyTable
from grposweep.frameworks.trl import keys as trl
from grposweep.setting import FrameworkTraits, Version

TRAITS = FrameworkTraits("open-r1", "TRL", follows_trl=True)  # its trainer is TRL's
VERSION: Version = (0, 18, 0)  # of TRL, which Open-R1 pins
# Open-R1's own keys: src/open_r1/configs.py, GRPOConfig and GRPOScriptArguments.
KEYS: dict[str, KeySpec] = {
    "benchmarks": KeySpec("list", None),
    "callbacks": KeySpec("list", None),
    "chat_template": KeySpec("str?", None),
    "system_prompt": KeySpec("str?", None),
    "hub_model_revision": KeySpec("str?", "main"),
    "num_completions_to_print": KeySpec("int", 0),
    "overwrite_hub_revision": KeySpec("bool", False),
    "push_to_hub_revision": KeySpec("bool", False),
    "wandb_entity": KeySpec("str?", None),
    "wandb_project": KeySpec("str?", None),
    "wandb_run_group": KeySpec("str?", None),
    "wandb_log_unique_prompts": KeySpec("bool", True),
    "reward_funcs": KeySpec("list", ["accuracy", "format", "tag_count"]),
    "cosine_min_value_wrong": KeySpec("float", 0.0),
    "cosine_max_value_wrong": KeySpec("float", -0.5),
    "cosine_min_value_correct": KeySpec("float", 0.5),
    "cosine_max_value_correct": KeySpec("float", 1.0),
    "cosine_max_len": KeySpec("int", 1000),
    "repetition_n_grams": KeySpec("int", 3),
    "repetition_max_penalty": KeySpec("float", -1.0),
    "code_language": KeySpec("str", "python"),
    "code_eval_test_batch_size": KeySpec("int", 1),
    "code_eval_scoring_mode": KeySpec("str", "weighted_sum"),
    "parallel_code_exec_per_proc": KeySpec("int", 2),
    "dataset_name": KeySpec("str?", None),
    "dataset_mixture": KeySpec("any", None),
    "dataset_prompt_column": KeySpec("str", "prompt"),
    "e2b_router_url": KeySpec("str?", None),
    "morph_router_url": KeySpec("str?", None),
    "code_provider": KeySpec("str?", "e2b"),
    "ioi_provider": KeySpec("str?", "piston"),
    "max_completion_len": KeySpec("int", 16384),
    "soft_punish_cache": KeySpec("int", 4096),
}
# Words that only Open-R1's recipes use; chat_template and the like appear in everybody's.
ONLY = frozenset(
    ["benchmarks", "hub_model_revision", "overwrite_hub_revision", "push_to_hub_revision", "dataset_mixture",
     "dataset_prompt_column", "cosine_min_value_wrong", "cosine_max_value_wrong", "cosine_min_value_correct",
     "cosine_max_value_correct", "cosine_max_len", "repetition_n_grams", "repetition_max_penalty", "e2b_router_url",
     "morph_router_url", "code_eval_test_batch_size"]
)  # fmt: skip


@lru_cache(maxsize=128)
def known(version: Version) -> KeyTable:
    """Return every key that a recipe may set, on a release of TRL."""
    return KeyTable({**trl.known(version), **KEYS})


def mixture_trouble(mixture: Any) -> str | None:
    """Return what Open-R1's own checks say to a ``dataset_mixture``; None for nothing."""
    if not isinstance(mixture, dict) or "datasets" not in mixture:
        return "dataset_mixture is a mapping with a 'datasets' key"
    datasets = mixture["datasets"]
    if not isinstance(datasets, list):
        return "'datasets' is a list of dataset configurations"
    if not all(isinstance(entry, dict) and "id" in entry for entry in datasets):
        return "each dataset of the mixture is a mapping with an 'id'"
    columns = [frozenset(map(str, entry["columns"])) for entry in datasets if isinstance(entry.get("columns"), list)]
    if len(set(columns)) > 1:
        return "the columns are the same for all datasets of a mixture"
    return None
