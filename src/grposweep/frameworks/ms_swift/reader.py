"""Read ms-swift's recipes (`swift rlhf --rlhf_type grpo`).

Sources: ms-swift 4.6.0 arguments/rlhf_args.py and sft_args.py (__post_init__), trainers/arguments.py, rlhf_trainers/
args_mixin.py and arguments.py, dataset/dataset_meta.py, cli/main.py.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from grposweep.errors import UserError
from grposweep.frameworks.base import Framework, NativeChange, ParsedRecipe, model_size, read_mapping
from grposweep.frameworks.ms_swift.keys import (
    DERIVED,
    ENVIRONMENT,
    MEGATRON_KEYS,
    SAME,
    TRAITS,
    VERSION,
    is_megatron,
    known,
    megatron_fields,
    read_value,
    spelled,
)
from grposweep.frameworks.trl.reader import change_evaluates, change_warmup
from grposweep.recipe import Recipe
from grposweep.setting import Setting

KEYS = {row.name: row.key for row in DERIVED}
SHARE_KEYS = {**KEYS, "warmup_steps": "warmup_ratio"}
FULL_RATE, TUNER_RATE = 1e-5, 1e-4  # sft_args.py _init_override
BETA = 0.04  # rlhf_args.py _init_grpo
SCALES = {"grpo": "group", "rloo": "none", "reinforce_plus_plus": "batch"}


def parse(_: Framework, recipe: Recipe) -> ParsedRecipe:
    """Return the setting behind a recipe, and what of it could not be read."""
    _refuse_others(recipe)
    megatron = is_megatron(recipe)
    values, bad = _values(recipe.config)
    fields = {**defaults(), **{name: values[name] for name in SAME & values.keys()}}
    for derive in (_derive_rollout, _derive_schedule, _derive_loss, _derive_model, _derive_topology):
        fields |= derive(values)
    fields |= _derive_data(values, recipe, fields)
    processes = recipe.processes if recipe.processes is not None else processes_of(recipe.config.get(ENVIRONMENT))
    if megatron:
        fields |= megatron_fields(recipe.config, processes)
    keys = SHARE_KEYS if values.get("warmup_ratio") else {**KEYS, **MEGATRON_KEYS} if megatron else KEYS
    given = {name for name in fields if keys.get(name, name) in (recipe.config if megatron else values)}
    lines = {spelled(key): line for key, line in recipe.lines.items()}
    unknown = bad | {spelled(key) for key in recipe.unresolved}
    return ParsedRecipe(
        Setting(
            **{
                **fields,
                "processes": processes,
                "launcher": recipe.launch.launcher if recipe.launch else None,
                "visible_gpus": recipe.launch.visible_gpus if recipe.launch else None,
                "given": frozenset({"framework", *given}),  # never empty: that would be an experiment of ours
                "keys": keys,
                "lines": {name: lines[key] for name in given if (key := keys.get(name, name)) in lines},
            }
        ),
        frozenset(name for name in fields if keys.get(name, name) in unknown),
    )


@cache
def defaults() -> Mapping[str, Any]:
    """The fields of a GRPO recipe that sets nothing: those of the parser, and those filled in afterwards."""
    takes = known()
    found = {name: takes[name].default for name in SAME}
    return found | {
        "framework": TRAITS,
        "version": VERSION,
        "gradient_accumulation_steps": 1,
        "beta": BETA,
        "loss_type": "grpo",
        "scale_rewards": "group",
        "learning_rate": TUNER_RATE,
        "lora": True,
        "vllm_mode": "",
        "use_bias_correction_kl": False,
        "kl_estimator": "k3",
        "dataloader_drop_last": True,  # rlhf_trainers/arguments.py sets it, whatever the recipe says
        "vllm_importance_sampling_correction": False,
        "max_completion_length": takes["max_completion_length"].default,
    }


def _refuse_others(recipe: Recipe) -> None:
    """Other trainings than GRPO."""
    kind = recipe.config.get("rlhf_type", "dpo")
    if kind != "grpo":
        raise UserError(
            f"rlhf_type is {kind}{'' if 'rlhf_type' in recipe.config else ', the default'}: no GRPO training."
        )


def _values(config: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """The keys that ms-swift takes, in the types that it would see; and those whose value it refuses."""
    takes, values, bad = known(), dict[str, Any](), set[str]()
    for key, value in config.items():
        name = spelled(str(key))
        if name not in takes:
            name = RENAMED.get(name, name)
            if name not in takes or name in config:
                continue
        found = read_value(value, takes[name].type)
        if found.trouble:
            bad.add(name)
        else:
            values[name] = found.value
    return values, bad


RENAMED = {"train_type": "tuner_type", "rlhf_beta": "beta"}  # read as what they are called now; GV501 says so


def _derive_rollout(values: Mapping[str, Any]) -> dict[str, Any]:
    """An accumulation of 0 steps is not an unset one, and 0 is refused; the length has two older words that win."""
    length = values.get("response_length") or values.get("max_new_tokens")
    found: dict[str, Any] = {"max_completion_length": length} if length else {}
    config = read_mapping(values.get("accelerator_config"))
    if "split_batches" in config:
        found["split_batches"] = bool(config["split_batches"])
    if "max_length" in values:
        found["max_prompt_length"] = values["max_length"]
    if "overlong_filter" in values:
        found["mask_truncated_completions"] = values["overlong_filter"]
    found["top_k"] = max(values.get("top_k", 0), 0)  # -1 is all of them
    teacher = values.get("teacher_model") or values.get("teacher_model_server")
    return found | ({"distils": True} if teacher else {})


def _derive_schedule(values: Mapping[str, Any]) -> dict[str, Any]:
    """max_steps counts from 1 (-1: unset) and overrides the epochs; ``max_epochs`` ends the run early, whatever counts."""
    steps, epochs, most = values.get("max_steps", -1), values.get("num_train_epochs", 3.0), values.get("max_epochs")
    found: dict[str, Any] = {"max_steps": steps if steps >= 0 else None}
    found["epochs"] = None if steps >= 0 and "num_train_epochs" not in values else epochs
    if most:
        found |= {"epochs": float(most) if steps >= 0 else min(epochs, float(most)), "ends_with_epochs": True}
    return found | {"warmup_steps": values.get("warmup_steps") or values.get("warmup_ratio") or 0.0}


def _derive_loss(values: Mapping[str, Any]) -> dict[str, Any]:
    """Scaling and the place of KL follow from the estimator where they are not set; some losses overrule both."""
    estimator = values.get("advantage_estimator", "grpo")
    losses = values.get("loss_type") or ["grpo"]
    scaling = values.get("scale_rewards") or SCALES.get(estimator, "group")
    in_reward = values.get("kl_in_reward", estimator != "grpo") and scaling != "gdpo"
    beta = values.get("beta", BETA)
    mode = values.get("rollout_importance_sampling_mode")
    found: dict[str, Any] = {
        "loss_type": losses[0] if len(losses) == 1 else " ".join(map(str, losses)),
        "scale_rewards": "none" if losses == ["real"] else scaling,
        "kl_placement": "none" if beta == 0 else "reward" if in_reward else "loss",
        "beta": 0.0 if in_reward else beta,
        "kl_estimator": None if in_reward else "k3",
        "kl_reward_coefficient": beta if in_reward else 0.0,
        "kl_reward_estimator": "k1" if in_reward else None,
        "loads_reference": beta != 0,
        "rewards": len(values.get("reward_funcs") or []) + len(values.get("reward_model") or []),
        "vllm_importance_sampling_correction": mode is not None,
    }
    if mode is not None:
        found["vllm_importance_sampling_mode"] = mode
        found["vllm_importance_sampling_clip_max"] = values.get("rollout_importance_sampling_threshold", 2.0)
    if values.get("reward_weights"):
        found["reward_weights"] = len(values["reward_weights"])
    return found


def _derive_model(values: Mapping[str, Any]) -> dict[str, Any]:
    """LoRA unless the tuner is ``full``; the learning rate follows where it is not set."""
    lora = values.get("tuner_type", "lora") != "full"
    found: dict[str, Any] = {"lora": lora, "model_name_or_path": values.get("model")}
    if "learning_rate" not in values:
        found["learning_rate"] = TUNER_RATE if lora else FULL_RATE
    size = model_size(str(values.get("model") or ""))
    return found | ({"parameters": size} if size else {})


def _derive_topology(values: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM has no place of its own unless one is named."""
    found: dict[str, Any] = {"vllm_max_model_length": values.get("vllm_max_model_len")}
    for name in ("vllm_server_base_url", "vllm_server_host", "vllm_server_port"):
        if values.get(name):
            found[name] = values[name][0]
    return found


def _derive_data(values: Mapping[str, Any], recipe: Recipe, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Nothing is evaluated without held-out data; a share split off is at least one row and no longer trained on.

    Rows are those that the reader was told, or the samples that every data set names (``name#1000``).
    """
    strategy = values.get("eval_strategy") or fields["save_strategy"]
    ratio = 0.0 if values.get("val_dataset") or values.get("streaming") else values.get("split_dataset_ratio", 0.0)
    rows = recipe.train_prompts if recipe.train_prompts is not None else samples(values.get("dataset"))
    evaluates = strategy != "no" and bool(ratio or values.get("val_dataset") or values.get("eval_dataset"))
    held_out = samples(values.get("val_dataset"))
    if rows is not None and ratio and strategy != "no" and 0 < ratio < 1:
        held_out = max(int(rows * ratio), 1)
        rows -= held_out
    datasets = values.get("dataset") or []
    return {
        "eval_strategy": strategy if evaluates else "no",
        "evaluates": evaluates,
        "eval_steps": values.get("eval_steps", fields["save_steps"]) if evaluates and strategy == "steps" else None,
        "save_steps": fields["save_steps"] if fields["save_strategy"] == "steps" else None,
        "train_prompts": rows,
        "eval_prompts": held_out if evaluates else None,
        "dataset_name": str(datasets[0]) if len(datasets) == 1 else None,
    }


def samples(datasets: Any) -> int | None:
    """The rows that ``name#1000`` samples, over all data sets; None where one names no number."""
    if not datasets:
        return None
    counts = [str(name).rpartition("#")[2] if "#" in str(name) else "" for name in datasets]
    return sum(map(int, counts)) if all(count.isdigit() for count in counts) else None


def processes_of(environment: Any) -> int | None:
    """NPROC_PER_NODE x NNODES of a YAML's ENV; None where it names neither."""
    found = read_mapping(environment)
    counts = [str(found.get(name, 1)) for name in ("NPROC_PER_NODE", "NNODES")]
    if not found.keys() & {"NPROC_PER_NODE", "NNODES"} or not all(count.isdigit() for count in counts):
        return None
    return int(counts[0]) * int(counts[1])


def fields_of(names: set[str]) -> frozenset[str]:
    """The fields behind keys that could not be read."""
    return frozenset(field for field in (*SAME, *KEYS) if {KEYS.get(field, field), SHARE_KEYS.get(field)} & names)


SPECIAL: dict[str, NativeChange] = {
    "evaluates": change_evaluates,
    "split_batches": lambda value, *_: None if value else {"accelerator_config": None},
    "warmup_steps": change_warmup,
}
