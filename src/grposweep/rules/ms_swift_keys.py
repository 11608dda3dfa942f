"""GV, of ms-swift: keys that `swift rlhf` takes, with values it can read, and combinations that it refuses.

Sources: ms-swift 4.6.0 cli/main.py parse_yaml_args, pipelines/base.py, arguments/; frameworks/ms_swift_keys.json is its parser's
own list of keys.
"""

from collections.abc import Iterator
from typing import Any

from grposweep.frameworks import keys
from grposweep.frameworks.ms_swift_keys import ENVIRONMENT, choices, known, read_value, spelled
from grposweep.frameworks.ms_swift_megatron import is_megatron
from grposweep.frameworks.renames import HABITS
from grposweep.recipe import Recipe
from grposweep.rules.ms_swift import MS_SWIFT
from grposweep.rules.registry import Broken, recipe_rule
from grposweep.rules.values import WANTED, cut, show

# What older releases called it, or other libraries do.
RENAMES = {
    "train_type": "tuner_type",
    "sft_type": "tuner_type",
    "lora_target_modules": "target_modules",
    "vllm_max_model_length": "vllm_max_model_len",
    "model_name_or_path": "model",
    "model_id_or_path": "model",
    "dataset_name": "dataset",
    "use_peft": "tuner_type",
    "dtype": "torch_dtype",
    "max_prompt_length": "max_length",
    "custom_register_path": "external_plugins",
    "num_infer_workers": "vllm_tensor_parallel_size",
    "vllm_server_url": "vllm_server_base_url",
    "kl_coef": "beta",
}
SAME_VALUE = frozenset(["train_type", "sft_type", "model_name_or_path", "model_id_or_path", "dataset_name", "dtype",
                        "vllm_max_model_length", "custom_register_path"])  # fmt: skip
GONE = {
    "vllm_device": "vLLM shares the training GPUs (vllm_mode: colocate), or is a server of its own",
    "tensor_parallel_size": "LMDeploy is no longer a back-end; vllm_tensor_parallel_size is vLLM's",
    "num_infer_workers": "vLLM runs in every training process (vllm_mode: colocate), or is a server of its own",
    "lmdeploy_device": "LMDeploy is no longer a back-end",
    "use_lmdeploy": "LMDeploy is no longer a back-end",
    "evaluation_strategy": "eval_strategy is its name",
}


@recipe_rule("GV501", "error", of=MS_SWIFT)
def ms_swift_knows_the_keys(recipe: Recipe) -> Iterator[Broken]:
    """A key that `swift rlhf` does not take: a typo, another library's word, or one of an older release.

    pipelines/base.py: "remaining_argv: ['--per_device_batch', '4']", unless ``ignore_args_error`` is set, which only logs
    it. The beginning of a key is taken for the key where it is no other's beginning (argparse's abbreviations).
    """
    if recipe.config.get("ignore_args_error") in (True, "true") or is_megatron(recipe):
        return
    for key, value in recipe.config.items():
        name = spelled(str(key))
        if name in known() or name == ENVIRONMENT:
            continue
        near = _near(name)
        advice = f"Did you mean {' or '.join(near)}?" if near else "Remove it."
        why = f"ms-swift takes no such key{f': {GONE[name]}' if name in GONE else ''}"
        changes = tuple({str(key): None, new: value} for new in near[:1] if new not in recipe.config)
        same = frozenset(changes[0]) if changes and name in SAME_VALUE else frozenset[str]()
        yield Broken(f"{cut(str(key))}={show(value)}", why, advice, (str(key),), changes, without_effect=same)


def _near(name: str) -> list[str]:
    """The keys that may have been meant."""
    if name in GONE and name not in RENAMES:
        return []
    meant = RENAMES.get(name) or HABITS.get(name, "")
    return [meant] if meant in known() else keys.near(name, known())


@recipe_rule("GV502", "error", of=MS_SWIFT)
def ms_swift_reads_the_values(recipe: Recipe) -> Iterator[Broken]:
    """A value that its key cannot hold. A YAML's values become words of a command line, so ``null`` is the word None.

    argparse: "argument --num_generations: invalid int value: 'None'", "invalid choice: 'fast'". Leave a key out for its
    default. A number in quotes, or one that YAML takes for text (``1e-6``), is fine here.
    """
    takes = {} if is_megatron(recipe) else known()
    for key, value in recipe.config.items():
        name = spelled(str(key))
        if name not in takes or str(key) in recipe.unresolved:
            continue
        trouble = _trouble(name, value, takes[name].type)
        if trouble:
            why, changes = trouble
            yield Broken(f"{key}={show(value)}", why, f"Leave {key} out for its default.", (str(key),), changes)


def _trouble(name: str, value: Any, kind: str) -> tuple[str, tuple[dict[str, Any], ...]] | None:
    """Why a value cannot be read, and what may mend it."""
    if value is None:
        return "ms-swift gets null as the word None", ({name: None},)
    if value == []:
        return "ms-swift gets an empty list as a key without a value", ({name: None},)
    found = read_value(value, kind)
    if found.trouble:
        whole = isinstance(value, float) and value.is_integer() and kind.startswith("int")
        wanted = WANTED.get(kind.rstrip("?"), "one value")
        return f"{name} is {wanted}", ({name: int(value)},) if whole else ()
    allowed = choices(name)
    if allowed and str(found.value) not in allowed:
        near = keys.near(str(found.value), allowed)
        return f"there are {', '.join(allowed[:8])}", tuple({name: word} for word in near[:1])
    return None
