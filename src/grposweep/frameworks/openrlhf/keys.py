"""Which options OpenRLHF takes by release, and the option behind each field of a setting.

``keys.json`` and ``renamed.py`` are written by benchmarks/tools/openrlhf_keys.py from OpenRLHF's tags. Sources: OpenRLHF 0.11.0
openrlhf/cli/train_ppo_ray.py, openrlhf/trainer/ppo_trainer.py, openrlhf/utils/deepspeed/deepspeed.py.
"""

from typing import Any

from grposweep.frameworks.base import Field, ReleaseTable
from grposweep.frameworks.openrlhf.renamed import RENAMED
from grposweep.setting import FrameworkTraits, Version

TRAITS = FrameworkTraits("openrlhf", "OpenRLHF", unit="prompts")
VERSION: Version = (0, 11, 0)
DOTTED: Version = (0, 10, 2)  # it named options by sections: --rollout.batch_size; until then --rollout_batch_size
FLAT = {new: old for old, new in RENAMED.items()}
COMPLETIONS: dict[Version, str] = {(0, 9, 8): "generate_max_len", DOTTED: "max_new_tokens"}


def row(name: str, key: str, kind: str = "", default: Any = None, **more: Any) -> Field:
    """Return the row of an option, which had another name until 0.10.2."""
    before = more.pop("before", {DOTTED: FLAT[key]} if key in FLAT else {})
    return Field(name, key, kind, default, before=before, **more)


def _scaling(estimator: str) -> str:
    return "group" if estimator == "group_norm" else "none"


def _positive(every: int) -> int | None:
    return every if every > 0 else None


FIELDS = (  # in the order of a written command
    row("prompts_per_rollout", "rollout.batch_size", "int", 1024),
    row("num_generations", "rollout.n_samples_per_prompt", "int", 1),
    row("prompts_per_step", "train.batch_size"),  # in completions: functions read and write it
    row("per_device_train_batch_size", "train.micro_batch_size", "int", 1),
    row("experience_batch_size", "rollout.micro_batch_size", "int", 1),
    row("num_iterations", "train.max_epochs", "int", 1),
    row("epochs", "train.num_episodes", "int", 1),
    row("dynamic_batching", "train.dynamic_batch_enable", "bool", False),
    row("sequence_parallel_size", "ds.ring_attn_size", "int", 1),
    row("tensor_parallel_size", "ds.tensor_parallel_size", "int", 1),
    row("", "actor.num_nodes"),
    row("processes", "actor.num_gpus_per_node"),
    row("advantage_estimator", "algo.advantage.estimator"),
    row("scale_rewards", "algo.advantage.estimator", "str", "gae", read=_scaling, fixable=False),
    row("beta", "algo.kl.init_coef"),
    row("kl_reward_coefficient", "algo.kl.init_coef"),
    row("kl_placement", "algo.kl.use_loss"),
    row("loads_reference", "algo.kl.init_coef", "float", 0.01, read=lambda value: value > 0, fixable=False),
    row("kl_estimator", "algo.kl.estimator", "str", "k1", fixable=False),
    row("kl_reward_estimator", "algo.kl.estimator", "str", "k1", fixable=False),
    row("kl_target", "algo.kl.target", "float?"),
    row("kl_horizon", "algo.kl.horizon", "float", 10000.0),
    row("epsilon", "actor.eps_clip"),
    row("epsilon_high", "actor.eps_clip_low_high"),
    row("delta", "actor.dual_clip", "float?"),
    row("importance_sampling_level", "actor.policy_loss_type"),
    row("entropy_coef", "actor.entropy_coef", "float?"),
    row("filters_groups", "algo.dynamic_filtering_enable", "bool", False),
    row("learning_rate", "actor.adam.lr", "float", 1e-6),
    row("lr_scheduler_type", "actor.lr_scheduler"),
    row("minimum_learning_rate_ratio", "actor.min_lr_ratio", "float?", 0.1, before={}),
    row("warmup_steps", "actor.lr_warmup_ratio", "float", 0.03),
    row("weight_decay", "actor.adam.weight_decay", "float", 0.0),
    row("max_grad_norm", "actor.max_norm", "float", 1.0),
    row("", "actor.adam.betas", judged=False),
    row("seed", "train.seed", "int", 42),
    row("temperature", "rollout.temperature", "float", 1.0),
    row("top_p", "rollout.top_p", "float", 1.0),
    row("max_completion_length", "rollout.max_new_tokens", before=COMPLETIONS),
    row("vllm_tensor_parallel_size", "vllm.tensor_parallel_size", "int", 1),
    row("use_vllm", "vllm.num_engines"),
    row("vllm_gpu_memory_utilization", "vllm.gpu_memory_utilization", "float", 0.95),
    row("save_steps", "ckpt.save_steps", "int", -1, read=_positive, rollouts=True),
    row("eval_steps", "eval.steps", "int", -1, read=_positive, rollouts=True),
    row("model_name_or_path", "actor.model_name_or_path", "str", "", read=lambda name: name or None),
    row("parameters", "actor.model_name_or_path", fixable=False),
    row("dataset_name", "data.prompt_dataset", "str", "", read=lambda name: name or None, judged=False),
    row("lora", "ds.lora.rank", "int", 0, read=lambda rank: rank > 0, fixable=False),
    row("gradient_checkpointing", "actor.gradient_checkpointing_enable", "bool", False),
    row("sharding", "ds.zero_stage", "int", 2, read=lambda stage: f"zero{stage}" if stage else "none", fixable=False),
)


TABLE = ReleaseTable(__package__, VERSION)
releases, known, span = TABLE.releases, TABLE.known, TABLE.span


def at(key: str, version: Version) -> str:
    """Return an option, which is named as today, under its name in a release."""
    return FLAT.get(key, key) if version < DOTTED else key
