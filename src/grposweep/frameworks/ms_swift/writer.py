"""Write a setting as a recipe for `swift rlhf`: every number that decides the training explicit, whatever the default.

Sources: as for the reader; what ms-swift cannot do is compared in docs/frameworks.md.
"""

from collections.abc import Iterator
from typing import Any

import yaml

from grposweep.frameworks.base import Framework, TranslatedRecipe
from grposweep.frameworks.ms_swift.keys import SAME, TRAITS, VERSION
from grposweep.frameworks.ms_swift.reader import defaults
from grposweep.frameworks.ms_swift.rules import LEVELS, LOSSES
from grposweep.frameworks.trl.writer import evaluation, length_and_rate, saving
from grposweep.frameworks.units import in_completions
from grposweep.setting import Setting, Version

# What decides the training, in the order of a recipe; every other key is written where it is not the default.
ALWAYS = (
    "num_generations", "per_device_train_batch_size", "gradient_accumulation_steps", "num_iterations",
    "max_completion_length", "temperature", "top_p", "epsilon", "importance_sampling_level", "learning_rate",
    "optim", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "seed",
)  # fmt: skip
OPTIONAL = ("steps_per_generation", "epsilon_high", "delta", "num_generations_eval", "vllm_gpu_memory_utilization")
ELSEWHERE = frozenset(  # said by the functions below
    ["eval_steps", "save_steps", "save_strategy", "lr_scheduler_type", "scale_rewards", "beta", "per_device_eval_batch_size",
     "generation_batch_size", "vllm_mode", "sync_ref_model"]
)  # fmt: skip
COMMAND = ("swift", "rlhf", "recipe.yaml")


def render(framework: Framework, s: Setting) -> TranslatedRecipe:
    """Return a recipe for ms-swift 4.6.0, its launch command, and what it cannot say."""
    sized, undivided = in_completions(s)
    lost = (*undivided, *losses(sized))
    text = yaml.safe_dump({"rlhf_type": "grpo", **native_keys(framework, sized)}, sort_keys=False, allow_unicode=True)
    environment = {} if s.processes is None else {"NPROC_PER_NODE": str(s.processes)}
    return TranslatedRecipe(text, "recipe.yaml", COMMAND, environment, lost)


def native_keys(_: Framework, s: Setting, _version: Version = VERSION) -> dict[str, Any]:
    """Return a setting in completions as a recipe's keys and values."""
    default, found = defaults(), dict[str, Any]()
    for name in (*ALWAYS, *OPTIONAL, *sorted(SAME)):
        value = getattr(s, name)
        if name in found or name in ELSEWHERE or value is None:
            continue
        if name in ALWAYS or value != default.get(name):
            found[name] = value
    if s.steps_per_generation == s.gradient_accumulation_steps:
        found.pop("steps_per_generation", None)
    if found.get("num_generations_eval") == s.num_generations:
        del found["num_generations_eval"]
    return {**found, **_model(s), **_objective(s), **_schedule(s), **evaluation(s), **saving(s), **_generation(s)}


def _model(s: Setting) -> dict[str, Any]:
    named = {"model": s.model_name_or_path, "dataset": [s.dataset_name] if s.dataset_name else None}
    found = {name: value for name, value in named.items() if value is not None}
    return {**found, "tuner_type": "lora" if s.lora else "full"}


def _objective(s: Setting) -> dict[str, Any]:
    """Return the loss, its scaling, and KL in the one place where it counts."""
    in_reward = s.kl_placement == "reward"
    found: dict[str, Any] = {
        "loss_type": s.loss_type if s.loss_type in LOSSES else "dapo",
        "scale_rewards": s.scale_rewards,
        "beta": s.beta or (s.kl_reward_coefficient if in_reward else 0.0),
        "overlong_filter": s.mask_truncated_completions,
    }
    if found["beta"]:
        found["kl_in_reward"] = in_reward
    if s.sync_ref_model:
        found["sync_ref_model"] = True
    if s.importance_sampling_level not in LEVELS:
        found["importance_sampling_level"] = "token"
    return found


def _schedule(s: Setting) -> dict[str, Any]:
    """Return the run's length and its learning rate's schedule."""
    if 0 < s.warmup_steps < 1:
        return {**length_and_rate(s), "warmup_ratio": s.warmup_steps}
    return {**length_and_rate(s), **({"warmup_steps": int(s.warmup_steps)} if s.warmup_steps else {})}


def _generation(s: Setting) -> dict[str, Any]:
    """Return vLLM in its place, with the correction where there is one."""
    found: dict[str, Any] = {"top_k": s.top_k or -1}
    if s.max_prompt_length is not None:
        found["max_length"] = s.max_prompt_length
    if not s.use_vllm:
        return found
    found["vllm_mode"] = s.vllm_mode or "colocate"
    names = {"vllm_max_model_len": s.vllm_max_model_length}
    lists = {name: getattr(s, name) for name in ("vllm_server_base_url", "vllm_server_host", "vllm_server_port")}
    found |= {name: value for name, value in names.items() if value is not None}
    found |= {name: [value] for name, value in lists.items() if value is not None and s.vllm_mode == "server"}
    if s.vllm_importance_sampling_correction:
        found["rollout_importance_sampling_mode"] = s.vllm_importance_sampling_mode
        if s.vllm_importance_sampling_clip_max is not None:
            found["rollout_importance_sampling_threshold"] = s.vllm_importance_sampling_clip_max
    return found


def losses(s: Setting) -> Iterator[str]:
    """Yield what ms-swift cannot do of a setting, or does otherwise."""
    if s.loss_type not in LOSSES:
        yield f"loss_type={s.loss_type}: ms-swift has {', '.join(LOSSES)}; dapo is written"
    if s.beta and s.use_bias_correction_kl:
        yield "use_bias_correction_kl: ms-swift's KL term is k3 without the importance ratio, another objective"
    if s.kl_placement == "both":
        yield "KL in the loss and in the reward: ms-swift has one of them; it is left in the loss"
    if s.kl_placement in ("loss", "both") and s.beta and s.kl_estimator not in (None, "k3"):
        yield f"KL estimator {s.kl_estimator}: ms-swift's is k3 in the loss"
    if s.kl_reward_coefficient and s.kl_placement == "reward" and s.kl_reward_estimator not in (None, "k1"):
        yield f"KL estimator {s.kl_reward_estimator}: ms-swift's is k1, summed over a completion, in the reward"
    if s.kl_controller != "fixed":
        yield f"KL controller {s.kl_controller}: ms-swift's coefficient is fixed"
    if s.advantage_estimator not in ("grpo", "rloo", "reinforce_plus_plus"):
        yield f"advantage_estimator={s.advantage_estimator}: ms-swift has grpo, rloo and reinforce_plus_plus"
    if s.dynamic_batching:
        yield "dynamic batching fills micro-batches by tokens: ms-swift's are a fixed number of completions"
    if s.prompts_per_generation:
        yield "rollouts generated in portions: ms-swift generates each at once"
    if s.tensor_parallel_size > 1 or s.pipeline_parallel_size > 1 or s.context_parallel_size > 1:
        yield "tensor, pipeline and context parallelism: only ms-swift's Megatron back-end has them"
    if s.vllm_importance_sampling_clip_min is not None and s.use_vllm:
        yield "vllm_importance_sampling_clip_min: ms-swift has an upper bound only"
    if s.evaluates and s.eval_strategy != "no":
        yield "held-out data: name val_dataset or split_dataset_ratio, or ms-swift evaluates nothing"
    yield "reward functions: name reward_funcs, which ms-swift registers by name (external_plugins)"
    if s.framework != TRAITS:
        yield "old log-probabilities are always computed anew, and the advantages' deviation has 1e-4 added"
