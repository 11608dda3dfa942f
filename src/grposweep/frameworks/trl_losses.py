"""What a recipe for TRL cannot say of a setting, or says otherwise, and why: by release, and of other frameworks' ideas.

Sources: trl trainer/grpo_config.py by release (frameworks/trl_keys.json); the estimators' gradients and the defaults of
EasyR1, verl and ms-swift are compared in docs/frameworks.md.
"""

from collections.abc import Iterator
from typing import Any

from grposweep.frameworks import trl
from grposweep.frameworks.keys import known, span, text
from grposweep.rules.loss import LOSSES
from grposweep.setting import TRL_FAMILY, Setting, Version

CORRECTED_KL = (0, 26)  # since then TRL can weigh its KL term with the importance ratio, which k3 alone does not
SHARED = ("sequence_parallel_size", "context_parallel_size", "tensor_parallel_size", "pipeline_parallel_size")
NAMES = frozenset(
    ["model_name_or_path", "dataset_name", "max_prompt_length"]
)  # said in words, or of no effect in a plan
# Fields that do nothing unless another one is set, and that one; nothing is lost with them.
NEEDS = {
    "use_bias_correction_kl": "beta",
    "ref_model_sync_steps": "sync_ref_model",
    "ref_model_mixup_alpha": "sync_ref_model",
}


def fitted(s: Setting, framework: str, version: Version) -> tuple[Setting, tuple[str, ...]]:
    """The setting with nothing in it that this release does not know, and what that changes."""
    nearest: dict[str, Any] = {}
    if LOSSES.get(s.loss_type, (0,)) > version:
        nearest["loss_type"] = "bnpo"  # token means, as all later ones are
    if s.scale_rewards == "batch" and version < (0, 22):
        nearest["scale_rewards"] = "group"
    changed = (
        f"{name}={getattr(s, name)}: {framework} {text(version)} does not have it; {value} is the nearest"
        for name, value in nearest.items()
    )
    said = {**nearest, **_correction(s, version), **_alone(s), "framework": framework, "version": version}
    return s.altered(said), (*_elsewhere(s), *changed, *_unsaid(s, framework, version))


def _correction(s: Setting, version: Version) -> dict[str, bool]:
    """Whether k3 is weighed by the ratio, which other frameworks say by the estimator: k3+ has the same on-policy gradient."""
    if s.framework in TRL_FAMILY or s.use_bias_correction_kl is not None or version < CORRECTED_KL:
        return {}
    return {"use_bias_correction_kl": s.kl_estimator == "k3+"}


def _alone(s: Setting) -> dict[str, int]:
    """Every process has data of its own: TRL's GRPO shares no sequence and no layer between them."""
    return {} if s.framework in TRL_FAMILY else dict.fromkeys(SHARED, 1)


def _unsaid(s: Setting, framework: str, version: Version) -> Iterator[str]:
    """Fields that this release has no key for, and that are not what it does anyway."""
    takes, default = known(framework, version), trl.defaults(framework, version)
    for name in sorted(trl.SAME - takes.keys() - NAMES):
        if span(name) is None:
            continue  # no TRL's: what only other frameworks do is said below
        value = getattr(s, name)
        anyway = default.get(name, getattr(Setting(), name))
        inert = (name.startswith("vllm_") and not s.use_vllm) or (name in NEEDS and not getattr(s, NEEDS[name]))
        if value is not None and value != anyway and not inert and not (value is False and anyway is None):
            yield f"{name}={value}: {framework} {text(version)} has no such key{_does(anyway)}"


def _does(anyway: Any) -> str:
    return "" if anyway is None else f", and does as with {anyway}"


def _elsewhere(s: Setting) -> Iterator[str]:
    """What other frameworks do and no TRL does."""
    if s.advantage_estimator != "grpo":
        yield f"advantage_estimator={s.advantage_estimator}: TRL's trainer has grpo only"
    if s.kl_placement in ("reward", "both") and s.kl_reward_coefficient:
        yield f"KL in the reward (coefficient {s.kl_reward_coefficient:g}): TRL has it in the loss only; it is left out"
    if s.kl_placement in ("loss", "both") and s.beta and s.kl_estimator not in (None, "k3", "k3+"):
        yield f"KL estimator {s.kl_estimator}: TRL's is k3, weighed by the importance ratio with use_bias_correction_kl"
    if s.dynamic_batching:
        yield "dynamic batching fills micro-batches by tokens: TRL's are a fixed number of completions"
    if s.prompts_per_generation:
        yield "rollouts generated in portions: TRL generates each at once"
    if s.framework not in TRL_FAMILY and any(getattr(s, name) > 1 for name in SHARED):
        yield "sequence, context, tensor and pipeline parallelism: TRL's GRPO has none, so all processes get data of their own"
    if s.minimum_learning_rate_ratio and s.lr_scheduler_type != "cosine":
        yield f"minimum learning rate ({s.minimum_learning_rate_ratio:g} of the peak): only with a cosine"
    if s.framework not in TRL_FAMILY:
        yield "advantages are scaled with 1e-4 added to the standard deviation, micro-batches are shuffled within a rank"
