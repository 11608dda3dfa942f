"""GL: loss options that TRL knows and the chosen loss reads; most are checked late, at the first step, or never.

Sources: trl 0.17-1.16 trainer/grpo_trainer.py (``_compute_loss``, whose branches have stayed since the release that added
each loss) and trainer/grpo_config.py.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

from grporecipe import planning
from grporecipe.rules.batch import SIZES, judgeable
from grporecipe.rules.helpers import each, named, no_field, one_of, unread
from grporecipe.rules.registry import Violation, rule
from grporecipe.setting import EVERY, TRL_LIKE, Setting, Version

# Every loss, and the release that added it.
LOSSES: dict[str, Version] = {
    "grpo": (0, 17, 0),
    "bnpo": (0, 17, 0),
    "dr_grpo": (0, 17, 0),
    "dapo": (0, 22, 0),
    "cispo": (0, 26, 0),
    "sapo": (0, 26, 0),
    "luspo": (0, 28, 0),
    "vespo": (1, 0, 0),
}
SCALES = ("group", "batch", "none")
LEVELS = ("token", "sequence")
AGGREGATIONS = ("sum_then_normalize", "normalize_then_sum")
TRUNCATIONS = ("token_truncate", "sequence_truncate")
CORRECTIONS = ("sequence_mask", "token_mask", *TRUNCATIONS)
SCALE_NAMED, LEVEL_ADDED, AGGREGATION_ADDED = (0, 22), (0, 20), (0, 27)
CORRECTION_ADDED, CORRECTION_NAMED, CLIP_ADDED, LIGER_TWO_SIDED, TWO_SIDED = (0, 23), (0, 26), (1, 6), (1, 4), (0, 18)
# These clip the ratio at 1 - epsilon and 1 + epsilon_high, and at delta.
CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "fipo")
SUMMED = ("bnpo", "dr_grpo", "dapo", "cispo")  # sum over tokens
Facts = dict[str, object]


@cache
def losses_of(version: Version) -> tuple[str, ...]:
    """Return the losses of a TRL release; empty before it had the key."""
    return tuple(name for name, since in LOSSES.items() if since <= version)


rule("GL101", "error", ("framework", "loss_type", "version"), of=TRL_LIKE, title="the loss is known",
     text="""The loss is one of those that this release has: dapo came with TRL 0.22, cispo and sapo 0.26, luspo 0.28, vespo 1.0.

    TRL 1.16 at the first step: "Unknown loss type: foo". Before 0.17 there is no such key. ms-swift 4.6.0, with the same
    words at the same time, has real and fipo in place of luspo and vespo.
    """)(one_of("loss_type", lambda s: losses_of(s.version)))  # fmt: skip

rule("GL102", "error", ("framework", "scale_rewards", "version"), of=TRL_LIKE, title="the scaling is known",
     text="""Rewards are scaled by the standard deviation of the group, of the batch, or not at all.

    TRL 1.16 at the first step: "Invalid value for scale_rewards: foo. Must be one of 'batch', 'group', or 'none'." Before
    0.22 the key is a boolean (here group or none). ms-swift 4.6.0 also has gdpo, and its parser refuses other words.
    """)(one_of("scale_rewards", lambda s: SCALES if s.version >= SCALE_NAMED else ("group", "none")))  # fmt: skip

rule("GL103", "error", ("framework", "importance_sampling_level", "version"), of=TRL_LIKE, title="the level is known",
     text="""Importance is weighed by token or by sequence (since TRL 0.20).

    TRL 1.16 at the first step: "Unknown importance sampling level: foo. Possible values are 'token' and 'sequence'."
    """)(one_of("importance_sampling_level", lambda s: LEVELS if s.version >= LEVEL_ADDED else ()))  # fmt: skip


@rule("GL104", "error", ("temperature",), of=EVERY, blames=("temperature",),
      why="completions of a group must differ, so sampling needs a temperature above 0",
      instead="Set {temperature}=1.0.", to=({"temperature": 1.0},))  # fmt: skip
def sampling_is_random(s: Setting) -> bool:
    """At temperature 0 or below, transformers refuses to sample, and a group without variety teaches nothing."""
    return s.temperature <= 0


rule("GL105", "error", ("framework", "multi_objective_aggregation", "version"), title="the aggregation is known",
     text="""Several rewards are summed and then normalised, or normalised each and then summed (since TRL 0.27).

    TRL 1.16 at the first step: "Invalid multi_objective_aggregation: foo. Must be 'sum_then_normalize' or
    'normalize_then_sum'."
    """)(one_of("multi_objective_aggregation", lambda s: AGGREGATIONS if s.version >= AGGREGATION_ADDED else ()))  # fmt: skip


@rule("GL106", "error", ("rewards", "reward_weights"), of=TRL_LIKE, blames=("reward_weights", "rewards"),
      what="{reward_weights}=[{s.reward_weights} numbers]",
      why="there are {s.rewards} reward functions, and each needs its weight",
      instead="Give {s.rewards} weights, or leave {reward_weights} out (all 1).", to=({"reward_weights": None},))  # fmt: skip
def every_reward_has_a_weight(s: Setting) -> bool:
    """As many ``reward_weights`` as reward functions.

    TRL 1.16 after the model is loaded: "Number of reward weights (1) must match number of reward functions (2)".
    """
    return s.rewards is not None and s.reward_weights is not None and s.rewards != s.reward_weights


@rule("GL107", "error", ("loss_type", "use_vllm", "vllm_importance_sampling_correction", "vllm_importance_sampling_mode"),
      blames=("loss_type", "vllm_importance_sampling_mode"),
      why="with vLLM it needs a token-wise {vllm_importance_sampling_mode}, and that is {s.vllm_importance_sampling_mode}",
      instead="Set {vllm_importance_sampling_mode}=token_truncate.",
      to=each("vllm_importance_sampling_mode", ("token_truncate", "token_mask")))  # fmt: skip
def vespo_corrects_by_token(s: Setting) -> bool:
    """The vespo loss with vLLM needs a token-wise correction, and the default mode is ``sequence_mask``.

    TRL 1.16: "VESPO loss requires `vllm_importance_sampling_mode` to be either 'token_truncate' or 'token_mask'."
    """
    if s.loss_type != "vespo" or not s.use_vllm or not s.vllm_importance_sampling_correction:
        return False
    return s.vllm_importance_sampling_mode not in ("token_truncate", "token_mask")


def _corrections(s: Setting) -> tuple[str, ...]:
    return CORRECTIONS if s.use_vllm and s.vllm_importance_sampling_correction and s.version >= CORRECTION_NAMED else ()


rule("GL108", "error", title="the correction is known", reads=(
     "framework", "version", "use_vllm", "vllm_importance_sampling_correction", "vllm_importance_sampling_mode"),
     text="""The vLLM correction masks or truncates, by token or by sequence (since TRL 0.26).

    TRL 1.16 at the first step, after a rollout: "Unknown vLLM importance sampling level: foo."
    """)(one_of("vllm_importance_sampling_mode", _corrections))  # fmt: skip

CLIPS = ("vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max")


@rule("GL109", "error", ("version", *CLIPS), blames=CLIPS, why="it must be below {vllm_importance_sampling_clip_max=}",
      instead="Leave {vllm_importance_sampling_clip_min} out, or set it below {s.vllm_importance_sampling_clip_max:g}.",
      to=({CLIPS[0]: None}, {CLIPS[1]: None}))  # fmt: skip
def the_clip_is_a_range(s: Setting) -> bool:
    """The lower clip of the vLLM correction is below the upper one.

    TRL since 1.6, with and without vLLM: "vllm_importance_sampling_clip_min (3.0) must be less than
    vllm_importance_sampling_clip_max (2.0)."
    """
    low, high = s.vllm_importance_sampling_clip_min, s.vllm_importance_sampling_clip_max
    return low is not None and high is not None and low >= high and s.version >= CLIP_ADDED


@rule("GL110", "error", ("version", "vllm_importance_sampling_correction", "vllm_importance_sampling_mode", *CLIPS),
      blames=("vllm_importance_sampling_mode", *CLIPS),
      why="it truncates at a bound, and neither the lower nor the upper one is set",
      instead="Set {vllm_importance_sampling_clip_max}=3.0, TRL's default.",
      to=({CLIPS[1]: 3.0}, {"vllm_importance_sampling_mode": "sequence_mask"}))  # fmt: skip
def a_truncation_has_a_bound(s: Setting) -> bool:
    """A ``*_truncate`` correction needs at least one bound to truncate at.

    TRL since 1.6, with and without vLLM: "At least one of `vllm_importance_sampling_clip_min` or
    `vllm_importance_sampling_clip_max` must be set when `vllm_importance_sampling_mode` is a `*_truncate` mode."
    """
    is_truncated = s.vllm_importance_sampling_correction and s.vllm_importance_sampling_mode in TRUNCATIONS
    return is_truncated and s.version >= CLIP_ADDED and all(getattr(s, name) is None for name in CLIPS)


@rule("GL111", "error", ("version", "delta", "use_liger_kernel"), blames=("delta", "use_liger_kernel"),
      why="the Liger kernel has no two-sided clipping in this TRL",
      instead="Leave {delta} out, or set {use_liger_kernel}=false.",
      to=({"use_liger_kernel": False}, {"delta": None}))  # fmt: skip
def the_kernel_clips_both_sides(s: Setting) -> bool:
    """The Liger kernel's loss has no two-sided clipping before TRL 1.4, which refuses it with ``delta``.

    TRL 0.18-1.3: "Liger loss does not support two-sided GRPO loss yet." (or "Liger kernel").
    """
    return s.delta is not None and s.use_liger_kernel and TWO_SIDED <= s.version < LIGER_TWO_SIDED


rule("GL112", "error", ("epsilon", "epsilon_high"), of=EVERY, title="the clip has a width",
     text="``epsilon`` and ``epsilon_high`` are distances from 1 and not negative; TRL 1.16 accepts any number.",
     )(no_field(("epsilon", "epsilon_high"), lambda _s, _, value: value < 0,
                "the clip range [1 - epsilon, 1 + epsilon_high] would be upside down", "Set {}=0.2, the default.",
                lambda name: ({name: 0.2},)))  # fmt: skip


@rule("GL201", "warning", ("loss_type", "epsilon", "epsilon_high"), of=TRL_LIKE, blames=("loss_type", "epsilon_high", "epsilon"),
      why="without {epsilon_high} it clamps every weight at {epsilon=}",
      instead="Set {epsilon_high}=5.0, the bound itself.")  # fmt: skip
def cispo_has_its_own_bound(s: Setting) -> bool:
    """The cispo loss takes ``epsilon_high`` as the bound itself, not as a distance from 1, and falls back to ``epsilon``.

    So with the default every token weighs 0.2. Measured with trl 1.16: gradient norm 0.29 instead of 1.49 with 5.0.
    """
    return s.loss_type == "cispo" and s.epsilon_high is None


@rule("GL202", "warning", ("loss_type", "delta"), of=TRL_LIKE, blames=("delta",),
      why="it is below 1, so even the ratio of an unchanged policy is clipped",
      instead="Set {delta} above 1 + epsilon_high (INTELLECT-2 takes 4), or leave it out.")  # fmt: skip
def delta_leaves_the_policy_alone(s: Setting) -> bool:
    """``delta`` below 1 clips ratios that have not changed: on-policy, tokens with positive advantage lose their gradient.

    Measured with trl 1.16: with 0.5 the loss of an unchanged policy is 0.18 instead of 0.
    """
    return s.delta is not None and s.delta < 1 and s.loss_type in CLIPPED


@rule("GL203", "warning", ("loss_type", "delta", "epsilon", "epsilon_high"), of=TRL_LIKE, blames=("delta", "epsilon_high"),
      why="it is below the upper clip, 1 + {high:g}, and silently takes its place",
      instead="Set {delta} above {upper:g}, or leave it out.")  # fmt: skip
def delta_is_beyond_the_clip(s: Setting) -> Facts | None:
    """``delta`` between 1 and 1 + epsilon_high becomes the upper clip itself, also for positive advantages."""
    high = s.epsilon if s.epsilon_high is None else s.epsilon_high
    if s.delta is None or s.loss_type not in CLIPPED or not 1 <= s.delta < 1 + high:
        return None
    return {"high": high, "upper": 1 + high}


def _unread(s: Setting) -> list[str]:
    """Return the clip options that are set but that the loss does not read."""
    names: tuple[str, ...] = ()
    if s.loss_type == "cispo":
        names = ("delta",) if s.epsilon_high is None else ("delta", "epsilon")
    elif s.loss_type in ("sapo", "vespo", "real"):
        names = ("delta", "epsilon", "epsilon_high")
    return [name for name in names if getattr(s, name) is not None]


rule("GL204", "warning", ("given", "loss_type", "delta", "epsilon", "epsilon_high"), of=TRL_LIKE,
     title="the loss reads its options", text="``delta`` is ignored by cispo, sapo and vespo; ``epsilon`` and "
     "``epsilon_high`` by sapo and vespo; ``epsilon`` by cispo.",
     )(unread(_unread, "the {s.loss_type} loss does not read {it}",
              "Leave out the unread options, or choose another loss.", because=("loss_type",)))  # fmt: skip


@rule("GL205", "warning", (*SIZES, "unsolved", "num_iterations", "given", "loss_type", "epsilon", "epsilon_high", "delta",
                           "use_vllm", "vllm_importance_sampling_correction"))  # fmt: skip
def the_clip_can_act(s: Setting) -> Violation | None:
    """If every rollout is used up by the step that generated it, the ratio is 1 and nothing is ever clipped.

    That is A % (S mu) == 0 without the vLLM correction: the policy has not moved since it generated. Measured with
    trl 1.16: the clip metrics are exactly 0. Not so for cispo, whose bound can lie below 1.
    """
    if not s.given or s.loss_type not in CLIPPED or s.num_iterations < 1 or s.gradient_accumulation_steps < 1:
        return None
    if s.use_vllm and s.vllm_importance_sampling_correction and s.version >= CORRECTION_ADDED:
        return None
    names = [name for name in ("epsilon", "epsilon_high", "delta") if name in s.given and getattr(s, name) is not None]
    if not names or (s.delta is not None and s.delta < 1) or not _on_policy(s):
        return None
    return Violation(
        what=named(s, names),
        why="each rollout is used for one step only, so the ratio is always 1 and nothing is clipped",
        instead=f"Set {s.key('num_iterations')}=2, say, or leave the clipping at its default.",
        fields=("num_iterations", *names),
    )


def _on_policy(s: Setting) -> bool:
    """Return whether A % (S mu) == 0; False if the sizes of the rollout are unknown."""
    if s.generation_batch_size is not None and not judgeable(s):
        return False
    micro = planning.micro_steps_per_generation(s) * s.num_iterations
    return micro >= 1 and s.gradient_accumulation_steps % micro == 0


@rule("GL206", "warning", ("loss_type", "importance_sampling_level"), of=TRL_LIKE,
      blames=("importance_sampling_level", "loss_type"),
      why="the {s.loss_type} loss sums over tokens, so long completions weigh more",
      instead="Set {loss_type}=grpo, as GSPO does.")  # fmt: skip
def sequences_weigh_the_same(s: Setting) -> bool:
    """Sequence-level weights with a loss that sums tokens weigh each sequence by its length, which is not GSPO.

    TRL since 1.9 warns: "the 'dapo' loss sums per-token contributions ... To reproduce the GSPO paper's setup, set
    `loss_type='grpo'`".
    """
    return s.importance_sampling_level == "sequence" and s.loss_type in SUMMED


@rule("GL207", "warning", ("loss_type", "importance_sampling_level"), blames=("loss_type", "importance_sampling_level"),
      why="it is meant for {importance_sampling_level}={meant}, and that is {s.importance_sampling_level}",
      instead="Set {importance_sampling_level}={meant}.")  # fmt: skip
def the_loss_has_its_level(s: Setting) -> Facts | None:
    """The luspo loss is meant for sequence-level weights, the vespo loss (which makes its own) for token-level ones.

    TRL 1.16 warns for both.
    """
    meant = {"luspo": "sequence", "vespo": "token"}.get(s.loss_type)
    return {"meant": meant} if meant is not None and s.importance_sampling_level != meant else None


class Range(NamedTuple):
    """The values that generation or the optimizer takes for a field, in words, and a usual one."""

    takes: Callable[[float], bool]
    words: str
    usual: float | int


RANGES: Mapping[str, Range] = {
    "top_p": Range(lambda value: 0 < value <= 1, "above 0, up to 1", 1.0),
    "min_p": Range(lambda value: 0 <= value <= 1, "from 0 to 1", 0.0),
    "top_k": Range(lambda value: value >= -1, "a count, 0 or -1 for all tokens", 0),
    "repetition_penalty": Range(lambda value: value > 0, "above 0", 1.0),
    "vllm_gpu_memory_utilization": Range(lambda value: 0 < value <= 1, "a share above 0, up to 1", 0.3),
    "weight_decay": Range(lambda value: value >= 0, "0 or more", 0.0),
}


@rule("GL113", "error", tuple(RANGES), of=EVERY)
def sampling_and_decay_are_in_range(s: Setting) -> Violation | None:
    """Sampling options, vLLM's share of the GPU and weight decay outside of what generation and the optimizer take.

    vLLM 0.11 sampling_params.py _verify_args ("top_p must be in (0, 1], got 1.5."; "min_p must be in [0, 1]"; "top_k must be 0
    (disable), or at least 1"; "repetition_penalty must be greater than zero"), config/cache.py (gpu_memory_utilization); torch
    adamw.py ("Invalid weight_decay value").
    """
    values = {name: getattr(s, name) for name in RANGES}
    wrong = {n: value for n, value in values.items() if value is not None and not RANGES[n].takes(value)}
    if not wrong:
        return None
    shown = " and ".join(f"{s.key(name)}={value:g}" for name, value in wrong.items())
    why = "; ".join(f"{s.key(name)} is {RANGES[name].words}" for name in wrong)
    usual = {name: RANGES[name].usual for name in wrong}
    advice = " ".join(f"Set {s.key(name)}={value:g}." for name, value in usual.items())
    return Violation(shown, why, advice, tuple(wrong), (usual,))
