"""GV505 and GV506 for ms-swift: a table of key combinations that it refuses or silently overrules.

Sources: ms-swift 4.6.0 arguments/rlhf_args.py and sft_args.py, trainers/arguments.py,
rlhf_trainers/grpo_trainer.py.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from grporecipe.files import Config, Json
from grporecipe.frameworks.ms_swift.keys import (
    TAKES_ALL_FOR_TAUGHT,
    is_megatron,
    known,
    read_value,
    spelled,
)
from grporecipe.frameworks.ms_swift.recipes import RENAMED
from grporecipe.frameworks.ms_swift.rules import MS_SWIFT
from grporecipe.model.recipe import Recipe
from grporecipe.model.setting import Version
from grporecipe.rules.helpers import show
from grporecipe.rules.registry import Violation, recipe_rule

# in a complete command line; a YAML file may leave them to it
NEEDED = ("dataset", "reward_funcs")
# every key, with its default if it is not set
Values = Config


@dataclass(frozen=True)
class Conflict:
    """Keys that exclude each other since a release: the condition, the reason and the change.
    Messages show the first key.
    """

    keys: tuple[str, ...]
    applies: Callable[[Values], bool]
    why: str
    # native keys, None removing one
    change: Config | None = None
    instead: str = ""
    since: Version = (3, 1, 1)


def _teaches(v: Values) -> bool:
    return bool(v["teacher_model"] or v["teacher_model_server"])


def _adapter(v: Values) -> bool:
    return str(v["tuner_type"]) != "full"


def _no_kl(v: Values) -> bool:
    return bool(v["beta"] == 0)


def _with_liger(*names: str) -> Callable[[Values], bool]:
    return lambda v: (
        bool(v["use_liger_kernel"]) and any(v[name] != known()[name].default for name in names)
    )


def _two_precisions(v: Values) -> bool:
    """Return whether fp16 and bf16 are both on: base_args/model_args.py _init_mixed_precision
    derives what is not set.
    """
    fp16, bf16 = v["fp16"], v["bf16"]
    fp16 = v["torch_dtype"] in ("float16", "float32") if fp16 is None else fp16
    return bool(fp16 and (v["torch_dtype"] == "bfloat16" if bf16 is None else bf16))


REFUSED = (
    Conflict(
        ("dataset",),
        lambda v: not v["dataset"],
        "no training data are named",
        instead="Set dataset.",
    ),
    Conflict(
        ("reward_funcs",),
        lambda v: (
            not (
                v["reward_funcs"]
                or v["reward_model"]
                or v["use_gym_env"]
                or v["gym_env"]
                or _teaches(v)
                or v["vllm_mode"] == "server"
            )
        ),
        "no reward is set; ms-swift 4.6.0 still trains, on advantages of 0 (its own check for it "
        "never fires)",
        instead="Name reward_funcs or a reward_model.",
        since=(4, 0, 0),
    ),
    Conflict(
        ("warmup_ratio", "warmup_steps"),
        lambda v: bool(v["warmup_ratio"] and v["warmup_steps"]),
        "warmup_steps is set as well, and ms-swift refuses the two together",
        {"warmup_ratio": None},
        since=(4, 0, 0),
    ),
    Conflict(
        ("warmup_ratio",),
        lambda v: not v["warmup_steps"] and (v["warmup_ratio"] or 0) >= 1,
        "a share is below 1; warmup_steps counts steps",
        instead="Set warmup_steps.",
        since=(4, 0, 0),
    ),
    Conflict(
        ("truncation_strategy",),
        lambda v: v["truncation_strategy"] in ("right", "split"),
        "GRPO cuts prompts on the left, or deletes long ones",
        {"truncation_strategy": "left"},
    ),
    Conflict(
        ("cached_dataset",),
        lambda v: bool(v["cached_dataset"] or v["cached_val_dataset"]),
        "GRPO generates its data, and ms-swift refuses cached ones",
        instead="Name it as dataset.",
        since=(3, 8, 0),
    ),
    Conflict(
        ("loss_type",),
        lambda v: isinstance(v["loss_type"], list) and len(v["loss_type"]) > 1,
        "several losses are for DPO only",
        instead="Choose one of them.",
    ),
    Conflict(
        ("loss_weights",),
        lambda v: bool(v["loss_weights"]),
        "weights of losses are for DPO only",
        {"loss_weights": None},
    ),
    Conflict(
        ("reward_funcs", "soft_cache_length"),
        lambda v: (
            "soft_overlong" in map(str, v["reward_funcs"] or []) and v["soft_cache_length"] is None
        ),
        "soft_overlong needs soft_cache_length, the tokens over which its penalty grows",
        instead="Set soft_cache_length.",
    ),
    Conflict(
        ("reward_model_plugin", "reward_model"),
        lambda v: (
            bool(v["reward_model_plugin"])
            and len(v["reward_model_plugin"]) != len(v["reward_model"] or [])
        ),
        "each reward model needs its plugin",
        instead="Give as many as there are reward models.",
    ),
    Conflict(
        ("ref_model", "tuner_type"),
        lambda v: bool(v["ref_model"]) and _adapter(v) and not _no_kl(v),
        "with an adapter the reference is the base model under it, and ms-swift refuses another",
        {"ref_model": None},
    ),
    Conflict(
        ("async_generate", "vllm_mode"),
        lambda v: bool(v["async_generate"]) and v["vllm_mode"] != "server",
        "generating ahead needs a vLLM server",
        {"async_generate": False},
    ),
    Conflict(
        ("async_generate", "multi_turn_scheduler"),
        lambda v: bool(v["async_generate"] and v["multi_turn_scheduler"]),
        "generating ahead does not work with several turns",
        {"async_generate": False},
    ),
    Conflict(
        ("vllm_reasoning_parser",),
        lambda v: v["vllm_reasoning_parser"] is not None,
        "ms-swift refuses it for GRPO",
        {"vllm_reasoning_parser": None},
        since=(4, 0, 0),
    ),
    Conflict(
        ("delta", "use_liger_kernel"),
        _with_liger("delta"),
        "the Liger loss has no two-sided clipping",
        {"use_liger_kernel": False},
    ),
    Conflict(
        ("sequence_parallel_size", "use_liger_kernel"),
        _with_liger("sequence_parallel_size"),
        "the Liger loss has no sequence parallelism",
        {"use_liger_kernel": False},
    ),
    Conflict(
        ("padding_free", "use_liger_kernel"),
        _with_liger("padding_free"),
        "the Liger loss needs padding",
        {"use_liger_kernel": False},
    ),
    Conflict(
        ("top_entropy_quantile", "use_liger_kernel"),
        _with_liger("top_entropy_quantile", "log_entropy"),
        "the Liger loss does not compute entropies",
        {"use_liger_kernel": False},
    ),
    Conflict(
        ("off_policy_sequence_mask_delta", "use_liger_kernel"),
        _with_liger("off_policy_sequence_mask_delta"),
        "the Liger loss masks no sequences",
        {"use_liger_kernel": False},
    ),
    Conflict(
        ("importance_sampling_level", "use_liger_kernel"),
        lambda v: (
            bool(v["use_liger_kernel"])
            and v["importance_sampling_level"] not in ("token", "sequence")
        ),
        "the Liger loss weighs by token or by sequence",
        {"use_liger_kernel": False},
    ),
    Conflict(
        ("advantage_estimator", "use_liger_kernel"),
        _with_liger("advantage_estimator"),
        "the Liger loss supports the grpo estimator only",
        {"use_liger_kernel": False},
    ),
    Conflict(
        ("teacher_model", "use_liger_kernel"),
        lambda v: bool(v["use_liger_kernel"]) and _teaches(v),
        "a teacher does not work with the Liger loss",
        {"use_liger_kernel": False},
    ),
    Conflict(
        ("teacher_model", "teacher_model_server"),
        lambda v: bool(v["teacher_model"] and v["teacher_model_server"]),
        "there is one teacher: a model, or a server",
        {"teacher_model_server": None},
    ),
    Conflict(
        ("loss_type", "teacher_model"),
        lambda v: _teaches(v) and v["loss_type"] in (["real"], ["fipo"]),
        "a teacher's signal is per token, which this loss cannot take",
        {"loss_type": "grpo"},
    ),
    Conflict(
        ("off_policy_sequence_mask_delta",),
        lambda v: v["off_policy_sequence_mask_delta"] is not None,
        "ms-swift treats every run as one with a teacher, whose signal is per token, and refuses "
        "to mask sequences at its first step",
        {"off_policy_sequence_mask_delta": None},
        since=TAKES_ALL_FOR_TAUGHT,
    ),
    Conflict(
        ("dynamic_sample", "reward_funcs"),
        lambda v: _teaches(v) and bool(v["dynamic_sample"]) and not v["reward_funcs"],
        "without rewards no group has a deviation to filter by",
        {"dynamic_sample": False},
    ),
    Conflict(
        ("padding_free", "attn_impl"),
        lambda v: bool(v["padding_free"]) and "flash" not in str(v["attn_impl"]),
        "without padding a flash attention is needed",
        instead="Set attn_impl=flash_attn.",
        since=(3, 12, 0),
    ),
    Conflict(
        ("deepspeed", "fsdp"),
        lambda v: bool(v["deepspeed"] and v["fsdp"]),
        "there is one sharding: DeepSpeed, or FSDP",
        {"fsdp": None},
        since=(4, 0, 0),
    ),
    Conflict(
        ("fp16", "bf16", "torch_dtype"),
        _two_precisions,
        "fp16 and bf16 are then both on (one that is not set follows torch_dtype), and "
        "transformers takes at most one",
        {"fp16": False},
        "Set fp16=false on GPUs since Ampere, or bf16=false on older ones.",
        since=(3, 3, 1),
    ),
    Conflict(
        ("fp16_full_eval", "bf16_full_eval"),
        lambda v: bool(v["fp16_full_eval"] and v["bf16_full_eval"]),
        "bf16_full_eval is on as well, and transformers takes at most one",
        {"fp16_full_eval": None},
    ),
    Conflict(
        ("sdar_loss_coef", "advantage_reweight"),
        lambda v: (v["sdar_loss_coef"] or 0) > 0 and v["advantage_reweight"] == "rlsd",
        "there is one distillation: SDAR, or RLSD",
        {"sdar_loss_coef": None},
    ),
    Conflict(
        ("sdar_loss_coef", "use_liger_kernel"),
        lambda v: (v["sdar_loss_coef"] or 0) > 0 and bool(v["use_liger_kernel"]),
        "the Liger loss has no place for the SDAR term",
        {"use_liger_kernel": False},
    ),
    Conflict(
        ("advantage_reweight", "reward_funcs"),
        lambda v: v["advantage_reweight"] == "rlsd" and not v["reward_funcs"],
        "RLSD weighs by the sign of an advantage, which needs rewards",
        instead="Name reward_funcs.",
    ),
    Conflict(
        ("rlsd_lambda",),
        lambda v: v["advantage_reweight"] == "rlsd" and not 0 <= (v["rlsd_lambda"] or 0) <= 1,
        "the share of the teacher is from 0 to 1, and ms-swift stops",
        {"rlsd_lambda": 1.0},
    ),
)
OVERRULED = (
    Conflict(
        ("max_completion_length", "max_new_tokens", "response_length"),
        lambda v: (
            bool(v["response_length"] or v["max_new_tokens"])
            and v["max_completion_length"] not in (512, v["response_length"] or v["max_new_tokens"])
        ),
        "response_length or max_new_tokens is set as well, and silently wins",
        {"max_completion_length": None},
    ),
    Conflict(
        ("ref_model", "beta"),
        lambda v: bool(v["ref_model"]) and _no_kl(v),
        "beta=0 needs no reference, and ms-swift silently drops it",
        {"ref_model": None},
    ),
    Conflict(
        ("adapters", "ref_adapters"),
        lambda v: bool(v["adapters"]) and not v["ref_adapters"] and _adapter(v) and not _no_kl(v),
        "training continues from an adapter, but the reference is the base model without it: KL "
        "pulls back behind its start",
        instead="Set ref_adapters to the same adapter.",
    ),
    Conflict(
        ("scale_rewards", "loss_type"),
        lambda v: v["loss_type"] == ["real"] and v["scale_rewards"] not in (None, "none"),
        "the real loss takes no scaled rewards, and ms-swift sets none",
        {"scale_rewards": None},
    ),
    Conflict(
        ("kl_in_reward", "scale_rewards"),
        lambda v: bool(v["kl_in_reward"]) and v["scale_rewards"] == "gdpo",
        "gdpo puts KL into the loss and ignores this key",
        {"kl_in_reward": None},
    ),
    Conflict(
        ("split_dataset_ratio", "val_dataset"),
        lambda v: bool(v["split_dataset_ratio"] and v["val_dataset"]),
        "val_dataset holds the held-out prompts, so none are split off",
        {"split_dataset_ratio": None},
    ),
    Conflict(
        ("split_dataset_ratio", "eval_strategy"),
        lambda v: bool(v["split_dataset_ratio"]) and v["eval_strategy"] == "no",
        "nothing is evaluated, so none are split off",
        {"split_dataset_ratio": None},
    ),
    Conflict(
        ("eval_strategy", "val_dataset", "split_dataset_ratio"),
        lambda v: (
            v["eval_strategy"] in ("steps", "epoch")
            and not (
                v["val_dataset"]
                or v["split_dataset_ratio"]
                or v["eval_dataset"]
                or v["cached_val_dataset"]
            )
        ),
        "no data are held out, so ms-swift silently evaluates nothing",
        {"eval_strategy": None},
        "Set val_dataset or split_dataset_ratio.",
    ),
    Conflict(
        ("max_epochs", "num_train_epochs", "max_steps"),
        lambda v: (
            bool(v["max_epochs"])
            and (v["max_steps"] > 0 or v["max_epochs"] < v["num_train_epochs"])
        ),
        "it ends the run early, while the learning rate follows the longer schedule to its end",
        instead="Set the length that is meant: num_train_epochs or max_steps.",
    ),
    Conflict(
        ("dynamic_sample",),
        lambda v: bool(v["dynamic_sample"]),
        "rollouts that replace groups of equal rewards are not counted in any step, and after "
        "max_resample_times the first batch is trained on as it is",
        instead="Expect more generation than the plan says.",
    ),
    Conflict(
        ("async_generate", "epsilon"),
        lambda v: bool(v["async_generate"]),
        "completions come from the weights of the step before",
        instead="Expect training to be off-policy by one rollout.",
    ),
    Conflict(
        ("vllm_tensor_parallel_size", "use_vllm"),
        lambda v: v["vllm_tensor_parallel_size"] != 1 and not v["use_vllm"],
        "without use_vllm it is set to 1",
        {"vllm_tensor_parallel_size": None},
    ),
    Conflict(
        ("ignore_args_error",),
        lambda v: bool(v["ignore_args_error"]),
        "a misspelt key is then only logged and ignored",
        {"ignore_args_error": False},
    ),
)


OTHER_METHODS = {
    "ppo": (
        "num_ppo_epochs",
        "whiten_rewards",
        "kl_coef",
        "cliprange",
        "vf_coef",
        "cliprange_value",
        "gamma",
        "lam",
        "num_mini_batches",
        "local_rollout_forward_batch_size",
        "num_sample_generations",
        "missing_eos_penalty",
    ),
    "dpo": ("label_smoothing", "rpo_alpha", "ld_alpha", "discopop_tau"),
    "cpo": ("cpo_alpha", "simpo_gamma"),
    "kto": ("desirable_weight", "undesirable_weight"),
    "rm": ("center_rewards_coefficient",),
    "gkd": ("sft_alpha", "lmbda", "seq_kd", "gkd_logits_topk"),
}
MEANT = {"kl_coef": "beta", "cliprange": "epsilon", "num_ppo_epochs": "num_iterations"}


@recipe_rule("GV505", "error", of=MS_SWIFT)
def ms_swift_accepts_the_combination(recipe: Recipe) -> Iterator[Violation]:
    """Keys that ms-swift refuses together at start or at the first step, or that leave it without a
    training signal.

    Missing data; missing rewards (measured: it silently trains without any); warmup set twice;
    options that the Liger loss, a teacher or asynchronous generation exclude; fp16 with bf16.
    arguments/rlhf_args.py _init_grpo, _check_grpo, _check_opd_rl, _check_rlsd, _check_sdar,
    _init_rollout; transformers training_args.py __post_init__.
    """
    yield from _broken(recipe, REFUSED)


@recipe_rule("GV506", "warning", of=MS_SWIFT)
def ms_swift_means_what_is_set(recipe: Recipe) -> Iterator[Violation]:
    """Keys that another one silently overrules, or that do more than their names promise.

    arguments/sft_args.py _init_eval_strategy, base_args/data_args.py, rlhf_args.py
    _init_max_completion_length, trainers/patcher.py (``max_epochs``).
    """
    yield from _broken(recipe, OVERRULED)


@recipe_rule("GV507", "warning", of=MS_SWIFT)
def the_keys_are_of_this_method(recipe: Recipe) -> Iterator[Violation]:
    """A key of another method of `swift rlhf`: it is accepted, but GRPO does not read it.

    For example, ``kl_coef`` is PPO's penalty. GRPO's is ``beta``, 0.04 unless set.
    arguments/rlhf_args.py.
    """
    for key, value in recipe.config.items():
        name = spelled(str(key), recipe.version)
        method = next((method for method, names in OTHER_METHODS.items() if name in names), None)
        if method is not None:
            meant = MEANT.get(name)
            advice = f"GRPO's key is {meant}." if meant else "Leave it out."
            change = {str(key): None}
            yield Violation(
                f"{key}={show(value)}",
                f"it is a key of rlhf_type {method}, and GRPO does not read it",
                advice,
                (str(key),),
                (change,),
                without_effect=frozenset(change),
            )


def _broken(recipe: Recipe, traps: tuple[Conflict, ...]) -> Iterator[Violation]:
    if is_megatron(recipe):
        return
    values, given = _values(recipe)
    unknown = {spelled(str(key), recipe.version) for key in recipe.unresolved}
    for trap in traps:
        if recipe.version < trap.since:
            continue
        if given.isdisjoint(trap.keys) and not (recipe.launch and trap.keys[0] in NEEDED):
            continue
        if not unknown.isdisjoint(trap.keys):
            continue
        if trap.applies(values):
            shown = next((key for key in trap.keys if key in given), trap.keys[0])
            what = f"{shown}={show(values[shown])}" if shown in given else f"{shown} is not set"
            fields = tuple(key for key in trap.keys if key in given) or trap.keys[:1]
            changes = (dict(trap.change),) if trap.change else ()
            yield Violation(
                what, trap.why, trap.instead or "Leave one of them out.", fields, changes
            )


def _values(recipe: Recipe) -> tuple[Values, set[str]]:
    """Return every key as ms-swift reads it, with defaults for unset and unreadable keys, and the
    keys that are set.
    """
    takes, given = known(recipe.version), set[str]()
    # A key that the release does not have counts as unset.
    values: Json = {**known().defaults, **takes.defaults}
    for key, value in recipe.config.items():
        name = spelled(str(key), recipe.version)
        if name in takes and str(key) not in recipe.unresolved:
            converted, name = read_value(value, takes[name].type), RENAMED.get(name, name)
            if not converted.trouble:
                values[name] = converted.value
                given.add(name)
    if "loss_type" not in given:
        values["loss_type"] = ["grpo"]
    return values, given | {spelled(str(key), recipe.version) for key in recipe.unresolved}
