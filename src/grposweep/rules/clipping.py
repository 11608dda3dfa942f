"""GL, warnings: loss options that the chosen loss does not read, or that do not do what their names say.

Source: trl 1.16 trainer/grpo_trainer.py ``_compute_loss``; the same branches since the release that added each loss.
"""

from grposweep import plan
from grposweep.rules.batch import SIZES, judgeable
from grposweep.rules.registry import Broken, rule
from grposweep.setting import TRL_LIKE, Setting

# These clip the ratio at 1 - epsilon and 1 + epsilon_high, and at delta.
CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "fipo")
SUMMED = ("bnpo", "dr_grpo", "dapo", "cispo")  # sum over tokens
CORRECTION_ADDED = (0, 23)


@rule("GL201", "warning", ("loss_type", "epsilon", "epsilon_high"), of=TRL_LIKE)
def cispo_has_its_own_bound(s: Setting) -> Broken | None:
    """The cispo loss takes ``epsilon_high`` as the bound itself, not as a distance from 1, and falls back to ``epsilon``.

    So with the default every token weighs 0.2. Measured with trl 1.16: gradient norm 0.29 instead of 1.49 with 5.0.
    """
    if s.loss_type != "cispo" or s.epsilon_high is not None:
        return None
    return Broken(
        what=f"{s.key('loss_type')}=cispo",
        why=f"without {s.key('epsilon_high')} it clamps every weight at {s.key('epsilon')}={s.epsilon:g}",
        instead=f"Set {s.key('epsilon_high')}=5.0, the bound itself.",
        fields=("loss_type", "epsilon_high", "epsilon"),
    )


@rule("GL202", "warning", ("loss_type", "delta"), of=TRL_LIKE)
def delta_leaves_the_policy_alone(s: Setting) -> Broken | None:
    """``delta`` below 1 clips ratios that have not moved: on-policy, tokens with positive advantage lose their gradient.

    Measured with trl 1.16: with 0.5 the loss of an unchanged policy is 0.18 instead of 0.
    """
    if s.delta is None or s.delta >= 1 or s.loss_type not in CLIPPED:
        return None
    return Broken(
        what=f"{s.key('delta')}={s.delta:g}",
        why="it is below 1, so even the ratio of an unchanged policy is clipped",
        instead=f"Set {s.key('delta')} above 1 + epsilon_high (INTELLECT-2 takes 4), or leave it out.",
        fields=("delta",),
    )


@rule("GL203", "warning", ("loss_type", "delta", "epsilon", "epsilon_high"), of=TRL_LIKE)
def delta_is_beyond_the_clip(s: Setting) -> Broken | None:
    """``delta`` between 1 and 1 + epsilon_high becomes the upper clip itself, also where the advantage is positive."""
    if s.delta is None or s.delta < 1 or s.loss_type not in CLIPPED:
        return None
    high = s.epsilon if s.epsilon_high is None else s.epsilon_high
    if s.delta >= 1 + high:
        return None
    return Broken(
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
def the_loss_reads_its_options(s: Setting) -> Broken | None:
    """``delta`` is ignored by cispo, sapo and vespo; ``epsilon`` and ``epsilon_high`` by sapo and vespo; ``epsilon`` by cispo."""
    if s.loss_type in CLIPPED or not s.given:
        return None
    names = [name for name in _unread(s) if name in s.given and getattr(s, name) is not None]
    if not names:
        return None
    return Broken(
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
def the_clip_can_act(s: Setting) -> Broken | None:
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
    return Broken(
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
def sequences_weigh_the_same(s: Setting) -> Broken | None:
    """Sequence-level weights with a loss that sums tokens weigh each sequence by its length, which is not GSPO.

    TRL since 1.9 warns: "the 'dapo' loss sums per-token contributions ... To reproduce the GSPO paper's setup, set
    `loss_type='grpo'`".
    """
    if s.importance_sampling_level != "sequence" or s.loss_type not in SUMMED:
        return None
    return Broken(
        what=f"{s.key('importance_sampling_level')}=sequence",
        why=f"the {s.loss_type} loss sums over tokens, so long completions weigh more",
        instead=f"Set {s.key('loss_type')}=grpo, as GSPO does.",
        fields=("importance_sampling_level", "loss_type"),
    )


@rule("GL207", "warning", ("loss_type", "importance_sampling_level"))
def the_loss_has_its_level(s: Setting) -> Broken | None:
    """The luspo loss is meant for sequence-level weights, the vespo loss (which makes its own) for token-level ones.

    TRL 1.16 warns for both.
    """
    meant = {"luspo": "sequence", "vespo": "token"}.get(s.loss_type)
    if meant is None or s.importance_sampling_level == meant:
        return None
    return Broken(
        what=f"{s.key('loss_type')}={s.loss_type}",
        why=f"it is meant for {s.key('importance_sampling_level')}={meant}, and that is {s.importance_sampling_level}",
        instead=f"Set {s.key('importance_sampling_level')}={meant}.",
        fields=("loss_type", "importance_sampling_level"),
    )
