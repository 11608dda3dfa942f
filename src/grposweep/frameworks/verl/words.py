"""The words that verl's keys hold, by release, and the keys that it takes and does not read.

Sources: verl 0.2 to 0.9.1 trainer/ppo/core_algos.py, workers/config/actor.py, optimizer.py, rollout.py,
workers/rollout/base.py; verl 0.9.1 trainer/config/algorithm.py (rollout_is_threshold).
"""

from grposweep.frameworks.base import KeyTable
from grposweep.frameworks.verl.keys import ACTOR, OPTIM, ROLLOUT, engine_of, is_own_trainer, sizes_per_gpu_only
from grposweep.recipe import Recipe
from grposweep.setting import Version

ALWAYS: Version = (0, 0, 0)
_ESTIMATORS: dict[str, Version] = {
    "kl": ALWAYS, "abs": ALWAYS, "mse": ALWAYS, "low_var_kl": ALWAYS, "full": ALWAYS,
    "k1": (0, 4, 0), "k2": (0, 4, 0), "k3": (0, 4, 0),
}  # fmt: skip
KL: dict[str, Version] = {**_ESTIMATORS, **{f"{word}+": (0, 6, 0) for word in _ESTIMATORS}}
# The words of a key, each with the release that it came with.
SINCE: dict[str, dict[str, Version]] = {
    "algorithm.adv_estimator": {
        "grpo": ALWAYS, "gae": ALWAYS, "reinforce_plus_plus": ALWAYS, "remax": ALWAYS, "rloo": (0, 3, 0),
        "reinforce_plus_plus_baseline": (0, 4, 0), "opo": (0, 4, 0), "grpo_passk": (0, 4, 0), "gpg": (0, 5, 0),
        "rloo_vectorized": (0, 6, 0), "grpo_vectorized": (0, 6, 0), "optimal_token_baseline": (0, 7, 0),
        "tir_optimal_token_baseline": (0, 7, 0), "gdpo": (0, 7, 0),
    },
    "algorithm.kl_penalty": KL,
    "algorithm.kl_ctrl.type": {"fixed": ALWAYS, "adaptive": ALWAYS},
    f"{ACTOR}.kl_loss_type": KL,
    f"{ACTOR}.loss_agg_mode": {
        "token-mean": ALWAYS, "seq-mean-token-sum": ALWAYS, "seq-mean-token-mean": ALWAYS,
        "seq-mean-token-sum-norm": ALWAYS, "token-sum": (0, 9, 0),
    },
    f"{ACTOR}.policy_loss.loss_mode": {
        "vanilla": ALWAYS, "gpg": ALWAYS, "clip_cov": ALWAYS, "kl_cov": ALWAYS, "gspo": (0, 6, 0), "geo_mean": (0, 6, 0),
        "dppo_tv": (0, 7, 0), "dppo_kl": (0, 7, 0), "sapo": (0, 7, 0), "cispo": (0, 7, 0), "bypass_mode": (0, 7, 0),
        "dro": (0, 9, 0),
    },
    f"{OPTIM}.lr_scheduler_type": {"constant": ALWAYS, "cosine": ALWAYS},
    f"{OPTIM}.warmup_style": {"constant": ALWAYS, "cosine": ALWAYS},
    f"{ROLLOUT}.name": {"vllm": ALWAYS, "sglang": ALWAYS, "trtllm": (0, 7, 0)},
    f"{ROLLOUT}.mode": {"async": ALWAYS},
}  # fmt: skip
# Words that later releases refuse, each with the release that it left with.
UNTIL: dict[str, dict[str, Version]] = {
    f"{ROLLOUT}.mode": {"sync": (0, 7, 0)},
    f"{ROLLOUT}.name": {"hf": (0, 8, 0), "sglang_async": (0, 5, 0)},
    f"{ACTOR}.policy_loss.loss_mode": {"rollout_correction": (0, 7, 0)},
}
REGISTRIES = frozenset(
    {"algorithm.adv_estimator", f"{ACTOR}.policy_loss.loss_mode", f"{ROLLOUT}.name", f"{ROLLOUT}.mode"}
)
# A choice that only counts where a switch is on.
SWITCHES = {f"{ACTOR}.kl_loss_type": f"{ACTOR}.use_kl_loss"}
# Keys with a number as their default that take words too ("0.5_4.0": a lower and an upper bound).
ALSO_WORDS = frozenset({"algorithm.rollout_correction.rollout_is_threshold"})


def words(recipe: Recipe) -> dict[str, tuple[str, ...]]:
    """Return the words of each key that a recipe's release knows; source of its own may have registered others."""
    found = {
        key: tuple(word for word, since in every.items() if since <= recipe.version)
        + tuple(word for word, until in UNTIL.get(key, {}).items() if recipe.version < until)
        for key, every in SINCE.items()
    }
    own = REGISTRIES if recipe.vendored is not None or not is_own_trainer(recipe) else frozenset()
    engine = {f"{OPTIM}.lr_scheduler_type"} if engine_of(recipe) not in ("dp", "megatron") else set()
    return {key: allowed for key, allowed in found.items() if key not in own | engine}


def unread(known: KeyTable) -> dict[str, str]:
    """Return the keys that a release takes and nothing in it reads, each with what is read instead."""
    conditions = {
        f"{ACTOR}.grad_clip": (f"{OPTIM}.clip_grad", sizes_per_gpu_only(known)),
        f"{ACTOR}.clip_ratio": (f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_low" in known),
        "algorithm.filter_groups.max_num_gen_batches":
            ("algorithm.filter_groups.max_inflight_gen_batches", "trainer.use_v1" in known),
        "data.val_batch_size": ("", known.defaults.get("data.val_batch_size") is None),
    }  # fmt: skip
    return {key: instead for key, (instead, is_unread) in conditions.items() if is_unread}
