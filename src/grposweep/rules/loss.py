"""GL: loss options that TRL checks late: after the model is loaded and a rollout generated, at the first step.

Sources: trl 0.17-1.16 trainer/grpo_trainer.py (the branches of its loss) and trainer/grpo_config.py.

GL, warnings: loss options that the chosen loss does not read, or that do not do what their names say.

Source: trl 1.16 trainer/grpo_trainer.py ``_compute_loss``; the same branches since the release that added each loss.
"""

from difflib import get_close_matches

from grposweep import plan
from grposweep.rules.batch import SIZES, judgeable
from grposweep.rules.registry import Violation, rule
from grposweep.setting import EVERY, TRL_LIKE, Setting, Version

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
# ms-swift 4.6.0 rlhf_trainers/grpo_trainer.py and args_mixin.py.
MS_SWIFT_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "real", "fipo")
MS_SWIFT_SCALES, MS_SWIFT_LEVELS = ("group", "batch", "none", "gdpo"), ("token", "sequence", "sequence_token")
SCALES = ("group", "batch", "none")
LEVELS = ("token", "sequence")
AGGREGATIONS = ("sum_then_normalize", "normalize_then_sum")
TRUNCATIONS = ("token_truncate", "sequence_truncate")
CORRECTIONS = ("sequence_mask", "token_mask", *TRUNCATIONS)
LOSS_ADDED, SCALE_NAMED, LEVEL_ADDED, AGGREGATION_ADDED = (0, 17), (0, 22), (0, 20), (0, 27)
CORRECTION_NAMED, CLIP_ADDED, LIGER_TWO_SIDED, TWO_SIDED = (0, 26), (1, 6), (1, 4), (0, 18)


def _one_of(s: Setting, name: str, allowed: tuple[str, ...]) -> Violation | None:
    value = getattr(s, name)
    if value in allowed:
        return None
    # Another word is another objective: what was probably meant comes first, and alone.
    near = get_close_matches(str(value).lower().replace("-", "_"), allowed, n=1, cutoff=0.75)
    return Violation(
        what=f"{s.key(name)}={value}",
        why=f"this {s.trainer} knows {', '.join(allowed)}",
        instead=f"Set {s.key(name)} to one of them.",
        fields=(name,),
        suggestions=({name: (near or list(allowed))[0]},),
    )


@rule("GL101", "error", ("framework", "loss_type", "version"), of=TRL_LIKE)
def the_loss_is_known(s: Setting) -> Violation | None:
    """The loss is one of those that this release has: dapo came with TRL 0.22, cispo and sapo 0.26, luspo 0.28, vespo 1.0.

    TRL 1.16 at the first step: "Unknown loss type: foo". Before 0.17 there is no such key. ms-swift 4.6.0, with the same
    words at the same time, has real and fipo in place of luspo and vespo.
    """
    if s.framework.name == "ms-swift":
        return _one_of(s, "loss_type", MS_SWIFT_LOSSES)
    if s.version < LOSS_ADDED or LOSSES.get(s.loss_type, (9, 0, 0)) <= s.version:
        return None
    return _one_of(s, "loss_type", tuple(name for name, since in LOSSES.items() if since <= s.version))


@rule("GL102", "error", ("framework", "scale_rewards", "version"), of=TRL_LIKE)
def the_scaling_is_known(s: Setting) -> Violation | None:
    """Rewards are scaled by the standard deviation of the group, of the batch, or not at all.

    TRL 1.16 at the first step: "Invalid value for scale_rewards: foo. Must be one of 'batch', 'group', or 'none'." Before
    0.22 the key is a boolean (here group or none). ms-swift 4.6.0 also has gdpo, and its parser refuses other words.
    """
    if s.framework.name == "ms-swift":
        return _one_of(s, "scale_rewards", MS_SWIFT_SCALES)
    if s.scale_rewards in SCALES and (s.scale_rewards != "batch" or s.version >= SCALE_NAMED):
        return None
    return _one_of(s, "scale_rewards", SCALES if s.version >= SCALE_NAMED else ("group", "none"))


@rule("GL103", "error", ("framework", "importance_sampling_level", "version"), of=TRL_LIKE)
def the_level_is_known(s: Setting) -> Violation | None:
    """Importance is weighed by token or by sequence (since TRL 0.20).

    TRL 1.16 at the first step: "Unknown importance sampling level: foo. Possible values are 'token' and 'sequence'."
    """
    if s.framework.name == "ms-swift":
        return _one_of(s, "importance_sampling_level", MS_SWIFT_LEVELS)
    return None if s.version < LEVEL_ADDED else _one_of(s, "importance_sampling_level", LEVELS)


@rule("GL104", "error", ("temperature",), of=EVERY)
def sampling_is_random(s: Setting) -> Violation | None:
    """At temperature 0 or below, transformers refuses to sample, and a group without variety teaches nothing."""
    if s.temperature > 0:
        return None
    return Violation(
        what=f"{s.key('temperature')}={s.temperature:g}",
        why="completions of a group must differ, so sampling needs a temperature above 0",
        instead=f"Set {s.key('temperature')}=1.0.",
        fields=("temperature",),
        suggestions=({"temperature": 1.0},),
    )


@rule("GL105", "error", ("framework", "multi_objective_aggregation", "version"))
def the_aggregation_is_known(s: Setting) -> Violation | None:
    """Several rewards are summed and then normalised, or normalised each and then summed (since TRL 0.27).

    TRL 1.16 at the first step: "Invalid multi_objective_aggregation: foo. Must be 'sum_then_normalize' or
    'normalize_then_sum'."
    """
    return None if s.version < AGGREGATION_ADDED else _one_of(s, "multi_objective_aggregation", AGGREGATIONS)


@rule("GL106", "error", ("rewards", "reward_weights"), of=TRL_LIKE)
def every_reward_has_a_weight(s: Setting) -> Violation | None:
    """As many ``reward_weights`` as reward functions.

    TRL 1.16 after the model is loaded: "Number of reward weights (1) must match number of reward functions (2)".
    """
    if s.rewards is None or s.reward_weights is None or s.rewards == s.reward_weights:
        return None
    return Violation(
        what=f"{s.key('reward_weights')}=[{s.reward_weights} numbers]",
        why=f"there are {s.rewards} reward functions, and each needs its weight",
        instead=f"Give {s.rewards} weights, or leave {s.key('reward_weights')} out (all 1).",
        fields=("reward_weights", "rewards"),
        suggestions=({"reward_weights": None},),
    )


@rule(
    "GL107",
    "error",
    ("loss_type", "use_vllm", "vllm_importance_sampling_correction", "vllm_importance_sampling_mode"),
)
def vespo_corrects_by_token(s: Setting) -> Violation | None:
    """The vespo loss with vLLM needs a token-wise correction, and the default mode is ``sequence_mask``.

    TRL 1.16: "VESPO loss requires `vllm_importance_sampling_mode` to be either 'token_truncate' or 'token_mask'."
    """
    if s.loss_type != "vespo" or not s.use_vllm or not s.vllm_importance_sampling_correction:
        return None
    if s.vllm_importance_sampling_mode in ("token_truncate", "token_mask"):
        return None
    return Violation(
        what=f"{s.key('loss_type')}=vespo",
        why=f"with vLLM it needs a token-wise {s.key('vllm_importance_sampling_mode')}, "
        f"and that is {s.vllm_importance_sampling_mode}",
        instead=f"Set {s.key('vllm_importance_sampling_mode')}=token_truncate.",
        fields=("loss_type", "vllm_importance_sampling_mode"),
        suggestions=tuple({"vllm_importance_sampling_mode": mode} for mode in ("token_truncate", "token_mask")),
    )


@rule(
    "GL108",
    "error",
    ("framework", "version", "use_vllm", "vllm_importance_sampling_correction", "vllm_importance_sampling_mode"),
)
def the_correction_is_known(s: Setting) -> Violation | None:
    """The vLLM correction masks or truncates, by token or by sequence (since TRL 0.26).

    TRL 1.16 at the first step, after a rollout: "Unknown vLLM importance sampling level: foo."
    """
    if not s.use_vllm or not s.vllm_importance_sampling_correction or s.version < CORRECTION_NAMED:
        return None
    return _one_of(s, "vllm_importance_sampling_mode", CORRECTIONS)


CLIPS = ("vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max")


@rule("GL109", "error", ("version", *CLIPS))
def the_clip_is_a_range(s: Setting) -> Violation | None:
    """The lower clip of the vLLM correction is below the upper one.

    TRL since 1.6, with and without vLLM: "vllm_importance_sampling_clip_min (3.0) must be less than
    vllm_importance_sampling_clip_max (2.0)."
    """
    low, high = s.vllm_importance_sampling_clip_min, s.vllm_importance_sampling_clip_max
    if low is None or high is None or low < high or s.version < CLIP_ADDED:
        return None
    return Violation(
        what=f"{s.key(CLIPS[0])}={low:g}",
        why=f"it must be below {s.key(CLIPS[1])}={high:g}",
        instead=f"Leave {s.key(CLIPS[0])} out, or set it below {high:g}.",
        fields=CLIPS,
        suggestions=({CLIPS[0]: None}, {CLIPS[1]: None}),
    )


@rule("GL110", "error", ("version", "vllm_importance_sampling_correction", "vllm_importance_sampling_mode", *CLIPS))
def a_truncation_has_a_bound(s: Setting) -> Violation | None:
    """A ``*_truncate`` correction needs at least one bound to truncate at.

    TRL since 1.6, with and without vLLM: "At least one of `vllm_importance_sampling_clip_min` or
    `vllm_importance_sampling_clip_max` must be set when `vllm_importance_sampling_mode` is a `*_truncate` mode."
    """
    if s.version < CLIP_ADDED or not s.vllm_importance_sampling_correction:
        return None
    if s.vllm_importance_sampling_mode not in TRUNCATIONS or any(getattr(s, name) is not None for name in CLIPS):
        return None
    return Violation(
        what=f"{s.key('vllm_importance_sampling_mode')}={s.vllm_importance_sampling_mode}",
        why="it truncates at a bound, and neither the lower nor the upper one is set",
        instead=f"Set {s.key(CLIPS[1])}=3.0, TRL's default.",
        fields=("vllm_importance_sampling_mode", *CLIPS),
        suggestions=({CLIPS[1]: 3.0}, {"vllm_importance_sampling_mode": "sequence_mask"}),
    )


@rule("GL111", "error", ("version", "delta", "use_liger_kernel"))
def the_kernel_clips_both_sides(s: Setting) -> Violation | None:
    """The Liger kernel's loss has no two-sided clipping before TRL 1.4, which refuses ``delta`` beside it.

    TRL 0.18-1.3: "Liger loss does not support two-sided GRPO loss yet." (or "Liger kernel").
    """
    if s.delta is None or not s.use_liger_kernel or not TWO_SIDED <= s.version < LIGER_TWO_SIDED:
        return None
    return Violation(
        what=f"{s.key('delta')}={s.delta:g}",
        why="the Liger kernel has no two-sided clipping in this TRL",
        instead=f"Leave {s.key('delta')} out, or set {s.key('use_liger_kernel')}=false.",
        fields=("delta", "use_liger_kernel"),
        suggestions=({"use_liger_kernel": False}, {"delta": None}),
    )


@rule("GL112", "error", ("epsilon", "epsilon_high"), of=EVERY)
def the_clip_has_a_width(s: Setting) -> Violation | None:
    """``epsilon`` and ``epsilon_high`` are distances from 1 and not negative; TRL 1.16 accepts any number."""
    for name in ("epsilon", "epsilon_high"):
        value = getattr(s, name)
        if value is not None and value < 0:
            return Violation(
                what=f"{s.key(name)}={value:g}",
                why="the clip range [1 - epsilon, 1 + epsilon_high] would be upside down",
                instead=f"Set {s.key(name)}=0.2, the default.",
                fields=(name,),
                suggestions=({name: 0.2},),
            )
    return None


# These clip the ratio at 1 - epsilon and 1 + epsilon_high, and at delta.
CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "fipo")
SUMMED = ("bnpo", "dr_grpo", "dapo", "cispo")  # sum over tokens
CORRECTION_ADDED = (0, 23)


@rule("GL201", "warning", ("loss_type", "epsilon", "epsilon_high"), of=TRL_LIKE)
def cispo_has_its_own_bound(s: Setting) -> Violation | None:
    """The cispo loss takes ``epsilon_high`` as the bound itself, not as a distance from 1, and falls back to ``epsilon``.

    So with the default every token weighs 0.2. Measured with trl 1.16: gradient norm 0.29 instead of 1.49 with 5.0.
    """
    if s.loss_type != "cispo" or s.epsilon_high is not None:
        return None
    return Violation(
        what=f"{s.key('loss_type')}=cispo",
        why=f"without {s.key('epsilon_high')} it clamps every weight at {s.key('epsilon')}={s.epsilon:g}",
        instead=f"Set {s.key('epsilon_high')}=5.0, the bound itself.",
        fields=("loss_type", "epsilon_high", "epsilon"),
    )


@rule("GL202", "warning", ("loss_type", "delta"), of=TRL_LIKE)
def delta_leaves_the_policy_alone(s: Setting) -> Violation | None:
    """``delta`` below 1 clips ratios that have not moved: on-policy, tokens with positive advantage lose their gradient.

    Measured with trl 1.16: with 0.5 the loss of an unchanged policy is 0.18 instead of 0.
    """
    if s.delta is None or s.delta >= 1 or s.loss_type not in CLIPPED:
        return None
    return Violation(
        what=f"{s.key('delta')}={s.delta:g}",
        why="it is below 1, so even the ratio of an unchanged policy is clipped",
        instead=f"Set {s.key('delta')} above 1 + epsilon_high (INTELLECT-2 takes 4), or leave it out.",
        fields=("delta",),
    )


@rule("GL203", "warning", ("loss_type", "delta", "epsilon", "epsilon_high"), of=TRL_LIKE)
def delta_is_beyond_the_clip(s: Setting) -> Violation | None:
    """``delta`` between 1 and 1 + epsilon_high becomes the upper clip itself, also where the advantage is positive."""
    if s.delta is None or s.delta < 1 or s.loss_type not in CLIPPED:
        return None
    high = s.epsilon if s.epsilon_high is None else s.epsilon_high
    if s.delta >= 1 + high:
        return None
    return Violation(
        what=f"{s.key('delta')}={s.delta:g}",
        why=f"it is below the upper clip, 1 + {high:g}, and silently takes its place",
        instead=f"Set {s.key('delta')} above {1 + high:g}, or leave it out.",
        fields=("delta", "epsilon_high"),
    )


def _unread(s: Setting) -> tuple[str, ...]:
    """Of the clip options, those that the loss does not read."""
    if s.loss_type == "cispo":
        return ("delta",) if s.epsilon_high is None else ("delta", "epsilon")
    return ("delta", "epsilon", "epsilon_high") if s.loss_type in ("sapo", "vespo", "real") else ()


@rule("GL204", "warning", ("given", "loss_type", "delta", "epsilon", "epsilon_high"), of=TRL_LIKE)
def the_loss_reads_its_options(s: Setting) -> Violation | None:
    """``delta`` is ignored by cispo, sapo and vespo; ``epsilon`` and ``epsilon_high`` by sapo and vespo; ``epsilon`` by cispo."""
    if s.loss_type in CLIPPED or not s.given:
        return None
    names = [name for name in _unread(s) if name in s.given and getattr(s, name) is not None]
    if not names:
        return None
    return Violation(
        what=" and ".join(f"{s.key(name)}={getattr(s, name):g}" for name in names),
        why=f"the {s.loss_type} loss does not read {'it' if len(names) == 1 else 'them'}",
        instead="Leave out what is not read, or choose another loss.",
        fields=("loss_type", *names),
    )


@rule(
    "GL205",
    "warning",
    (
        *SIZES, "unsolved", "num_iterations", "given", "loss_type", "epsilon", "epsilon_high", "delta",
        "use_vllm", "vllm_importance_sampling_correction",
    ),
)  # fmt: skip
def the_clip_can_act(s: Setting) -> Violation | None:
    """Where every rollout is used up by the step that generated it, the ratio is 1 and nothing is ever clipped.

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
        what=" and ".join(f"{s.key(name)}={getattr(s, name):g}" for name in names),
        why="each rollout is used for one step only, so the ratio is always 1 and nothing is clipped",
        instead=f"Set {s.key('num_iterations')}=2, say, or leave the clipping at its default.",
        fields=("num_iterations", *names),
    )


def _on_policy(s: Setting) -> bool:
    """A % (S mu) == 0; with the sizes of the rollout unknown, not known to be."""
    if s.generation_batch_size is not None and not judgeable(s):
        return False
    micro = plan.micro_steps_per_generation(s) * s.num_iterations
    return micro >= 1 and s.gradient_accumulation_steps % micro == 0


@rule("GL206", "warning", ("loss_type", "importance_sampling_level"), of=TRL_LIKE)
def sequences_weigh_the_same(s: Setting) -> Violation | None:
    """Sequence-level weights with a loss that sums tokens weigh each sequence by its length, which is not GSPO.

    TRL since 1.9 warns: "the 'dapo' loss sums per-token contributions ... To reproduce the GSPO paper's setup, set
    `loss_type='grpo'`".
    """
    if s.importance_sampling_level != "sequence" or s.loss_type not in SUMMED:
        return None
    return Violation(
        what=f"{s.key('importance_sampling_level')}=sequence",
        why=f"the {s.loss_type} loss sums over tokens, so long completions weigh more",
        instead=f"Set {s.key('loss_type')}=grpo, as GSPO does.",
        fields=("importance_sampling_level", "loss_type"),
    )


@rule("GL207", "warning", ("loss_type", "importance_sampling_level"))
def the_loss_has_its_level(s: Setting) -> Violation | None:
    """The luspo loss is meant for sequence-level weights, the vespo loss (which makes its own) for token-level ones.

    TRL 1.16 warns for both.
    """
    meant = {"luspo": "sequence", "vespo": "token"}.get(s.loss_type)
    if meant is None or s.importance_sampling_level == meant:
        return None
    return Violation(
        what=f"{s.key('loss_type')}={s.loss_type}",
        why=f"it is meant for {s.key('importance_sampling_level')}={meant}, and that is {s.importance_sampling_level}",
        instead=f"Set {s.key('importance_sampling_level')}={meant}.",
        fields=("loss_type", "importance_sampling_level"),
    )
