"""GL: loss options that TRL knows and the chosen loss reads, most of them checked late or never,
and lengths of prompts and completions (GL21x).

Sources: trl 0.17-1.16 trainer/grpo_trainer.py (``_compute_loss``, whose branches have stayed since
the release that added each loss) and trainer/grpo_config.py.
"""

from collections.abc import Iterator, Mapping
from math import erf, inf, log, sqrt, ulp
from typing import NamedTuple

from grporecipe.model import planning
from grporecipe.model.effect import MOVES, MOVES_READS, describe_lack, find_lack
from grporecipe.model.setting import EVERY, TRL_LIKE, Setting
from grporecipe.model.values import Names
from grporecipe.rules.batch import USES, judgeable
from grporecipe.rules.helpers import each, it_or_them, named, no_field, one_of
from grporecipe.rules.registry import Change, Finding, Violation, rule

SCALES = ("group", "batch", "none")
LEVELS = ("token", "sequence")
AGGREGATIONS = ("sum_then_normalize", "normalize_then_sum")
TRUNCATIONS = ("token_truncate", "sequence_truncate")
CORRECTIONS = ("sequence_mask", "token_mask", *TRUNCATIONS)
SCALE_NAMED, LEVEL_ADDED, AGGREGATION_ADDED = (0, 22), (0, 20), (0, 27)
CORRECTION_ADDED, CORRECTION_NAMED, CLIP_ADDED, LIGER_TWO_SIDED, TWO_SIDED = (
    (0, 23),
    (0, 26),
    (1, 6),
    (1, 4),
    (0, 18),
)
# These clip the ratio at 1 - epsilon and 1 + epsilon_high, and at delta.
CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "fipo")
# sum over tokens
SUMMED = ("bnpo", "dr_grpo", "dapo", "cispo")


rule(
    "GL101",
    "error",
    ("framework", "loss_type", "version"),
    of=TRL_LIKE,
    title="the loss is known",
    # the frameworks have the words
    text="""The loss is one of those that this release has: dapo came with TRL 0.22, cispo and sapo
    0.26, luspo 0.28, vespo 1.0.

    TRL 1.16 at the first step: "Unknown loss type: foo". Before 0.17 there is no such key. ms-swift
    4.6.0, with the same words at the same time, has real and fipo in place of luspo and vespo.
    """,
)(lambda _: None)


def _scales(s: Setting) -> Names:
    return SCALES if s.version >= SCALE_NAMED else ("group", "none")


rule(
    "GL102",
    "error",
    ("framework", "scale_rewards", "version"),
    of=TRL_LIKE,
    title="the scaling is known",
    text="""Rewards are scaled by the standard deviation of the group, of the batch, or not at all.

    TRL 1.16 at the first step: "Invalid value for scale_rewards: foo. Must be one of 'batch',
    'group', or 'none'." Before 0.22 the key is a boolean (here group or none). ms-swift 4.6.0 also
    has gdpo, and its parser refuses other words.
    """,
)(one_of("scale_rewards", _scales))

rule(
    "GL103",
    "error",
    ("framework", "importance_sampling_level", "version"),
    of=TRL_LIKE,
    title="the level is known",
    text="""Importance is weighed by token or by sequence (since TRL 0.20).

    TRL 1.16 at the first step: "Unknown importance sampling level: foo. Possible values are 'token'
    and 'sequence'."
    """,
)(one_of("importance_sampling_level", lambda _: LEVELS, LEVEL_ADDED))


@rule(
    "GL104",
    "error",
    ("temperature",),
    of=EVERY,
    blames=("temperature",),
    why="completions of a group must differ, so sampling needs a temperature above 0",
    instead="Set {temperature}=1.0.",
    to=({"temperature": 1.0},),
)
def sampling_is_random(s: Setting) -> bool:
    """At temperature 0 or below, transformers refuses to sample, and a group without variety
    teaches nothing.
    """
    return s.temperature <= 0


rule(
    "GL105",
    "error",
    ("framework", "multi_objective_aggregation", "version"),
    title="the aggregation is known",
    text="""Several rewards are summed and then normalised, or normalised each and then summed
    (since TRL 0.27).

    TRL 1.16 at the first step: "Invalid multi_objective_aggregation: foo. Must be
    'sum_then_normalize' or 'normalize_then_sum'."
    """,
)(one_of("multi_objective_aggregation", lambda _: AGGREGATIONS, AGGREGATION_ADDED))


@rule(
    "GL106",
    "error",
    ("rewards", "reward_weights"),
    of=TRL_LIKE,
    blames=("reward_weights", "rewards"),
    what="{reward_weights}=[{s.reward_weights} numbers]",
    why="there are {s.rewards} reward functions, and each needs its weight",
    instead="Give {s.rewards} weights, or leave {reward_weights} out (all 1).",
    to=({"reward_weights": None},),
)
def every_reward_has_a_weight(s: Setting) -> bool:
    """As many ``reward_weights`` as reward functions.

    TRL 1.16 after the model is loaded: "Number of reward weights (1) must match number of reward
    functions (2)".
    """
    return s.rewards is not None and s.reward_weights is not None and s.rewards != s.reward_weights


@rule(
    "GL107",
    "error",
    (
        "loss_type",
        "use_vllm",
        "vllm_importance_sampling_correction",
        "vllm_importance_sampling_mode",
    ),
    blames=("loss_type", "vllm_importance_sampling_mode"),
    why=(
        "with vLLM it needs a token-wise {vllm_importance_sampling_mode}, and that is "
        "{s.vllm_importance_sampling_mode}"
    ),
    instead="Set {vllm_importance_sampling_mode}=token_truncate.",
    to=each("vllm_importance_sampling_mode", ("token_truncate", "token_mask")),
)
def vespo_corrects_by_token(s: Setting) -> bool:
    """The vespo loss with vLLM needs a token-wise correction, and the default mode is
    ``sequence_mask``.

    TRL 1.16: "VESPO loss requires `vllm_importance_sampling_mode` to be either 'token_truncate' or
    'token_mask'."
    """
    if s.loss_type != "vespo" or not s.use_vllm or not s.vllm_importance_sampling_correction:
        return False
    return s.vllm_importance_sampling_mode not in ("token_truncate", "token_mask")


def _corrections(s: Setting) -> Names:
    if s.use_vllm and s.vllm_importance_sampling_correction:
        return CORRECTIONS
    return ()


rule(
    "GL108",
    "error",
    title="the correction is known",
    reads=(
        "framework",
        "version",
        "use_vllm",
        "vllm_importance_sampling_correction",
        "vllm_importance_sampling_mode",
    ),
    text="""The vLLM correction masks or truncates, by token or by sequence (since TRL 0.26).

    TRL 1.16 at the first step, after a rollout: "Unknown vLLM importance sampling level: foo."
    """,
)(one_of("vllm_importance_sampling_mode", _corrections, CORRECTION_NAMED))

CLIPS = ("vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max")


@rule(
    "GL109",
    "error",
    ("version", *CLIPS),
    blames=CLIPS,
    why="it must be below {vllm_importance_sampling_clip_max=}",
    instead=(
        "Leave {vllm_importance_sampling_clip_min} out, or set it below "
        "{s.vllm_importance_sampling_clip_max:g}."
    ),
    to=({CLIPS[0]: None}, {CLIPS[1]: None}),
)
def the_clip_is_a_range(s: Setting) -> bool:
    """The lower clip of the vLLM correction is below the upper one.

    TRL since 1.6, with and without vLLM: "vllm_importance_sampling_clip_min (3.0) must be less than
    vllm_importance_sampling_clip_max (2.0)."
    """
    low = s.vllm_importance_sampling_clip_min
    high = s.vllm_importance_sampling_clip_max
    return low is not None and high is not None and low >= high and s.version >= CLIP_ADDED


@rule(
    "GL110",
    "error",
    ("version", "vllm_importance_sampling_correction", "vllm_importance_sampling_mode", *CLIPS),
    blames=("vllm_importance_sampling_mode", *CLIPS),
    why="it truncates at a bound, and neither the lower nor the upper one is set",
    instead="Set {vllm_importance_sampling_clip_max}=3.0, TRL's default.",
    to=({CLIPS[1]: 3.0}, {"vllm_importance_sampling_mode": "sequence_mask"}),
)
def a_truncation_has_a_bound(s: Setting) -> bool:
    """A ``*_truncate`` correction needs at least one bound to truncate at.

    TRL since 1.6, with and without vLLM: "At least one of `vllm_importance_sampling_clip_min` or
    `vllm_importance_sampling_clip_max` must be set when `vllm_importance_sampling_mode` is a
    `*_truncate` mode."
    """
    is_truncated = (
        s.vllm_importance_sampling_correction and s.vllm_importance_sampling_mode in TRUNCATIONS
    )
    return (
        is_truncated and s.version >= CLIP_ADDED and all(getattr(s, name) is None for name in CLIPS)
    )


@rule(
    "GL111",
    "error",
    ("version", "delta", "use_liger_kernel"),
    blames=("delta", "use_liger_kernel"),
    why="the Liger kernel has no two-sided clipping in this TRL",
    instead="Leave {delta} out, or set {use_liger_kernel}=false.",
    to=({"use_liger_kernel": False}, {"delta": None}),
)
def the_kernel_clips_both_sides(s: Setting) -> bool:
    """The Liger kernel's loss has no two-sided clipping before TRL 1.4, which refuses it with
    ``delta``.

    TRL 0.18-1.3: "Liger loss does not support two-sided GRPO loss yet." (or "Liger kernel").
    """
    return s.delta is not None and s.use_liger_kernel and TWO_SIDED <= s.version < LIGER_TWO_SIDED


rule(
    "GL112",
    "error",
    ("epsilon", "epsilon_high"),
    of=EVERY,
    title="the clip has a width",
    text=(
        "``epsilon`` and ``epsilon_high`` are distances from 1 and not negative; TRL 1.16 "
        "accepts any number."
    ),
)(
    no_field(
        ("epsilon", "epsilon_high"),
        lambda _s, _, value: value < 0,
        "the clip range [1 - epsilon, 1 + epsilon_high] would be upside down",
        "Set {}=0.2, the default.",
        lambda name: ({name: 0.2},),
    )
)


@rule(
    "GL201",
    "warning",
    ("loss_type", "epsilon", "epsilon_high"),
    of=TRL_LIKE,
    blames=("loss_type", "epsilon_high", "epsilon"),
    why="{unset}it clamps every weight at {bound}, even that of an unchanged policy, which is 1",
    instead="Set {epsilon_high}=5.0, the bound itself.",
    to=({"epsilon_high": 5.0},),
)
def cispo_has_its_own_bound(s: Setting) -> Finding:
    """The cispo loss takes ``epsilon_high`` as the bound itself, not as a distance from 1, and
    falls back to ``epsilon``.

    So with the default every token weighs 0.2, and with DAPO's value 0.28. Measured with trl 1.16:
    gradient norm 0.29 instead of 1.49 with 5.0, the value of ScaleRL (arXiv 2510.13786).
    """
    key = s.key("epsilon_high")
    bound = s.epsilon_high
    unset = ""
    if bound is None:
        unset = f"without {key} "
        key = s.key("epsilon")
        bound = s.epsilon
    if s.loss_type != "cispo" or bound >= 1:
        return None
    return {"unset": unset, "bound": f"{key}={bound:g}"}


@rule(
    "GL202",
    "warning",
    ("loss_type", "delta"),
    of=TRL_LIKE,
    blames=("delta",),
    why="it is below 1, so even the ratio of an unchanged policy is clipped",
    instead="Set {delta} above 1 + epsilon_high (INTELLECT-2 takes 4), or leave it out.",
)
def delta_leaves_the_policy_alone(s: Setting) -> bool:
    """``delta`` below 1 clips ratios that have not changed: on-policy, tokens with positive
    advantage lose their gradient.

    Measured with trl 1.16: with 0.5 the loss of an unchanged policy is 0.18 instead of 0.
    """
    return s.delta is not None and s.delta < 1 and s.loss_type in CLIPPED


@rule(
    "GL203",
    "warning",
    ("loss_type", "delta", "epsilon", "epsilon_high"),
    of=TRL_LIKE,
    blames=("delta", "epsilon_high"),
    why="it is below the upper clip, 1 + {high:g}, and silently takes its place",
    instead="Set {delta} above {upper:g}, or leave it out.",
)
def delta_is_beyond_the_clip(s: Setting) -> Finding:
    """``delta`` between 1 and 1 + epsilon_high becomes the upper clip itself, also for positive
    advantages.
    """
    high = s.epsilon if s.epsilon_high is None else s.epsilon_high
    if s.delta is None or s.loss_type not in CLIPPED or not 1 <= s.delta < 1 + high:
        return None
    return {"high": high, "upper": 1 + high}


CLIPPING = ("epsilon", "epsilon_high", "delta")
# TRL's default, below and above
USUAL_CLIP = 0.2


def _idle(s: Setting) -> Iterator[tuple[str, str]]:
    """Yield the clip options that are set and have no effect, each with the need that it lacks.

    An experiment of this project sets all of them: those count that are not TRL's own.
    """
    for name in CLIPPING:
        value = getattr(s, name)
        is_set = name in s.given if s.given else value != USUAL_CLIP
        if is_set and value is not None:
            lack = find_lack(s, name)
            if lack:
                yield name, lack


@rule("GL204", "warning", (*MOVES_READS, "given", "loss_type", *CLIPPING), of=TRL_LIKE)
def the_loss_reads_its_options(s: Setting) -> Violation | None:
    """``delta`` is ignored by cispo, sapo and vespo; ``epsilon`` and ``epsilon_high`` by sapo and
    vespo; ``epsilon`` by cispo.
    """
    names = [name for name, lack in _idle(s) if lack != MOVES]
    if not names:
        return None
    return Violation(
        named(s, names),
        f"the {s.loss_type} loss does not read {it_or_them(names)}",
        "Leave out the unread options, or choose another loss.",
        ("loss_type", *names),
    )


@rule("GL205", "warning", (*MOVES_READS, "given", "loss_type", *CLIPPING))
def the_clip_can_act(s: Setting) -> Violation | None:
    """If every rollout is used up by the step that generated it, the ratio is 1 and nothing is ever
    clipped.

    That is A % (S mu) == 0: the policy has not moved since it generated. Measured with trl 1.16:
    the clip metrics are exactly 0. With vLLM, TRL computes the old log-probabilities with the same
    weights. Not so for cispo, whose bound can lie below 1.
    """
    # TRL's own bounds, written down, ask for nothing.
    names = [name for name, lack in _idle(s) if lack == MOVES and getattr(s, name) != USUAL_CLIP]
    if not names or s.loss_type == "cispo":
        return None
    reason, revived = describe_lack(s, MOVES)
    return Violation(
        named(s, names),
        reason,
        f"{revived}, or leave the clipping at its default.",
        ("num_iterations", *names),
    )


@rule(
    "GL206",
    "warning",
    ("loss_type", "importance_sampling_level"),
    of=TRL_LIKE,
    blames=("importance_sampling_level", "loss_type"),
    why="the {s.loss_type} loss sums over tokens, so long completions weigh more",
    instead="Set {loss_type}=grpo, as GSPO does.",
)
def sequences_weigh_the_same(s: Setting) -> bool:
    """Sequence-level weights with a loss that sums tokens weigh each sequence by its length, which
    is not GSPO.

    TRL since 1.9 warns: "the 'dapo' loss sums per-token contributions ... To reproduce the GSPO
    paper's setup, set `loss_type='grpo'`".
    """
    return s.importance_sampling_level == "sequence" and s.loss_type in SUMMED


@rule(
    "GL207",
    "warning",
    ("loss_type", "importance_sampling_level"),
    blames=("loss_type", "importance_sampling_level"),
    why=(
        "it is meant for {importance_sampling_level}={meant}, and that is "
        "{s.importance_sampling_level}"
    ),
    instead="Set {importance_sampling_level}={meant}.",
)
def the_loss_has_its_level(s: Setting) -> Finding:
    """The luspo loss is meant for sequence-level weights, the vespo loss (which makes its own) for
    token-level ones.

    TRL 1.16 warns for both.
    """
    meant = {"luspo": "sequence", "vespo": "token"}.get(s.loss_type)
    if meant in (None, s.importance_sampling_level):
        return None
    return {"meant": meant}


# these do not clip at 1 - epsilon and 1 + epsilon_high
UNCLIPPED = ("cispo", "sapo", "vespo", "real")
CLIP_READS = (
    *USES,
    "prompts_per_rollout",
    "prompts_per_step",
    "loss_type",
    *CLIPPING[:2],
    "importance_sampling_level",
)
OF_SEQUENCES = 0.01
OF_TOKENS = 1.0
# the values of the DAPO paper
DAPO = {"epsilon": 0.2, "epsilon_high": 0.28}


def _steps_per_rollout(s: Setting) -> float:
    """Return the optimizer steps that use one rollout; 1 if the sizes are unknown."""
    if s.prompts_per_rollout is not None and s.prompts_per_step:
        return s.num_iterations * s.prompts_per_rollout / s.prompts_per_step
    is_known = s.generation_batch_size is None or judgeable(s)
    if s.prompts_per_rollout is None and is_known and s.gradient_accumulation_steps >= 1:
        return float(planning.steps_per_rollout(s))
    return 1.0


@rule(
    "GL208",
    "warning",
    CLIP_READS,
    of=EVERY,
    blames=("epsilon", "importance_sampling_level"),
    why="the ratio of a sequence is the geometric mean over its tokens, so all of them would "
    "have to move by {part:.0%} the "
    "same way before anything is clipped, though each rollout is used for {steps:g} steps",
    instead="Set {epsilon}=3e-4 and {epsilon_high}=4e-4, as the GSPO paper does.",
    to=({"epsilon": 3e-4, "epsilon_high": 4e-4},),
)
def the_clip_of_sequences_is_narrow(s: Setting) -> Finding:
    """Sequence-level importance with the clip of tokens (0.2), which a mean over hundreds of tokens
    never reaches.

    GSPO (arXiv 2507.18071, section 5.1) clips at 3e-4 and 4e-4, as do the examples of TRL, ms-swift
    and verl (verl#7356). Reported from 0.01 on, and only if a rollout is used for more than one
    step, because the ratio is 1 otherwise. Measured with trl 1.16 in four passes over a rollout: at
    0.2 no sequence is clipped, at 3e-4 and 4e-4 most are.
    """
    steps = _steps_per_rollout(s)
    if (
        s.importance_sampling_level != "sequence"
        or s.loss_type in UNCLIPPED
        or steps <= 1
        or s.epsilon < OF_SEQUENCES
    ):
        return None
    return {"part": s.epsilon, "steps": steps}


@rule(
    "GL209",
    "warning",
    (*CLIP_READS, "delta"),
    of=EVERY,
    blames=("epsilon_high", "epsilon", "loss_type"),
    what="{set}",
    why=(
        "it clips at {bound:g} times the old probability, so nothing bounds samples that are up "
        "to {steps:g} steps old"
    ),
    instead=(
        "Set {name}={usual} (DAPO: 0.2 and 0.28), or the cispo loss, whose {epsilon_high} "
        "is such a bound."
    ),
    to=lambda s: ({name: DAPO[name]} for name in _wide(s)),
)
def stale_samples_are_clipped(s: Setting) -> Finding:
    """A clipped loss whose clip is too wide to act, though each rollout is used for several steps.

    ``epsilon_high`` of 1 and above is cispo's. The lower clip never acts if ``epsilon`` is 1 or
    above. Training on stale samples without a clip collapses (tinker-cookbook#822: a plain
    importance-weighted loss does at a staleness of 3 steps, one with a clip does not). ``delta``
    bounds the ratio in TRL and ms-swift, so it is enough there.
    """
    steps = _steps_per_rollout(s)
    wide = _wide(s)
    if not wide or steps <= 1:
        return None
    name = next(iter(wide))
    return {
        "set": named(s, wide),
        "bound": 1 + wide[name],
        "steps": steps,
        "name": s.key(name),
        "usual": DAPO[name],
    }


def _wide(s: Setting) -> dict[str, float]:
    """Return the clip options of a token-level clipped loss that are too wide to clip."""
    if s.loss_type not in CLIPPED or s.importance_sampling_level != "token":
        return {}
    if s.delta is not None and s.prompts_per_rollout is None:
        return {}
    values = {"epsilon_high": s.epsilon_high or 0.0, "epsilon": s.epsilon}
    return {name: value for name, value in values.items() if value >= OF_TOKENS}


CORRECTED = (
    "version",
    "use_vllm",
    "vllm_importance_sampling_correction",
    "vllm_importance_sampling_mode",
)
# Sampling options: the least value and the most that leave no tokens out, and a usual one.
TRUNCATING: Mapping[str, tuple[float, float, float | None]] = {
    "top_p": (1, inf, 1.0),
    "top_k": (-inf, 0, 0),
    "min_p": (-inf, 0, None),
}
PROCESSED = (0, 24)
UNBIASED = (1, 17)
# Unsloth replaces this part of TRL
OF_TRL = frozenset({"trl", "open-r1"})


def _truncating(s: Setting) -> list[str]:
    """Return the sampling options that are set and leave tokens out."""
    names = []
    for name, (least, most, _) in TRUNCATING.items():
        value = getattr(s, name)
        if value is not None and not least <= value <= most:
            names.append(name)
    return names


def _untruncate(s: Setting) -> Iterator[Change]:
    yield {name: TRUNCATING[name][2] for name in _truncating(s)}
    yield {"vllm_importance_sampling_correction": False}


# tokens
USUAL_PROMPT = 512


@rule(
    "GL213",
    "warning",
    (
        "given",
        "use_vllm",
        "vllm_mode",
        "vllm_max_model_length",
        "max_prompt_length",
        "max_completion_length",
        "framework",
    ),
    of=EVERY,
    blames=("vllm_max_model_length", "max_completion_length"),
    why="prompts and completions of {needed} tokens do not fit, so vLLM cuts completions early",
    instead="Set {vllm_max_model_length}={needed} or more.",
    to=lambda s: ({"vllm_max_model_length": (s.max_prompt_length or 1) + s.max_completion_length},),
)
def completions_fit_the_model_length(s: Setting) -> Finding:
    """A model length of vLLM below the longest prompt plus the longest completion: completions end
    at the model length.

    vLLM: ``max_tokens`` is cut to ``max_model_len`` minus the prompt, and a prompt of that length
    is refused. verl passes ``min(response_length, max_model_len - len(prompt_ids))``. Cut
    completions rarely have an answer, so they get no reward. Where no length of prompts is set, one
    token is assumed. A limit of prompts is not their length, so 512 tokens that are left for them
    are enough. Sources: trl 1.16 generation/vllm_generation.py; ms-swift 4.6
    rlhf_trainers/rollout_mixin.py; verl 0.9 workers/rollout/vllm_rollout/vllm_async_server.py
    (generate).
    """
    if not s.given or s.vllm_max_model_length is None or s.vllm_mode != "colocate":
        return None
    needed = (s.max_prompt_length or 1) + s.max_completion_length
    generates = s.use_vllm or s.framework.unit == "prompts"
    room = s.vllm_max_model_length - s.max_completion_length
    is_short = 0 < s.vllm_max_model_length < needed and room < USUAL_PROMPT
    if generates and is_short:
        return {"needed": needed}
    return None


@rule(
    "GL210",
    "warning",
    (*CORRECTED, *TRUNCATING, "max_completion_length"),
    of=OF_TRL,
    to=_untruncate,
    blames=(*TRUNCATING, "vllm_importance_sampling_correction"),
    what="{set}",
    why="vLLM's log-probabilities are those among the tokens that are left, TRL's those among "
    "all, so the importance ratio of "
    "each token is too small by the probability that is left{product}",
    instead=(
        "Sample from all tokens, or set {vllm_importance_sampling_correction}=false, or use "
        "TRL 1.17."
    ),
)
def the_ratio_is_of_all_tokens(s: Setting) -> Finding:
    """``top_p``, ``top_k`` or ``min_p`` with vLLM and its correction: the importance ratio is
    biased from TRL 0.24 to 1.16.

    vLLM renormalizes over the tokens that are left (``processed_logprobs``), TRL takes the softmax
    of all, so the ratio has the probability S that is left as a factor: trl#6789. Measured in
    trl#7269 with Qwen2.5-1.5B: S = 0.895 on average for top_p 0.8 with top_k 1024, 0.965 for top_k
    20. The sequence modes multiply it over a completion, so hardly any gradient is left. TRL
    1.17 corrects it.
    """
    names = _truncating(s)
    is_on = (
        s.use_vllm and s.vllm_importance_sampling_correction and PROCESSED <= s.version < UNBIASED
    )
    if not names or not is_on:
        return None
    length = s.max_completion_length
    product = ""
    if s.vllm_importance_sampling_mode.startswith("sequence_"):
        mode = named(s, ("vllm_importance_sampling_mode",))
        left = 0.99 ** max(length, 0)
        product = f"; {mode} multiplies them: 0.99 per token is {left:.1g} after {length} tokens"
    return {"set": named(s, names), "product": product}


# The standard deviation of a token's log-ratio between vLLM and TRL, both in bfloat16 (trl#6789,
# Qwen2.5-0.5B).
MISMATCH = 0.05
FEW_LEFT = 0.25


def weight_left(tokens: int, most: float) -> float:
    """Return the mean weight of completions of the same policy after ``sequence_mask``; 1 without
    masking.

    The log-ratios of tokens have the deviation ``MISMATCH`` and a mean of minus half their
    variance. So the ratio of a completion is 1 on average, and its logarithm has the deviation d =
    MISMATCH sqrt(tokens). Those above ``most`` get weight 0, which leaves Phi((ln most - d^2 / 2) /
    d): half at 2 ln most / MISMATCH^2 tokens.
    """
    variance = MISMATCH**2 * tokens
    return (1 + erf((log(most) - variance / 2) / sqrt(2 * variance))) / 2


@rule(
    "GL211",
    "warning",
    (*CORRECTED, "vllm_importance_sampling_clip_max", "max_completion_length"),
    of=OF_TRL,
    blames=("vllm_importance_sampling_mode", "max_completion_length"),
    what="{max_completion_length=}",
    why="{vllm_importance_sampling_mode=} multiplies the ratios of all tokens and masks "
    "products above {most:g}: with a usual "
    "mismatch (0.05 per token) completions of {s.max_completion_length} tokens keep {left:.0%} "
    "of their weight, those of "
    "{half} tokens half",
    instead=(
        "Set {vllm_importance_sampling_mode}=token_truncate, which weighs each token on its own."
    ),
    to=({"vllm_importance_sampling_mode": "token_truncate"},),
)
def long_completions_keep_their_weight(s: Setting) -> Finding:
    """``sequence_mask`` (TRL's default with vLLM since 0.26) with completions so long that their
    weight is masked away.

    TRL sums the log-ratios of a completion's tokens, so their deviation grows with the square root
    of the length. With a deviation of 0.05 per token half of the weight is left at 879 tokens, a
    quarter at 2,122. It is 0.050 between vLLM and a bfloat16 trainer, 0.042 with a float32 one
    (trl#6789, 3,916 tokens of Qwen2.5-0.5B). Observed mean weights: 0.57 (trl#5815), 0.06 with
    8,000 to 10,000 tokens (NeMo-RL#2269). Reported if less than a quarter is left; trl 1.16 itself
    agrees with the formula.
    """
    most = s.vllm_importance_sampling_clip_max
    is_on = (
        s.use_vllm
        and s.vllm_importance_sampling_correction
        and s.vllm_importance_sampling_mode == "sequence_mask"
    )
    if (
        not is_on
        or s.version < CORRECTION_NAMED
        or most is None
        or most <= 1
        or s.max_completion_length < 1
    ):
        return None
    left = weight_left(s.max_completion_length, most)
    if left >= FEW_LEFT:
        return None
    return {"most": most, "left": left, "half": round(2 * log(most) / MISMATCH**2)}


class Range(NamedTuple):
    """The values that generation or the optimizer takes for a field, in words, and a usual one."""

    low: float
    high: float
    words: str
    usual: float | int


# the smallest number
ABOVE_0 = ulp(0)
RANGES: Mapping[str, Range] = {
    "top_p": Range(ABOVE_0, 1, "above 0, up to 1", 1.0),
    "min_p": Range(0, 1, "from 0 to 1", 0.0),
    "top_k": Range(-1, inf, "a count, 0 or -1 for all tokens", 0),
    "repetition_penalty": Range(ABOVE_0, inf, "above 0", 1.0),
    "vllm_gpu_memory_utilization": Range(ABOVE_0, 1, "a share above 0, up to 1", 0.3),
    "weight_decay": Range(0, inf, "0 or more", 0.0),
}


@rule("GL113", "error", tuple(RANGES), of=EVERY)
def sampling_and_decay_are_in_range(s: Setting) -> Violation | None:
    """Sampling options, vLLM's share of the GPU and weight decay outside of what generation and the
    optimizer take.

    vLLM 0.11 sampling_params.py _verify_args ("top_p must be in (0, 1], got 1.5."; "min_p must be
    in [0, 1]"; "top_k must be 0 (disable), or at least 1"; "repetition_penalty must be greater than
    zero"), config/cache.py (gpu_memory_utilization); torch adamw.py ("Invalid weight_decay value").
    """
    values = {name: getattr(s, name) for name in RANGES}
    wrong = {
        n: value
        for n, value in values.items()
        if value is not None and not RANGES[n].low <= value <= RANGES[n].high
    }
    if not wrong:
        return None
    reason = "; ".join(f"{s.key(name)} is {RANGES[name].words}" for name in wrong)
    usual = {name: RANGES[name].usual for name in wrong}
    advice = " ".join(f"Set {s.key(name)}={value:g}." for name, value in usual.items())
    return Violation(named(s, wrong), reason, advice, tuple(wrong), (usual,))
