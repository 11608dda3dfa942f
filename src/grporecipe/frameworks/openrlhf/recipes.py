"""OpenRLHF: its options by release, and how its launches are read and written. A sweep cannot train with it.

A rollout is counted in prompts, ``train.batch_size`` in completions. `make openrlhf-release`
(benchmarks/tools/openrlhf_keys.py) writes ``keys.json`` from its packages. Sources: OpenRLHF 0.11.2 cli/train_ppo_ray.py,
trainer/ppo_trainer.py (steps), trainer/ppo_utils/experience_maker.py (advantages, KL), models/loss.py (PolicyLoss),
models/utils.py (compute_approx_kl), utils/deepspeed/deepspeed.py.
"""

import re
from collections.abc import Mapping
from typing import Any

from grporecipe.fields.dotted import read_betas
from grporecipe.fields.lora import lora_rows
from grporecipe.model.framework import Field, NativeChange, Values
from grporecipe.model.recipe import Recipe
from grporecipe.model.releases import ReleaseTable
from grporecipe.model.setting import FrameworkTraits, Setting, Version
from grporecipe.model.values import model_size
from grporecipe.registries import NEWEST

TRAITS = FrameworkTraits("openrlhf", "OpenRLHF", unit="prompts")
VERSION: Version = NEWEST["openrlhf"]
DOTTED: Version = (0, 10, 2)  # options have sections since then: --rollout.batch_size instead of --rollout_batch_size
TABLE = ReleaseTable(__package__, VERSION)
releases, known, span, choices = TABLE.releases, TABLE.known, TABLE.span, TABLE.choices
RENAMED: dict[str, str] = TABLE.data["renamed"]  # the older and the present name
FLAT = {new: old for old, new in RENAMED.items()}
COMPLETIONS: dict[Version, str] = {(0, 9, 8): "generate_max_len", DOTTED: "max_new_tokens"}


def row(name: str, key: str, kind: str = "", default: Any = None, **more: Any) -> Field:
    """Return the row of an option, with its other name before 0.10.2."""
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
    row("loss_type", "actor.loss_agg_mode", fixable=False),
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
    row("eval_dataset_name", "eval.dataset", "str", "", read=lambda name: name or None, judged=False),
    *lora_rows("ds.lora.rank", "ds.lora.alpha", "ds.lora.target_modules", 16, row),
    row("lora_dropout", "ds.lora.dropout", "float", 0.0, fixable=False, judged=False),
    row("gradient_checkpointing", "actor.gradient_checkpointing_enable", "bool", False),
    row("sharding", "ds.zero_stage", "int", 2, read=lambda stage: f"zero{stage}" if stage else "none", fixable=False),
)


def at(key: str, version: Version) -> str:
    """Return the name in a release of an option given by its present name."""
    return FLAT.get(key, key) if version < DOTTED else key


# Its estimators in TRL's terms; group_norm and dr_grpo differ in the scaling.
ESTIMATORS = {"group_norm": "grpo", "dr_grpo": "grpo", "reinforce": "reinforce_plus_plus",
              "reinforce_baseline": "reinforce_plus_plus_baseline"}  # fmt: skip
WRITTEN = {"rloo": "rloo", "gae": "gae", "reinforce_plus_plus": "reinforce",
           "reinforce_plus_plus_baseline": "reinforce_baseline", "flash_reinforce": "flash_reinforce"}  # fmt: skip
COMMAND = ("bash", "recipe.sh")
PROGRAM = "python3 -m openrlhf.cli.train_ppo_ray"
OWN_PROGRAM = re.compile(r"\bopenrlhf[./]cli[./]train_ppo_ray")
TOKENS, SEQUENCES = "token-mean", "seq-mean-token-mean"  # of a loss: every token weighs the same, or every sequence
LONGEST = 2048  # tokens of prompt and completion, OpenRLHF's default


class Options(Values):
    """The values of one recipe by present names."""

    @classmethod
    def of(cls, values: Values) -> "Options":
        """Return them for the values under the names of the release."""
        return cls(**vars(values))

    def get(self, key: str, kind: str = "any", default: Any = None) -> Any:
        """Return the value of an option, given by its present name, as a type."""
        return super().get(at(key, self.recipe.version), kind, default)

    def numbers(self, key: str) -> list[float]:
        """Return the numbers of a list; empty if it is no list of numbers."""
        value = self.values.get(at(key, self.recipe.version))
        try:
            return [float(item) for item in value] if isinstance(value, (list, tuple)) else []
        except (TypeError, ValueError):
            return []


def derive_sizes(values: Values, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the actor's GPUs and the prompts of an optimizer step. The recipe states that step in completions."""
    option, stated = Options.of(values), fields["processes"]
    gpus = option.whole("actor.num_nodes", 1) * option.whole("actor.num_gpus_per_node", 8)
    names = {at(f"actor.{name}", values.recipe.version) for name in ("num_nodes", "num_gpus_per_node")}
    group, completions = max(fields["num_generations"], 1), option.whole("train.batch_size", 128)
    return {
        "processes": stated if stated is not None else None if values.bad & names else gpus,
        "prompts_per_step": max(completions // group, 1) if completions > 0 else completions,
        "use_vllm": option.whole("vllm.num_engines", 0) > 0,
        "vllm_mode": "colocate",
    }


def derive_kl(values: Values, _: Mapping[str, Any]) -> dict[str, Any]:
    """Return the place of the KL term: the reward, unless ``algo.kl.use_loss`` puts it into the loss."""
    option = Options.of(values)
    coefficient = option.number("algo.kl.init_coef", 0.01)
    in_loss = option.flag("algo.kl.use_loss")
    return {
        "kl_placement": "none" if coefficient == 0 else "loss" if in_loss else "reward",
        "beta": coefficient if in_loss else 0.0,
        "kl_reward_coefficient": 0.0 if in_loss else coefficient,
        "kl_controller": "fixed" if option.get("algo.kl.target", "float") is None else "adaptive",
    }


def derive_loss(values: Values, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the advantage and the loss: a token mean over a step, or (with gspo, or since 0.11.2) over each sequence."""
    option = Options.of(values)
    estimator = option.word("algo.advantage.estimator", "gae")
    clip = option.numbers("actor.eps_clip_low_high") or [option.number("actor.eps_clip", 0.2)] * 2
    is_gspo = option.word("actor.policy_loss_type", "ppo") == "gspo"
    by_sequence = is_gspo or option.word("actor.loss_agg_mode", TOKENS) == SEQUENCES
    launch = values.recipe.launch
    # Another program may form its groups in another way, as by a tree of completions.
    has_own_groups = fields["num_generations"] == 1 and launch is not None and not OWN_PROGRAM.search(launch.program)
    return {
        "advantage_estimator": "the trainer's own" if has_own_groups else ESTIMATORS.get(estimator, estimator),
        "epsilon": clip[0],
        "epsilon_high": clip[-1],
        "importance_sampling_level": "sequence" if is_gspo else "token",
        "loss_type": "grpo" if by_sequence else "dapo",
    }


def derive_rest(values: Values, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return completion length, schedule and Adam's rates. An unset length is the rest of the longest sequence."""
    option = Options.of(values)
    key = next(row for row in FIELDS if row.name == "max_completion_length").key_at(values.recipe.version)
    longest = option.whole("data.max_len", LONGEST)
    schedule = option.word("actor.lr_scheduler", "cosine_with_min_lr")
    return {
        "max_completion_length": values.whole(key) or longest,
        "lr_scheduler_type": "cosine" if schedule == "cosine_with_min_lr" else schedule,
        **read_betas(option.numbers("actor.adam.betas")),
        "parameters": model_size(fields["model_name_or_path"] or ""),
    }


DERIVED = (derive_sizes, derive_kl, derive_loss, derive_rest)


def _step(value: Any, _: Recipe, s: Setting, fields: Mapping[str, Any]) -> dict[str, Any]:
    group = fields.get(s.key("num_generations"), s.num_generations)
    return {s.key("prompts_per_step"): value * group}


def _gpus(value: Any, recipe: Recipe, s: Setting, _: Mapping[str, Any]) -> dict[str, Any] | None:
    count = recipe.config.get(at("actor.num_nodes", recipe.version), 1)
    if recipe.processes is not None or not isinstance(count, int) or count < 1 or value % count:
        return {"processes": value} if recipe.processes is not None else None
    return {s.key("processes"): value // count}


def _clip(value: Any, recipe: Recipe, s: Setting, _: Mapping[str, Any]) -> dict[str, Any] | None:
    return {s.key("epsilon"): value} if s.key("epsilon_high") not in recipe.config else None


SPECIAL: dict[str, NativeChange] = {
    "prompts_per_step": _step,
    "processes": _gpus,
    "epsilon": _clip,
    "epsilon_high": lambda *_: None,
    "kl_placement": lambda *_: None,
    "advantage_estimator": lambda *_: None,
    "importance_sampling_level": lambda *_: None,
    "use_vllm": lambda *_: None,
}
