"""GL: loss options that TRL checks at the first step only, after the model is loaded and a rollout generated.

Source: trl 1.16 trainer/grpo_trainer.py.
"""

from grposweep.rules.registry import Broken, rule
from grposweep.setting import Setting

LOSSES = ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo")
SCALES = ("group", "batch", "none")
LEVELS = ("token", "sequence")


def _one_of(s: Setting, name: str, allowed: tuple[str, ...]) -> Broken | None:
    value = getattr(s, name)
    if value in allowed:
        return None
    return Broken(
        what=f"{s.key(name)}={value}",
        why=f"TRL knows {', '.join(allowed)}",
        instead=f"Set {s.key(name)}={allowed[0]}.",
        fields=(name,),
        suggestions=({name: allowed[0]},),
    )


@rule("GL101", "error", ("loss_type",))
def the_loss_is_known(s: Setting) -> Broken | None:
    """TRL 1.16 at the first step: "Unknown loss type: foo"."""
    return _one_of(s, "loss_type", LOSSES)


@rule("GL102", "error", ("scale_rewards",))
def the_scaling_is_known(s: Setting) -> Broken | None:
    """TRL 1.16 at the first step: "Invalid value for scale_rewards: foo. Must be one of 'batch', 'group', or 'none'."."""
    return _one_of(s, "scale_rewards", SCALES)


@rule("GL103", "error", ("importance_sampling_level",))
def the_level_is_known(s: Setting) -> Broken | None:
    """TRL 1.16 at the first step: "Unknown importance sampling level: foo."."""
    return _one_of(s, "importance_sampling_level", LEVELS)


@rule("GL104", "error", ("temperature",))
def sampling_is_random(s: Setting) -> Broken | None:
    """At temperature 0 or below, transformers refuses to sample, and a group without variety teaches nothing."""
    if s.temperature > 0:
        return None
    return Broken(
        what=f"{s.key('temperature')}={s.temperature:g}",
        why="completions of a group must differ, so sampling needs a temperature above 0",
        instead=f"Set {s.key('temperature')}=1.0.",
        fields=("temperature",),
        suggestions=({"temperature": 1.0},),
    )
