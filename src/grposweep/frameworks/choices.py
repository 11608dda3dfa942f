"""The words that EasyR1 and verl know for a key, and the keys that nothing reads.

Sources: EasyR1 0.3.3 verl/trainer/core_algos.py, verl/workers/fsdp_workers.py; verl 0.9.1 trainer/ppo/core_algos.py,
workers/config/actor.py, optimizer.py, rollout.py, workers/rollout/replica.py.
"""

from grposweep.frameworks.verl.reader import ACTOR, OPTIM, ROLLOUT

_EASYR1_KL = ("kl", "abs", "mse", "low_var_kl", "full")
_VERL_KL = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "full")
_PLUS = tuple(f"{word}+" for word in _VERL_KL)
EASYR1: dict[str, tuple[str, ...]] = {
    "algorithm.adv_estimator": ("grpo", "gae", "grpo_passk", "reinforce_plus_plus", "remax", "rloo"),
    "algorithm.kl_penalty": _EASYR1_KL,
    "algorithm.kl_type": ("fixed", "adaptive"),
    "worker.actor.kl_loss_type": _EASYR1_KL,  # until 0.2
    "worker.actor.loss_avg_mode": ("token", "seq"),
    "worker.actor.loss_type": ("default", "gspo", "gspo_token", "cispo", "sapo"),
    "worker.actor.optim.lr_scheduler_type": ("constant", "cosine"),
    "worker.actor.optim.strategy": ("adamw", "adamw_bf16"),
}
VERL: dict[str, tuple[str, ...]] = {
    "algorithm.adv_estimator": (
        "grpo", "gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "rloo", "opo", "grpo_passk", "gpg",
        "rloo_vectorized", "grpo_vectorized", "optimal_token_baseline", "tir_optimal_token_baseline", "gdpo",
    ),
    "algorithm.kl_penalty": (*_VERL_KL, *_PLUS),
    "algorithm.kl_ctrl.type": ("fixed", "adaptive"),
    f"{ACTOR}.kl_loss_type": (*_VERL_KL, *_PLUS),
    f"{ACTOR}.loss_agg_mode": (
        "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm",
    ),
    f"{ACTOR}.policy_loss.loss_mode": (
        "vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "dro", "cispo", "bypass_mode",
    ),
    f"{OPTIM}.lr_scheduler_type": ("constant", "cosine"),
    f"{OPTIM}.warmup_style": ("constant", "cosine"),
    f"{ROLLOUT}.name": ("vllm", "sglang", "trtllm"),
    f"{ROLLOUT}.mode": ("async",),
}  # fmt: skip
# A word that only counts where a switch is on.
SWITCHES = {
    "algorithm.kl_ctrl.type": "algorithm.use_kl_in_reward",
    f"{ACTOR}.kl_loss_type": f"{ACTOR}.use_kl_loss",
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
# What verl takes and nothing in it reads, with what is read instead.
UNREAD = {
    f"{ACTOR}.grad_clip": f"{OPTIM}.clip_grad",
    f"{ACTOR}.clip_ratio": f"{ACTOR}.clip_ratio_low",
    "algorithm.filter_groups.max_num_gen_batches": "algorithm.filter_groups.max_inflight_gen_batches",
    "data.val_batch_size": "",
}
