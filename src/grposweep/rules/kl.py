"""GK: the KL penalty means what it says: on with a coefficient, or off without one.

Source: trl 1.16 trainer/grpo_trainer.py (beta 0 loads no reference model and computes no KL at all).

GK, warnings: a reference that never moves, is loaded for nothing, or came from a default that has since changed.

Sources: trl 0.14-1.16 trainer/grpo_config.py (defaults), trainer/grpo_trainer.py, trainer/callbacks.py SyncRefModelCallback.
"""

from grposweep import plan
from grposweep.rules.registry import Violation, rule
from grposweep.setting import EVERY, TRL_LIKE, Setting

SYNC_CHECKED = (0, 28)  # before, SyncRefModelCallback passes over a missing reference without a word
DEFAULTS = {"ref_model_sync_steps": 512, "ref_model_mixup_alpha": 0.6}


@rule("GK101", "error", ("kl_enabled", "beta"), of=EVERY)
def no_coefficient_with_kl_off(s: Setting) -> Violation | None:
    """A KL coefficient while KL is off: a person who set it expects it to count.

    Ours: ``kl=none`` says that no KL was meant, so ``kl.beta`` beside it is a contradiction (and, swept, a dead dial).
    """
    if s.kl_enabled is not False or s.beta == 0:
        return None
    return Violation(
        what=f"{s.key('beta')}={s.beta:g}",
        why=f"KL is off ({s.key('kl_enabled')}=false), so the coefficient contradicts it",
        instead=f"Choose kl=low (the coefficient then counts), or {s.key('beta')}=0.",
        fields=("kl_enabled", "beta"),
        suggestions=({"kl_enabled": True}, {"beta": 0.0}),
    )


@rule("GK102", "error", ("framework", "kl_enabled", "beta", "sync_ref_model"), of=EVERY)
def a_coefficient_with_kl_on(s: Setting) -> Violation | None:
    """KL is on with a coefficient of 0: TRL then loads no reference and computes no KL, silently."""
    if not s.kl_enabled or s.beta != 0:
        return None
    return Violation(
        what=f"{s.key('kl_enabled')}=true",
        why=f"{s.key('beta')}=0 switches KL off in {s.trainer}: no reference model, no penalty",
        instead=f"Set {s.key('beta')}=0.001 or more, or choose kl=none.",
        fields=("kl_enabled", "beta"),
        suggestions=({"beta": 1e-3}, {"kl_enabled": False}, {"kl_enabled": False, "sync_ref_model": False}),
    )


@rule("GK103", "error", ("beta", "sync_ref_model", "kl_enabled", "version"))
def syncing_needs_a_reference(s: Setting) -> Violation | None:
    """``sync_ref_model`` without a KL coefficient: there is no reference model to synchronise.

    TRL since 0.28 raises ValueError after the model is loaded: "You passed `sync_ref_model=True` while `beta=0.0` ..."
    Before, nothing is said (GK207).
    """
    if not s.sync_ref_model or s.beta != 0 or s.version < SYNC_CHECKED:
        return None
    return Violation(
        what=f"{s.key('sync_ref_model')}=true",
        why=f"{s.key('beta')}=0 means that there is no reference model to synchronise",
        instead=f"Set {s.key('sync_ref_model')}=false, or a coefficient: {s.key('beta')}=0.04.",
        fields=("sync_ref_model", "beta"),
        suggestions=({"sync_ref_model": False}, {"beta": 0.04}, {"beta": 0.04, "kl_enabled": True}),
        without_effect=frozenset({"sync_ref_model"}),
    )


@rule("GK104", "error", ("sync_ref_model", "lora", "beta", "version"))
def syncing_needs_a_full_model(s: Setting) -> Violation | None:
    """``sync_ref_model`` with LoRA: the reference is the base model under the adapter, which cannot follow.

    TRL since 0.28 raises NotImplementedError after the model is loaded. Before, nothing is said (GK207).
    """
    if not (s.sync_ref_model and s.lora) or s.version < SYNC_CHECKED:
        return None
    return Violation(
        what=f"{s.key('sync_ref_model')}=true",
        why="with LoRA the reference is the frozen base model, which TRL cannot synchronise",
        instead=f"Set {s.key('sync_ref_model')}=false, or {s.key('lora')}=false.",
        fields=("sync_ref_model", "lora"),
        suggestions=({"sync_ref_model": False}, {"lora": False}),
        without_effect=frozenset({"sync_ref_model"}),
    )


@rule("GK105", "error", ("sync_ref_model", "ref_model_sync_steps", "ref_model_mixup_alpha"), of=TRL_LIKE)
def syncing_has_a_rhythm(s: Setting) -> Violation | None:
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
    return Violation(
        what=f"{s.key(name)}={getattr(s, name):g}",
        why="the reference moves by a share in (0, 1], every 1 or more optimizer steps",
        instead=f"Set {s.key(name)}={DEFAULTS[name]}, the default.",
        fields=(name,),
        suggestions=({name: DEFAULTS[name]},),
    )


@rule("GK106", "error", ("beta", "kl_enabled"), of=TRL_LIKE)
def the_coefficient_is_not_negative(s: Setting) -> Violation | None:
    """A negative KL coefficient rewards divergence from the reference; TRL 1.16 accepts it without a word."""
    if s.beta >= 0:
        return None
    return Violation(
        what=f"{s.key('beta')}={s.beta:g}",
        why="a negative coefficient rewards moving away from the reference",
        instead=f"Set {s.key('beta')}={-s.beta:g}.",
        fields=("beta",),
        suggestions=({"beta": -s.beta}, {"beta": 0.0}),
    )


NO_REFERENCE_AT_ZERO = (0, 16)  # before, beta=0 loads a reference all the same
BETA_ZERO = (0, 19)  # the default of beta became 0.0; it was 0.04
CORRECTION_ADDED, CORRECTED = (0, 26), (1, 10)  # use_bias_correction_kl: added as False, True by default


@rule("GK201", "warning", ("sync_ref_model", "beta", "ref_model_sync_steps", *plan.TOTAL_STEPS_READS), of=TRL_LIKE)
def syncing_happens_at_all(s: Setting) -> Violation | None:
    """The first synchronisation comes after ``ref_model_sync_steps`` optimizer steps; a shorter run never sees one."""
    if not s.sync_ref_model or s.beta == 0 or s.gradient_accumulation_steps < 1:
        return None
    total = plan.total_steps(s)
    if total is None or s.ref_model_sync_steps < 1 or total >= s.ref_model_sync_steps:
        return None
    return Violation(
        what=f"{s.key('ref_model_sync_steps')}={s.ref_model_sync_steps}",
        why=f"the run has {total} optimizer steps, so the reference is never synchronised",
        instead=f"Set {s.key('ref_model_sync_steps')} below {total}, or {s.key('sync_ref_model')}=false.",
        fields=("ref_model_sync_steps",),
    )


@rule("GK202", "warning", ("sync_ref_model", "beta", "ref_model_sync_steps", "ref_model_mixup_alpha"), of=TRL_LIKE)
def the_reference_stays_behind(s: Setting) -> Violation | None:
    """Replacing the reference by the policy after every step makes KL zero at the start of each step.

    Measured on trl 1.16: with alpha 1 and every step the KL metric is 0 and the penalty has no effect on-policy.
    """
    if not s.sync_ref_model or s.beta == 0 or s.ref_model_sync_steps != 1 or s.ref_model_mixup_alpha != 1:
        return None
    return Violation(
        what=f"{s.key('ref_model_mixup_alpha')}=1",
        why=f"with {s.key('ref_model_sync_steps')}=1 the reference is always the policy itself, and KL always 0",
        instead="Synchronise less often, or with a smaller share.",
        fields=("ref_model_mixup_alpha", "ref_model_sync_steps"),
    )


@rule("GK203", "warning", ("version", "given", "beta"))
def the_coefficient_was_meant(s: Setting) -> Violation | None:
    """Up to TRL 0.18 an unset ``beta`` is 0.04 and loads a second model; since 0.19 it is 0 and there is no KL at all.

    So a recipe that leaves it out changes its objective and its memory with the release that runs it.
    """
    if s.version >= BETA_ZERO or s.beta == 0 or not s.given or "beta" in s.given:
        return None
    return Violation(
        what=f"{s.key('beta')} is not set",
        why=f"this TRL then takes {s.beta:g} and loads a reference model; TRL 0.19 and later take 0 and load none",
        instead=f"Write down which is meant: {s.key('beta')}={s.beta:g} or {s.key('beta')}=0.0.",
        fields=("beta",),
    )


@rule("GK204", "warning", ("version", "given", "beta", "use_bias_correction_kl"))
def the_estimator_was_meant(s: Setting) -> Violation | None:
    """Since TRL 1.10 ``use_bias_correction_kl`` is on unless set: with the same beta the KL term is another objective.

    The term becomes k3 times the importance ratio. On-policy its expected gradient is that of the reverse KL; without the
    ratio it is not (computed exactly on a categorical policy).
    """
    if s.beta == 0 or s.version < CORRECTED or not s.given or "use_bias_correction_kl" in s.given:
        return None
    return Violation(
        what=f"{s.key('beta')}={s.beta:g}",
        why=f"TRL before 1.10 estimated KL without {s.key('use_bias_correction_kl')}, which is now on unless set",
        instead=f"Write down which is meant: {s.key('use_bias_correction_kl')}=true, or false for the older objective.",
        fields=("beta", "use_bias_correction_kl"),
    )


SYNC_WORDS = ("ref_model_mixup_alpha", "ref_model_sync_steps")


@rule("GK205", "warning", ("given", "sync_ref_model", *SYNC_WORDS), of=TRL_LIKE)
def the_rhythm_is_read(s: Setting) -> Violation | None:
    """``ref_model_mixup_alpha`` and ``ref_model_sync_steps`` are read only with ``sync_ref_model``; alone they do nothing."""
    if s.sync_ref_model or not s.given:
        return None
    names = [name for name in SYNC_WORDS if name in s.given]
    if not names:
        return None
    return Violation(
        what=" and ".join(f"{s.key(name)}={getattr(s, name):g}" for name in names),
        why=f"{s.key('sync_ref_model')} is off, so the reference is never synchronised and nothing reads this",
        instead=f"Set {s.key('sync_ref_model')}=true, or leave it out.",
        fields=tuple(names),
    )


@rule("GK206", "warning", ("given", "beta", "use_bias_correction_kl"))
def the_estimator_is_read(s: Setting) -> Violation | None:
    """``use_bias_correction_kl`` changes how KL is estimated; with ``beta`` 0 no KL is computed, and nothing reads it."""
    if s.beta != 0 or "use_bias_correction_kl" not in s.given:
        return None
    return Violation(
        what=f"{s.key('use_bias_correction_kl')}={str(s.use_bias_correction_kl).lower()}",
        why=f"{s.key('beta')}=0 computes no KL, so nothing reads this",
        instead=f"Set {s.key('beta')} above 0, or leave it out.",
        fields=("use_bias_correction_kl", "beta"),
    )


@rule("GK207", "warning", ("version", "beta", "lora", "sync_ref_model"))
def syncing_has_an_effect(s: Setting) -> Violation | None:
    """Before TRL 0.28 ``sync_ref_model`` without a reference model (``beta`` 0, or LoRA) does nothing, and says nothing."""
    if not s.sync_ref_model or s.version >= SYNC_CHECKED or (s.beta != 0 and not s.lora):
        return None
    reason = f"{s.key('beta')}=0" if s.beta == 0 else "LoRA"
    return Violation(
        what=f"{s.key('sync_ref_model')}=true",
        why=f"with {reason} there is no reference model to synchronise; this TRL does nothing, and 0.28 and later refuse it",
        instead=f"Set {s.key('sync_ref_model')}=false.",
        fields=("sync_ref_model", "beta", "lora"),
    )


@rule("GK208", "warning", ("version", "beta", "lora"))
def the_reference_is_used(s: Setting) -> Violation | None:
    """Before TRL 0.16 a reference model is loaded and run even where ``beta`` is 0 and its KL counts for nothing."""
    if s.beta != 0 or s.version >= NO_REFERENCE_AT_ZERO or s.lora:
        return None
    return Violation(
        what=f"{s.key('beta')}=0",
        why="this TRL loads a reference model and computes KL all the same; 0.16 and later do neither",
        instead="Use TRL 0.16 or later, or expect the memory of a second model.",
        fields=("beta",),
    )
