"""Which keys each framework takes, by version: the table made from TRL's own releases, and Open-R1's additions.

``trl_keys.json`` is written by benchmarks/tools/trl_keys.py from TRL's wheels, each with the transformers of its time.

Keys that came and went: what to set instead of one that this version does not take.

Sources: the releases themselves (frameworks/trl_keys.json), transformers 5 MIGRATION_GUIDE_V5.md, TRL's release notes.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from grposweep.errors import UserError
from grposweep.setting import FrameworkTraits, Version


class KeySpec(NamedTuple):
    """A key as one version takes it: its type (``int``, ``float?`` with None, ``any``) and its default."""

    type: str
    default: Any


OPEN_R1_TRAITS = FrameworkTraits("open-r1", "TRL", follows_trl=True)  # its trainer is TRL's
OPEN_R1_TRL: Version = (0, 18, 0)  # the release that Open-R1 pins
# Open-R1's own keys: src/open_r1/configs.py, GRPOConfig and GRPOScriptArguments.
OPEN_R1: dict[str, KeySpec] = {
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
    "reward_funcs": KeySpec("list", None),
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
OPEN_R1_ONLY = frozenset(
    [
        "benchmarks",
        "hub_model_revision",
        "overwrite_hub_revision",
        "push_to_hub_revision",
        "dataset_mixture",
        "dataset_prompt_column",
        "cosine_min_value_wrong",
        "cosine_max_value_wrong",
        "cosine_min_value_correct",
        "cosine_max_value_correct",
        "cosine_max_len",
        "repetition_n_grams",
        "repetition_max_penalty",
        "e2b_router_url",
        "morph_router_url",
        "code_eval_test_batch_size",
    ]
)


@cache
def table() -> dict[str, Any]:
    """The committed table."""
    return dict(json.loads(files("grposweep.frameworks").joinpath("trl_keys.json").read_text(encoding="utf-8")))


@cache
def releases() -> tuple[Version, ...]:
    """Every TRL release that the table knows, ascending."""
    return tuple(_version(name) for name in table()["transformers"])


def parse_version(text: str) -> Version:
    """``1.10`` or ``v0.18.0`` as a version; GRPO came with TRL 0.14.0."""
    match = re.fullmatch(r"v?(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?(?:\.?(?:dev|rc|a|b|post)\d*)?", str(text).strip())
    if not match:
        raise UserError(
            f"TRL version {str(text)[:40]!r}: a version has two or three numbers. Write it like 1.16 or 0.18.0."
        )
    version = (int(match[1]), int(match[2]), int(match[3] or 0))
    if version < releases()[0]:
        raise UserError(f"TRL version {text}: GRPO came with TRL 0.14.0, so there is nothing to check before it.")
    return version


def text(version: Version) -> str:
    """A version as people write it."""
    return ".".join(map(str, version))


@lru_cache(maxsize=128)
def known(framework: str, version: Version) -> Mapping[str, KeySpec]:
    """Every key that a recipe may set, for the newest release that is not newer than ``version``."""
    found = {}
    for name, entry in table()["keys"].items():
        last = None
        for change in entry["history"]:
            if _version(change[0]) <= version:
                last = change
        if last is not None and len(last) == 3:
            found[name] = KeySpec(last[1], last[2])
    return {**found, **OPEN_R1} if framework == "open-r1" else found


@lru_cache(maxsize=1024)
def span(name: str) -> tuple[Version, Version | None] | None:
    """The release a key came with and the one it left with (None: still there); None for a key that never was."""
    entry = table()["keys"].get(name)
    if entry is None:
        return None
    last = entry["history"][-1]
    return _version(entry["history"][0][0]), _version(last[0]) if len(last) == 1 else None


def transformers(version: Version) -> str:
    """The transformers release that a TRL release was paired with."""
    names = list(table()["transformers"].values())
    return str(names[max(bisect_right(releases(), version) - 1, 0)])


def near(name: str, names: Iterable[str]) -> list[str]:
    """The keys that a typo may have meant, nearest first."""
    from difflib import get_close_matches  # only a mistake needs it

    plain = name.replace("-", "_").lower()
    return get_close_matches(plain, list(names), n=2, cutoff=0.8)


@cache
def _version(name: str) -> Version:
    major, minor, patch = (int(part) for part in name.split("."))
    return major, minor, patch


RENAMES = {  # old word: new word, with the same meaning
    "evaluation_strategy": "eval_strategy",
    "torch_dtype": "dtype",
    "vllm_guided_decoding_regex": "vllm_structured_outputs_regex",
    "vllm_max_model_len": "vllm_max_model_length",
    "wandb_log_unique_prompts": "log_unique_prompts",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "push_to_hub_token": "hub_token",
    "push_to_hub_model_id": "hub_model_id",
    "no_cuda": "use_cpu",
    "vllm_importance_sampling_cap": "vllm_importance_sampling_clip_max",
}
BACK = {new: old for old, new in RENAMES.items()}
# Keys without a successor: why, and the values that changed nothing, so that the key can go.
DROPPED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "max_prompt_length": ("TRL no longer cuts prompts: filter long ones out of the dataset", (None,)),
    "use_liger_loss": ("its work is done by use_liger_kernel, or by TRL's own chunked loss", (None, False)),
    "overwrite_output_dir": ("the output folder is written to in any case", (None, True, False)),
    "vllm_device": ("vLLM shares the training GPUs or is a server: vllm_mode says which", (None, "auto")),
    "vllm_dtype": ("vLLM takes the model's own type", (None, "auto")),
    "vllm_enable_prefix_caching": ("vLLM caches prefixes in any case", (None, True)),
    "logging_dir": ("the environment variable TENSORBOARD_LOGGING_DIR says where logs go", (None,)),
    "save_safetensors": ("weights are always saved as safetensors", (None, True)),
    "group_by_length": ("train_sampling_strategy replaced it", (None, False)),
    "tp_size": ("parallelism_config holds the parallel sizes", (None, 0, 1)),
    "dispatch_batches": ("accelerator_config holds it", (None,)),
    "split_batches": ("accelerator_config holds it", (None, False)),
    "gradient_checkpointing_use_reentrant": ("gradient_checkpointing_kwargs holds it", (None,)),
    "adafactor": ("optim: adafactor replaced it", (None, False)),
    "use_mps_device": ("the device is found by itself", (None, True, False)),
    "use_ipex": ("transformers dropped it", (None, False)),
    "half_precision_backend": ("there is one backend", (None, "auto")),
    "fp16_backend": ("there is one backend", (None, "auto")),
    "include_tokens_per_second": ("transformers dropped it", (None, False)),
    "ray_scope": ("transformers dropped it", (None, "last")),
    "past_index": ("transformers dropped it", (None, -1)),
}
# Words of other libraries and of habit, which no spelling distance finds.
HABITS = {
    "lr": "learning_rate",
    "batch_size": "per_device_train_batch_size",
    "train_batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size",
    "epochs": "num_train_epochs",
    "num_epochs": "num_train_epochs",
    "kl_coef": "beta",
    "kl_beta": "beta",
    "group_size": "num_generations",
    "num_samples": "num_generations",
    "rollout_n": "num_generations",
    "grad_accum_steps": "gradient_accumulation_steps",
    "max_new_tokens": "max_completion_length",
    "max_seq_length": "max_completion_length",
    "clip_range": "epsilon",
    "model_name": "model_name_or_path",
    "model": "model_name_or_path",
    "dataset": "dataset_name",
}


class Replacement(NamedTuple):
    """What to do about a key: why, the change of keys (None removes one), and whether training stays the same."""

    why: str = ""
    change: dict[str, Any] | None = None
    safe: bool = False


def instead(key: str, config: Mapping[str, Any], takes: Mapping[str, KeySpec]) -> Replacement:
    """The way out of a key that these versions do not take."""
    value = config.get(key)
    if key == "warmup_ratio":
        return _warmup(value, config)
    new = RENAMES.get(key) or BACK.get(key, "")
    if new in takes:
        if new not in config:
            return Replacement(f"it is called {new}", {key: None, new: value}, safe=True)
        return Replacement(f"{new} replaced it, and is set", {key: None}, safe=config[new] == value)
    if key in DROPPED:
        why, harmless = DROPPED[key]
        return Replacement(why, {key: None}, safe=_among(value, harmless))
    return Replacement("", {key: None} if value is None else None, safe=value is None)


def _warmup(ratio: Any, config: Mapping[str, Any]) -> Replacement:
    """Transformers 5 reads warmup_steps below 1 as a share; steps, where both were set, came first before too."""
    steps = config.get("warmup_steps")
    if not ratio or steps:
        return Replacement("warmup_steps says it all", {"warmup_ratio": None}, safe=True)
    why = "warmup_steps below 1 is a share of all steps"
    is_share = isinstance(ratio, (int, float)) and 0 < ratio < 1
    return Replacement(why, {"warmup_ratio": None, "warmup_steps": ratio}, safe=True) if is_share else Replacement(why)


def _among(value: Any, harmless: tuple[Any, ...]) -> bool:
    """Equal in value and type: 1 is not true here."""
    return any(type(value) is type(other) and value == other for other in harmless)
