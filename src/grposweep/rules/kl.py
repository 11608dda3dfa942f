"""GK: the KL penalty means what it says: on with a coefficient, or off without one.

Source: trl 1.16 trainer/grpo_trainer.py (beta 0 loads no reference model and computes no KL at all).
"""

from grposweep.rules.registry import Broken, rule
from grposweep.setting import EVERY, TRL_LIKE, Setting

SYNC_CHECKED = (0, 28)  # before, SyncRefModelCallback passes over a missing reference without a word
DEFAULTS = {"ref_model_sync_steps": 512, "ref_model_mixup_alpha": 0.6}


@rule("GK101", "error", ("kl_enabled", "beta"), of=EVERY)
def no_coefficient_with_kl_off(s: Setting) -> Broken | None:
    """A KL coefficient while KL is off: a person who set it expects it to count.

    Ours: ``kl=none`` says that no KL was meant, so ``kl.beta`` beside it is a contradiction (and, swept, a dead dial).
    """
    if s.kl_enabled is not False or s.beta == 0:
        return None
    return Broken(
        what=f"{s.key('beta')}={s.beta:g}",
        why=f"KL is off ({s.key('kl_enabled')}=false), so the coefficient contradicts it",
        instead=f"Choose kl=low (the coefficient then counts), or {s.key('beta')}=0.",
        fields=("kl_enabled", "beta"),
        suggestions=({"kl_enabled": True}, {"beta": 0.0}),
    )


@rule("GK102", "error", ("framework", "kl_enabled", "beta", "sync_ref_model"), of=EVERY)
def a_coefficient_with_kl_on(s: Setting) -> Broken | None:
    """KL is on with a coefficient of 0: TRL then loads no reference and computes no KL, silently."""
    if not s.kl_enabled or s.beta != 0:
        return None
    return Broken(
        what=f"{s.key('kl_enabled')}=true",
        why=f"{s.key('beta')}=0 switches KL off in {s.trainer}: no reference model, no penalty",
        instead=f"Set {s.key('beta')}=0.001 or more, or choose kl=none.",
        fields=("kl_enabled", "beta"),
        suggestions=({"beta": 1e-3}, {"kl_enabled": False}, {"kl_enabled": False, "sync_ref_model": False}),
    )


@rule("GK103", "error", ("beta", "sync_ref_model", "kl_enabled", "version"))
def syncing_needs_a_reference(s: Setting) -> Broken | None:
    """``sync_ref_model`` without a KL coefficient: there is no reference model to synchronise.

    TRL since 0.28 raises ValueError after the model is loaded: "You passed `sync_ref_model=True` while `beta=0.0` ..."
    Before, nothing is said (GK207).
    """
    if not s.sync_ref_model or s.beta != 0 or s.version < SYNC_CHECKED:
        return None
    return Broken(
        what=f"{s.key('sync_ref_model')}=true",
        why=f"{s.key('beta')}=0 means that there is no reference model to synchronise",
        instead=f"Set {s.key('sync_ref_model')}=false, or a coefficient: {s.key('beta')}=0.04.",
        fields=("sync_ref_model", "beta"),
        suggestions=({"sync_ref_model": False}, {"beta": 0.04}, {"beta": 0.04, "kl_enabled": True}),
        without_effect=frozenset({"sync_ref_model"}),
    )


@rule("GK104", "error", ("sync_ref_model", "lora", "beta", "version"))
def syncing_needs_a_full_model(s: Setting) -> Broken | None:
    """``sync_ref_model`` with LoRA: the reference is the base model under the adapter, which cannot follow.

    TRL since 0.28 raises NotImplementedError after the model is loaded. Before, nothing is said (GK207).
    """
    if not (s.sync_ref_model and s.lora) or s.version < SYNC_CHECKED:
        return None
    return Broken(
        what=f"{s.key('sync_ref_model')}=true",
        why="with LoRA the reference is the frozen base model, which TRL cannot synchronise",
        instead=f"Set {s.key('sync_ref_model')}=false, or {s.key('lora')}=false.",
        fields=("sync_ref_model", "lora"),
        suggestions=({"sync_ref_model": False}, {"lora": False}),
        without_effect=frozenset({"sync_ref_model"}),
    )


@rule("GK105", "error", ("sync_ref_model", "ref_model_sync_steps", "ref_model_mixup_alpha"), of=TRL_LIKE)
def syncing_has_a_rhythm(s: Setting) -> Broken | None:
    """``ref_model_sync_steps`` counts optimizer steps (at least 1), ``ref_model_mixup_alpha`` is a share in (0, 1].

    TRL 1.16 divides by the steps at the first step: ZeroDivisionError for 0.
    """
    if not s.sync_ref_model:
        return None
    if s.ref_model_sync_steps < 1:
        name = "ref_model_sync_steps"
    elif not 0 < s.ref_model_mixup_alpha <= 1:
        name = "ref_model_mixup_alpha"
    else:
        return None
    return Broken(
        what=f"{s.key(name)}={getattr(s, name):g}",
        why="the reference moves by a share in (0, 1], every 1 or more optimizer steps",
        instead=f"Set {s.key(name)}={DEFAULTS[name]}, the default.",
        fields=(name,),
        suggestions=({name: DEFAULTS[name]},),
    )


@rule("GK106", "error", ("beta", "kl_enabled"), of=TRL_LIKE)
def the_coefficient_is_not_negative(s: Setting) -> Broken | None:
    """A negative KL coefficient rewards divergence from the reference; TRL 1.16 accepts it without a word."""
    if s.beta >= 0:
        return None
    return Broken(
        what=f"{s.key('beta')}={s.beta:g}",
        why="a negative coefficient rewards moving away from the reference",
        instead=f"Set {s.key('beta')}={-s.beta:g}.",
        fields=("beta",),
        suggestions=({"beta": -s.beta}, {"beta": 0.0}),
    )
