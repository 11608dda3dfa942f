"""Which keys EasyR1 takes by release, the words that they hold, and the key behind each field of a setting.

``keys.json`` is written by benchmarks/tools/easyr1_keys.py from EasyR1's own classes. Sources: EasyR1 0.3.3
verl/trainer/config.py, verl/trainer/core_algos.py, verl/workers/fsdp_workers.py.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from grposweep.frameworks.base import Field, ReleaseTable, text
from grposweep.frameworks.dotted import clip, estimator_word, frequency, top_k, unless
from grposweep.setting import FrameworkTraits, Version

TRAITS = FrameworkTraits("easyr1", "EasyR1", unit="prompts", syntax="dotted")
VERSION: Version = (0, 3, 3)
ALGORITHM_KL: Version = (0, 3, 0)  # before, KL in the loss is in worker.actor: use_kl_loss, kl_loss_coef, kl_loss_type
EXAMPLE = "examples/config.yaml"  # on which EasyR1's own scripts build
ACTOR, ALGORITHM, ROLLOUT = "worker.actor", "algorithm", "worker.rollout"
RENAMED = {  # read by today's name in every version; GV301 says which does not exist
    "worker.actor.ulysses_sequence_parallel_size": "worker.actor.ulysses_size",
    "worker.actor.optim.warmup_style": "worker.actor.optim.lr_scheduler_type",
    "trainer.total_episodes": "trainer.total_epochs",
}
FIELDS = (  # in the order of a written recipe
    Field("prompts_per_rollout", "data.rollout_batch_size", "int", 1),
    Field("prompts_per_generation", "data.mini_rollout_batch_size", "int?"),
    Field("num_generations", f"{ROLLOUT}.n", "int", 1),
    Field("prompts_per_step", f"{ACTOR}.global_batch_size", "int", 1),
    Field("per_device_train_batch_size", f"{ACTOR}.micro_batch_size_per_device_for_update", "int", 1),
    Field("experience_batch_size", f"{ACTOR}.micro_batch_size_per_device_for_experience", "int", 1),
    Field("dynamic_batching", f"{ACTOR}.dynamic_batching", "bool", False),
    Field("sequence_parallel_size", f"{ACTOR}.ulysses_size", "int", 1),
    Field("num_iterations", f"{ACTOR}.ppo_epochs", "int", 1),
    Field("offloads_parameters", f"{ACTOR}.fsdp.enable_cpu_offload", "bool", False),
    Field("", "trainer.nnodes"),
    Field("processes", "trainer.n_gpus_per_node"),
    Field("advantage_estimator", f"{ALGORITHM}.adv_estimator", "str", ""),
    Field("loads_reference", f"{ALGORITHM}.disable_kl", write=lambda loads: not loads),
    Field("kl_placement", f"{ALGORITHM}.use_kl_loss", before={ALGORITHM_KL: f"{ACTOR}.use_kl_loss"}),
    Field("kl_estimator", f"{ALGORITHM}.kl_penalty", write=estimator_word,
          before={ALGORITHM_KL: f"{ACTOR}.kl_loss_type"}),
    Field("kl_reward_estimator", f"{ALGORITHM}.kl_penalty", write=estimator_word),
    Field("beta", f"{ALGORITHM}.kl_coef", before={ALGORITHM_KL: f"{ACTOR}.kl_loss_coef"}),
    Field("kl_reward_coefficient", f"{ALGORITHM}.kl_coef"),
    Field("kl_controller", f"{ALGORITHM}.kl_type", "str", "fixed"),
    Field("kl_horizon", f"{ALGORITHM}.kl_horizon", "float", 0.0),
    Field("kl_target", f"{ALGORITHM}.kl_target", "float", 0.0),
    Field("filters_groups", f"{ALGORITHM}.online_filtering", "bool", False),
    Field("loss_type", f"{ACTOR}.loss_type", fixable=False),
    Field("loss_average", f"{ACTOR}.loss_avg_mode", "str", "token"),
    Field("epsilon", f"{ACTOR}.clip_ratio_low", "float", 0.2, before={ALGORITHM_KL: f"{ACTOR}.clip_ratio"}),
    Field("epsilon_high", f"{ACTOR}.clip_ratio_high", "float", 0.3, before={ALGORITHM_KL: f"{ACTOR}.clip_ratio"}),
    clip("delta", f"{ACTOR}.clip_ratio_dual", 3.0),
    unless("sapo_temperature_pos", f"{ACTOR}.tau_positive", 1.0),
    unless("sapo_temperature_neg", f"{ACTOR}.tau_negative", 1.05),
    Field("max_grad_norm", f"{ACTOR}.max_grad_norm", "float", 0.0),
    Field("max_steps", "trainer.max_steps", "int?", rollouts=True),
    Field("epochs", "trainer.total_epochs", "int?"),
    frequency("save_steps", "trainer.save_freq"),
    frequency("eval_steps", "trainer.val_freq"),
    Field("learning_rate", f"{ACTOR}.optim.lr", "float", 0.0),
    Field("lr_scheduler_type", f"{ACTOR}.optim.lr_scheduler_type", "str", "constant"),
    Field("warmup_steps", f"{ACTOR}.optim.lr_warmup_steps", rollouts=True),
    Field("", f"{ACTOR}.optim.lr_warmup_ratio"),
    Field("minimum_learning_rate_ratio", f"{ACTOR}.optim.min_lr_ratio", "float?"),
    Field("weight_decay", f"{ACTOR}.optim.weight_decay", "float", 0.0),
    Field("", f"{ACTOR}.optim.betas", judged=False),
    Field("dataset_name", "data.train_files", "str", "", read=lambda name: name or None, judged=False),
    Field("seed", "data.seed", "int", 1),
    Field("max_prompt_length", "data.max_prompt_length", "int", 1),
    Field("max_completion_length", "data.max_response_length", "int", 1),
    Field("model_name_or_path", f"{ACTOR}.model.model_path", "str", "", read=lambda name: name or None),
    Field("parameters", f"{ACTOR}.model.model_path", fixable=False),
    Field("lora", f"{ACTOR}.model.lora.rank", "int", 0, read=lambda rank: rank > 0, fixable=False),
    Field("temperature", f"{ROLLOUT}.temperature", "float", 0.0),
    Field("top_p", f"{ROLLOUT}.top_p", "float", 0.0),
    top_k(f"{ROLLOUT}.top_k"),
    Field("vllm_tensor_parallel_size", f"{ROLLOUT}.tensor_parallel_size", "int", 1),
    Field("vllm_gpu_memory_utilization", f"{ROLLOUT}.gpu_memory_utilization", "float", 0.0),
    Field("max_batched_tokens", f"{ROLLOUT}.max_num_batched_tokens", "int", 1),
)  # fmt: skip
ESTIMATORS = ("kl", "abs", "mse", "low_var_kl", "full")
CHOICES: dict[str, tuple[str, ...]] = {
    "algorithm.adv_estimator": ("grpo", "gae", "grpo_passk", "reinforce_plus_plus", "remax", "rloo"),
    "algorithm.kl_penalty": ESTIMATORS,
    "algorithm.kl_type": ("fixed", "adaptive"),
    "worker.actor.kl_loss_type": ESTIMATORS,  # until 0.2
    "worker.actor.loss_avg_mode": ("token", "seq"),
    "worker.actor.loss_type": ("default", "gspo", "gspo_token", "cispo", "sapo"),
    "worker.actor.optim.lr_scheduler_type": ("constant", "cosine"),
    "worker.actor.optim.strategy": ("adamw", "adamw_bf16"),
}
# What EasyR1 overwrites with another key's value after it has read everything.
OVERWRITTEN = {
    "worker.actor.disable_kl": "algorithm.disable_kl",
    "worker.actor.use_kl_loss": "algorithm.use_kl_loss",
    "worker.actor.kl_penalty": "algorithm.kl_penalty",
    "worker.actor.kl_coef": "algorithm.kl_coef",
    "worker.rollout.prompt_length": "data.max_prompt_length",
    "worker.rollout.response_length": "data.max_response_length",
    "worker.rollout.trust_remote_code": "worker.actor.model.trust_remote_code",
    "worker.ref.micro_batch_size_per_device_for_experience": "worker.actor.micro_batch_size_per_device_for_experience",
    "worker.ref.padding_free": "worker.actor.padding_free",
    "worker.ref.dynamic_batching": "worker.actor.dynamic_batching",
    "worker.ref.ulysses_size": "worker.actor.ulysses_size",
    "worker.ref.use_torch_compile": "worker.actor.use_torch_compile",
}


TABLE = ReleaseTable(__package__, VERSION)  # a type that begins with ``auto`` is of a key that EasyR1 overwrites
releases, known, span = TABLE.releases, TABLE.known, TABLE.span


@cache
def example(version: Version = VERSION) -> Mapping[str, Any]:
    """Return ``examples/config.yaml``, on which EasyR1's own scripts and most others build."""
    name = text(max(release for release in releases() if release <= version))
    return dict(TABLE.data["examples"][name])


def base_config(name: str, version: Version) -> Mapping[str, Any] | None:
    """Return EasyR1's own example where just that is named; None for other names."""
    return example(version) if name.removeprefix("./") == EXAMPLE else None
