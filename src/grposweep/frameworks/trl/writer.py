"""Write a setting as a recipe for TRL or Open-R1: every number that decides the training explicit, whatever the default.

Sources: trl trainer/grpo_config.py by release (keys.json), scripts/grpo.py; open-r1 README (its launch). The estimators'
gradients and the defaults of EasyR1, verl and ms-swift are compared in docs/frameworks.md.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from grposweep.frameworks.base import Framework, KeySpec, TranslatedRecipe, text
from grposweep.frameworks.trl.keys import SAME, span
from grposweep.frameworks.trl.reader import defaults
from grposweep.frameworks.units import in_completions
from grposweep.plan import save_every, total_steps
from grposweep.rules.loss import LOSSES
from grposweep.setting import Setting, Version

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


def fitted(framework: Framework, s: Setting, version: Version) -> tuple[Setting, tuple[str, ...]]:
    """The setting with nothing in it that this release does not know, and what that changes."""
    nearest: dict[str, Any] = {}
    if LOSSES.get(s.loss_type, (0,)) > version:
        nearest["loss_type"] = "bnpo"  # token means, as all later ones are
    if s.scale_rewards == "batch" and version < (0, 22):
        nearest["scale_rewards"] = "group"
    changed = (
        f"{name}={getattr(s, name)}: {framework.name} {text(version)} does not have it; {value} is the nearest"
        for name, value in nearest.items()
    )
    said = {**nearest, **_correction(s, version), **_alone(s), "framework": framework.traits, "version": version}
    return s.replace(said), (*_elsewhere(s), *changed, *_unsaid(framework, s, version))


def _correction(s: Setting, version: Version) -> dict[str, bool]:
    """Whether k3 is weighed by the ratio, which other frameworks say by the estimator: k3+ has the same on-policy gradient."""
    if s.framework.follows_trl or s.use_bias_correction_kl is not None or version < CORRECTED_KL:
        return {}
    return {"use_bias_correction_kl": s.kl_estimator == "k3+"}


def _alone(s: Setting) -> dict[str, int]:
    """Every process has data of its own: TRL's GRPO shares no sequence and no layer between them."""
    return {} if s.framework.follows_trl else dict.fromkeys(SHARED, 1)


def _unsaid(framework: Framework, s: Setting, version: Version) -> Iterator[str]:
    """Fields that this release has no key for, and that are not what it does anyway."""
    takes, default = framework.takes(version), defaults(framework, version)
    for name in sorted(SAME - takes.keys() - NAMES):
        if span(name) is None:
            continue  # no TRL's: what only other frameworks do is said below
        value = getattr(s, name)
        anyway = default.get(name, getattr(Setting(), name))
        inert = (name.startswith("vllm_") and not s.use_vllm) or (name in NEEDS and not getattr(s, NEEDS[name]))
        if value is not None and value != anyway and not inert and not (value is False and anyway is None):
            yield f"{name}={value}: {framework.name} {text(version)} has no such key{_does(anyway)}"


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
    if not s.framework.follows_trl and any(getattr(s, name) > 1 for name in SHARED):
        yield "sequence, context, tensor and pipeline parallelism: TRL's GRPO has none, so all processes get data of their own"
    if s.minimum_learning_rate_ratio and s.lr_scheduler_type != "cosine":
        yield f"minimum learning rate ({s.minimum_learning_rate_ratio:g} of the peak): only with a cosine"
    if not s.framework.follows_trl:
        yield "advantages are scaled with 1e-4 added to the standard deviation, micro-batches are shuffled within a rank"


# What decides the training, in the order of a recipe; every other key is written where it is not the default.
ALWAYS = (
    "num_generations", "per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation",
    "num_iterations", "max_completion_length", "temperature", "top_p", "top_k", "beta", "use_bias_correction_kl",
    "loss_type", "epsilon", "epsilon_high", "delta", "importance_sampling_level", "mask_truncated_completions",
    "learning_rate", "optim", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "seed",
)  # fmt: skip
FIRST = ("model_name_or_path", "dataset_name")
EVALUATED = ("per_device_eval_batch_size", "num_generations_eval")
BOOLEAN_SCALES = {"group": True, "none": False}  # scale_rewards before TRL 0.22


def render(
    framework: Framework, s: Setting, script: tuple[str, ...], options: tuple[str, ...] = ()
) -> TranslatedRecipe:
    """Return the recipe of a framework's default release, its launch command, and what it cannot say.

    ``script`` is what accelerate starts, ``options`` are accelerate's.
    """
    sized, undivided = in_completions(s)
    fits, lost = fitted(framework, sized, framework.version)
    keys = native_keys(framework, fits, framework.version)
    recipe = yaml.safe_dump(keys, sort_keys=False, allow_unicode=True)
    count = [] if s.processes is None else ["--num_processes", str(s.processes)]
    command = ("accelerate", "launch", *options, *count, *script, "--config", "recipe.yaml")
    return TranslatedRecipe(recipe, "recipe.yaml", command, losses=(*undivided, *lost))


def native_keys(framework: Framework, s: Setting, version: Version) -> dict[str, Any]:
    """Return a setting in completions as a recipe's keys and values."""
    takes, default = framework.takes(version), defaults(framework, version)
    found: dict[str, Any] = {}
    for name in (*FIRST, *ALWAYS, *sorted(SAME)):
        value = getattr(s, name)
        if name not in takes or name in found or name in SPECIAL:
            continue
        if value is None and (default.get(name) is None or not takes[name].type.endswith("?")):
            continue  # another framework has no word for it: TRL's default
        if name in FIRST or name in ALWAYS or value != default.get(name):
            found[name] = _plain(value, takes[name])
    if found.get("top_k") == 0 and takes["top_k"].default is None:
        found["top_k"] = None  # 0 is "all tokens" only since TRL 0.27
    if s.steps_per_generation == s.gradient_accumulation_steps:
        found.pop("steps_per_generation", None)  # the default, in every release that has it
    return {**found, **_scaling(s, takes), **_schedule(s, takes), **evaluation(s, EVALUATED), **saving(s), **_model(s)}


SPECIAL = frozenset(  # said by the functions below
    [
        "scale_rewards",
        "max_steps",
        "lr_scheduler_type",
        "warmup_steps",
        "eval_strategy",
        "eval_steps",
        "per_device_eval_batch_size",
        "num_generations_eval",
        "save_strategy",
        "save_steps",
        "minimum_learning_rate_ratio",
    ]
)


def _plain(value: Any, key: KeySpec) -> Any:
    """Whole numbers as such, where a key counts."""
    return int(value) if isinstance(value, float) and key.type.startswith("int") else value


def _scaling(s: Setting, takes: Mapping[str, KeySpec]) -> dict[str, Any]:
    if "scale_rewards" not in takes:
        return {}
    if takes["scale_rewards"].type.startswith("bool"):
        return {"scale_rewards": BOOLEAN_SCALES.get(s.scale_rewards, True)}
    return {"scale_rewards": s.scale_rewards}


def _schedule(s: Setting, takes: Mapping[str, KeySpec]) -> dict[str, Any]:
    """Return the run's length and its learning rate's schedule."""
    if 0 < s.warmup_steps < 1 and takes["warmup_steps"].type == "int":
        return {**length_and_rate(s), "warmup_ratio": s.warmup_steps}
    return {**length_and_rate(s), "warmup_steps": int(s.warmup_steps) if s.warmup_steps >= 1 else s.warmup_steps or 0}


def length_and_rate(s: Setting) -> dict[str, Any]:
    """Return the length in optimizer steps where they are known or given, otherwise in epochs; and the rate's schedule."""
    steps = s.max_steps if s.budget_completions is None and not s.ends_with_epochs else total_steps(s)
    length = {"max_steps": steps} if steps else {"num_train_epochs": s.epochs} if s.epochs else {}
    if s.minimum_learning_rate_ratio and s.lr_scheduler_type == "cosine":
        ratio = {"min_lr_rate": s.minimum_learning_rate_ratio}
        return {**length, "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": ratio}
    return {**length, "lr_scheduler_type": s.lr_scheduler_type}


def evaluation(s: Setting, names: tuple[str, ...] = ("per_device_eval_batch_size",)) -> dict[str, Any]:
    """Return when it evaluates, and the sizes of these names.

    A number of evaluations is spread over the steps where these are known.
    """
    if not s.evaluates or s.eval_strategy == "no":
        return {"eval_strategy": "no"}
    sizes = {name: size for name in names if (size := getattr(s, name)) is not None}
    total = total_steps(s)
    if s.evaluations and total:
        return {"eval_strategy": "steps", "eval_steps": max(total // s.evaluations, 1), **sizes}
    found: dict[str, Any] = {"eval_strategy": s.eval_strategy or "steps", **sizes}
    return found if s.eval_steps is None else {**found, "eval_steps": _steps(s.eval_steps)}


def saving(s: Setting) -> dict[str, Any]:
    """Return when checkpoints are saved."""
    every = save_every(s.replace({"save_steps": None})) if s.checkpoints else s.save_steps
    if s.save_strategy not in (None, "steps"):
        return {"save_strategy": s.save_strategy}
    return {} if every is None else {"save_strategy": "steps", "save_steps": _steps(every)}


def _model(s: Setting) -> dict[str, Any]:
    sizes = {
        "tp_size": s.tensor_parallel_size,
        "cp_size": s.context_parallel_size,
        "sp_size": s.sequence_parallel_size,
    }
    large = {name: size for name, size in sizes.items() if size > 1}
    return {**({"use_peft": True} if s.lora else {}), **({"parallelism_config": large} if large else {})}


def _steps(every: float) -> float:
    """A frequency in optimizer steps, below 1 a share of all."""
    return int(every) if every >= 1 else every
