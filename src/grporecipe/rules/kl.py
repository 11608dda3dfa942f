"""GK: the KL penalty has the effect that its keys promise, and its reference model is synchronised
and used.

Sources: trl 0.14-1.16 trainer/grpo_config.py (defaults), trainer/grpo_trainer.py (beta 0 loads no
reference model and computes no KL at all), trainer/callbacks.py SyncRefModelCallback. Of frameworks
that count prompts: EasyR1 0.3.3 verl/trainer/core_algos.py (compute_kl, get_kl_controller),
verl/workers/actor/dp_actor.py; verl 0.9.1 trainer/ppo/core_algos.py (kl_penalty),
trainer/ppo/utils.py (need_reference_policy). Statements about gradients were computed exactly on a
categorical policy.
"""

from grporecipe.model import planning
from grporecipe.model.setting import EVERY, IN_PROMPTS, TRL_LIKE, Setting
from grporecipe.rules.batch import only_tries
from grporecipe.rules.helpers import named, unread
from grporecipe.rules.registry import Finding, Violation, rule

# before, SyncRefModelCallback passes over a missing reference silently
SYNC_CHECKED = (0, 28)
# before, beta=0 still loads a reference
NO_REFERENCE_AT_ZERO = (0, 16)
# the default of beta became 0.0; it was 0.04
BETA_ZERO = (0, 19)
# use_bias_correction_kl is True by default
CORRECTED = (1, 10)
DEFAULTS = {"ref_model_sync_steps": 512, "ref_model_mixup_alpha": 0.6}


@rule(
    "GK101",
    "error",
    ("kl_enabled", "beta"),
    of=EVERY,
    blames=("kl_enabled", "beta"),
    what="{beta=}",
    why="KL is off ({kl_enabled}=false), so the coefficient contradicts it",
    instead="Choose kl=low (the coefficient then counts), or {beta}=0.",
    to=({"kl_enabled": True}, {"beta": 0.0}),
)
def no_coefficient_with_kl_off(s: Setting) -> bool:
    """A KL coefficient is set while KL is off, so it has no effect.

    In grposweep, ``kl=none`` means no KL, so a ``kl.beta`` with it is a contradiction (in a sweep,
    a parameter without effect).
    """
    return s.kl_enabled is False and s.beta != 0


@rule(
    "GK102",
    "error",
    ("framework", "kl_enabled", "beta", "sync_ref_model"),
    of=EVERY,
    blames=("kl_enabled", "beta"),
    why="{beta}=0 switches KL off in {trainer}: no reference model, no penalty",
    instead="Set {beta}=0.001 or more, or choose kl=none.",
    to=({"beta": 1e-3}, {"kl_enabled": False}, {"kl_enabled": False, "sync_ref_model": False}),
)
def a_coefficient_with_kl_on(s: Setting) -> bool:
    """KL is on with a coefficient of 0: TRL then loads no reference and computes no KL,
    silently.
    """
    return bool(s.kl_enabled) and s.beta == 0


@rule(
    "GK103",
    "error",
    ("beta", "sync_ref_model", "kl_enabled", "version"),
    blames=("sync_ref_model", "beta"),
    why="{beta}=0 means that there is no reference model to synchronise",
    instead="Set {sync_ref_model}=false, or a coefficient: {beta}=0.04.",
    harmless=("sync_ref_model",),
    to=({"sync_ref_model": False}, {"beta": 0.04}, {"beta": 0.04, "kl_enabled": True}),
)
def syncing_needs_a_reference(s: Setting) -> bool:
    """``sync_ref_model`` without a KL coefficient: there is no reference model to synchronise.

    TRL since 0.28 raises ValueError after the model is loaded: "You passed `sync_ref_model=True`
    while `beta=0.0` ..." Before, TRL does not report it (GK207).
    """
    return s.sync_ref_model and s.beta == 0 and s.version >= SYNC_CHECKED


@rule(
    "GK104",
    "error",
    ("sync_ref_model", "lora", "beta", "version"),
    blames=("sync_ref_model", "lora"),
    why="with LoRA the reference is the frozen base model, which TRL cannot synchronise",
    instead="Set {sync_ref_model}=false, or train all weights.",
    harmless=("sync_ref_model",),
    to=({"sync_ref_model": False}, {"lora": False}),
)
def syncing_needs_a_full_model(s: Setting) -> bool:
    """``sync_ref_model`` with LoRA: the reference is the base model under the adapter, which cannot
    be synchronised.

    TRL since 0.28 raises NotImplementedError after the model is loaded. Before, TRL does not report
    it (GK207).
    """
    return s.sync_ref_model and s.lora and s.version >= SYNC_CHECKED


@rule(
    "GK105",
    "error",
    ("sync_ref_model", "ref_model_sync_steps", "ref_model_mixup_alpha"),
    of=TRL_LIKE,
)
def syncing_has_a_rhythm(s: Setting) -> Violation | None:
    """``ref_model_sync_steps`` counts optimizer steps (at least 1), ``ref_model_mixup_alpha`` is a
    share in (0, 1].

    TRL 1.16 divides by the steps at the first step: ZeroDivisionError for 0.
    """
    if not s.sync_ref_model or (s.ref_model_sync_steps >= 1 and 0 < s.ref_model_mixup_alpha <= 1):
        return None
    name = "ref_model_sync_steps" if s.ref_model_sync_steps < 1 else "ref_model_mixup_alpha"
    return Violation(
        named(s, (name,)),
        "the reference moves by a share in (0, 1], every 1 or more optimizer steps",
        f"Set {s.key(name)}={DEFAULTS[name]}, the default.",
        (name,),
        ({name: DEFAULTS[name]},),
    )


NEGATIVE = "a negative coefficient rewards moving away from the reference"


@rule(
    "GK106",
    "error",
    ("beta", "kl_enabled"),
    of=TRL_LIKE,
    blames=("beta",),
    why=NEGATIVE,
    instead="Set {beta}={positive:g}.",
    to=lambda s: ({"beta": -s.beta}, {"beta": 0.0}),
)
def the_coefficient_is_not_negative(s: Setting) -> Finding:
    """A negative KL coefficient rewards divergence from the reference; TRL 1.16 accepts it
    silently.
    """
    if s.beta < 0:
        return {"positive": -s.beta}
    return None


@rule(
    "GK201",
    "warning",
    ("sync_ref_model", "beta", "ref_model_sync_steps", *planning.TOTAL_STEPS_READS),
    of=TRL_LIKE,
    blames=("ref_model_sync_steps",),
    why="the run has {total} optimizer steps, so the reference is never synchronised",
    instead="Set {ref_model_sync_steps} below {total}, or {sync_ref_model}=false.",
)
def syncing_happens_at_all(s: Setting) -> Finding:
    """The first synchronisation comes after ``ref_model_sync_steps`` optimizer steps. A shorter run
    never reaches it.
    """
    if not s.sync_ref_model or s.beta == 0 or s.gradient_accumulation_steps < 1:
        return None
    total = planning.total_steps(s)
    is_late = total is not None and s.ref_model_sync_steps >= 1 and total < s.ref_model_sync_steps
    if is_late:
        return {"total": total}
    return None


@rule(
    "GK202",
    "warning",
    ("sync_ref_model", "beta", "ref_model_sync_steps", "ref_model_mixup_alpha"),
    of=TRL_LIKE,
    blames=("ref_model_mixup_alpha", "ref_model_sync_steps"),
    what="{ref_model_mixup_alpha}=1",
    why="with {ref_model_sync_steps}=1 the reference is always the policy itself, and KL always 0",
    instead="Synchronise less often, or with a smaller share.",
)
def the_reference_stays_behind(s: Setting) -> bool:
    """Replacing the reference by the policy after every step makes KL zero at the start of each
    step.

    Measured on trl 1.16: with alpha 1 and every step the KL metric is 0 and the penalty has no
    effect on-policy.
    """
    is_replaced = s.ref_model_sync_steps == 1 and s.ref_model_mixup_alpha == 1
    return s.sync_ref_model and s.beta != 0 and is_replaced


@rule(
    "GK203",
    "warning",
    ("version", "given", "beta", "lora", "max_steps", "parameters"),
    blames=("beta",),
    what="{beta} is not set",
    why=(
        "this TRL then takes {s.beta:g} and loads a reference model; TRL 0.19 and later take 0 "
        "and load none"
    ),
    instead="Write down which is meant: {beta=} or {beta}=0.0.",
)
def the_coefficient_was_meant(s: Setting) -> bool:
    """Up to TRL 0.18 an unset ``beta`` is 0.04 and loads a second model; since 0.19 it is 0 and
    there is no KL at all.

    So a recipe that leaves it out changes its objective and its memory with the release that runs
    it. LoRA loads no second model, and a run that only tries the code compares nothing.
    """
    is_left_out = bool(s.given) and "beta" not in s.given
    loads = is_left_out and s.version < BETA_ZERO and s.beta != 0 and not s.lora
    return loads and not only_tries(s)


@rule(
    "GK204",
    "warning",
    ("version", "given", "beta", "use_bias_correction_kl"),
    blames=("beta", "use_bias_correction_kl"),
    why="TRL before 1.10 estimated KL without {use_bias_correction_kl}, which is now on unless set",
    instead=(
        "Write down which is meant: {use_bias_correction_kl}=true, or false for the older "
        "objective."
    ),
)
def the_estimator_was_meant(s: Setting) -> bool:
    """Since TRL 1.10 ``use_bias_correction_kl`` is on unless set: with the same beta the KL term is
    another objective.

    The term becomes k3 times the importance ratio. On-policy its expected gradient is that of the
    reverse KL; without the ratio it is not (computed exactly on a categorical policy).
    """
    return (
        s.beta != 0
        and s.version >= CORRECTED
        and bool(s.given)
        and "use_bias_correction_kl" not in s.given
    )


SYNC_WORDS = ("ref_model_mixup_alpha", "ref_model_sync_steps")
rule(
    "GK205",
    "warning",
    ("given", "unknown", "sync_ref_model", *SYNC_WORDS),
    of=TRL_LIKE,
    title="the rhythm is read",
    text=(
        "``ref_model_mixup_alpha`` and ``ref_model_sync_steps`` are read only with "
        "``sync_ref_model``; alone they do nothing."
    ),
)(unread(*SYNC_WORDS))


rule(
    "GK206",
    "warning",
    ("given", "unknown", "beta", "use_bias_correction_kl"),
    title="the estimator is read",
    text=(
        "``use_bias_correction_kl`` changes how KL is estimated; with ``beta`` 0 no KL is "
        "computed, and nothing reads it."
    ),
)(unread("use_bias_correction_kl"))


@rule(
    "GK207",
    "warning",
    ("version", "beta", "lora", "sync_ref_model"),
    blames=("sync_ref_model", "beta", "lora"),
    why=(
        "with {reason} there is no reference model to synchronise; this TRL does nothing, and "
        "0.28 and later refuse it"
    ),
    instead="Set {sync_ref_model}=false.",
)
def syncing_has_an_effect(s: Setting) -> Finding:
    """Before TRL 0.28 ``sync_ref_model`` without a reference model (``beta`` 0, or LoRA) silently
    does nothing.
    """
    if not s.sync_ref_model or s.version >= SYNC_CHECKED or (s.beta != 0 and not s.lora):
        return None
    reason = f"{s.key('beta')}=0" if s.beta == 0 else "LoRA"
    return {"reason": reason}


@rule(
    "GK208",
    "warning",
    ("version", "beta", "lora"),
    blames=("beta",),
    what="{beta}=0",
    why="this TRL still loads a reference model and computes KL; 0.16 and later do neither",
    instead="Use TRL 0.16 or later, or expect the memory of a second model.",
)
def no_reference_is_loaded_for_nothing(s: Setting) -> bool:
    """Before TRL 0.16 a reference model is loaded and run even if ``beta`` is 0, so its KL has no
    effect.
    """
    return s.beta == 0 and s.version < NO_REFERENCE_AT_ZERO and not s.lora


# Frameworks that count prompts: an estimator and a coefficient of a KL term in the loss or in the
# reward.

IN_LOSS = ("loss", "both")
IN_REWARD = ("reward", "both")
NORMALISED = ("grpo", "grpo_passk", "grpo_vectorized")
PLACES = ("kl_placement", "beta", "kl_reward_coefficient")


def coefficients(s: Setting) -> dict[str, float]:
    """Return the coefficients that have an effect, by field."""
    used = {}
    if s.kl_placement in IN_LOSS:
        used["beta"] = s.beta
    if s.kl_placement in IN_REWARD:
        used["kl_reward_coefficient"] = s.kl_reward_coefficient
    return used


@rule(
    "GK301",
    "warning",
    (*PLACES, "num_generations", "scale_rewards", "advantage_estimator"),
    of=IN_PROMPTS,
    blames=("kl_placement", "kl_reward_coefficient"),
    what="{kl_reward_coefficient=} in the reward",
    why="GRPO divides by the deviation of each group, so if all answers are equally good only "
    "KL noise decides, "
    "at every coefficient",
    instead="Put KL into the loss.",
)
def the_kl_of_the_reward_is_not_normalised_away(s: Setting) -> bool:
    """KL in the reward: GRPO divides it by the deviation of the group, so its coefficient has no
    effect.

    In a group of equally good answers KL is all the variance there is. With verl's own function,
    four correct answers get advantages of 1.44, -0.72, -0.13, -0.58 with a coefficient of 1e-3, and
    1.45, -0.73, -0.14, -0.59 with 1e-2.
    """
    is_in_reward = (
        s.kl_placement in IN_REWARD and s.kl_reward_coefficient != 0 and s.num_generations > 1
    )
    return is_in_reward and s.scale_rewards == "group" and s.advantage_estimator in NORMALISED


@rule(
    "GK302",
    "error",
    ("framework", "kl_placement", "kl_estimator", "beta"),
    of=IN_PROMPTS,
    blames=("kl_estimator", "kl_placement"),
    what="{kl_estimator}=kl",
    why="as a loss its expected gradient is 0, so the KL term only adds noise",
    instead="Set {kl_estimator}=low_var_kl.",
    to=({"kl_estimator": "k3"}, {"kl_estimator": "k2"}),
)
def the_estimator_in_the_loss_has_a_gradient(s: Setting) -> bool:
    """The estimator ``kl`` (k1) as a loss has an expected gradient of exactly 0: KL looks enabled
    and does nothing.

    k3 (``low_var_kl``) has one, k2 (``mse``) that of the reverse KL. ``kl`` is EasyR1's default,
    while its example sets ``low_var_kl``.
    """
    return s.kl_placement in IN_LOSS and s.kl_estimator == "k1" and s.beta != 0


@rule(
    "GK303",
    "error",
    ("framework", "kl_placement", "kl_estimator", "kl_reward_estimator"),
    of=IN_PROMPTS,
)
def the_estimator_works(s: Setting) -> Violation | None:
    """The estimator ``full`` needs logits that neither framework passes to it.

    EasyR1 sums over time instead: RuntimeError in the first step, or a silent broadcast if sizes
    happen to agree. verl: NotImplementedError in the first step.
    """
    for name, places in (("kl_estimator", IN_LOSS), ("kl_reward_estimator", IN_REWARD)):
        if s.kl_placement in places and getattr(s, name) == "full":
            return Violation(
                f"{s.key(name)}=full",
                f"{s.trainer} fails at the first step: it has log-probabilities of tokens, not "
                "logits",
                f"Set {s.key(name)}=low_var_kl.",
                (name, "kl_placement"),
                ({name: "k3"},),
            )
    return None


def has_no_horizon(s: Setting) -> bool:
    """Return whether an adaptive controller has no horizon."""
    return s.kl_controller == "adaptive" and s.kl_horizon is not None and s.kl_horizon <= 0


@rule(
    "GK304",
    "error",
    ("kl_placement", "kl_controller", "kl_horizon", "loads_reference", "framework"),
    of=IN_PROMPTS,
    blames=("kl_horizon", "kl_controller"),
    why="{kl_controller}=adaptive divides by it, so it must be above 0",
    instead="Set {kl_horizon}=10000, or {kl_controller}=fixed.",
    to=({"kl_horizon": 10000.0}, {"kl_controller": "fixed"}),
)
def the_controller_has_a_horizon(s: Setting) -> bool:
    """An adaptive coefficient needs a horizon above 0.

    EasyR1 at start, also with the KL in the loss, and verl with the KL in the reward: "horizon must
    be larger than 0."
    """
    return s.kl_placement in IN_REWARD and has_no_horizon(s)


@rule(
    "GK305",
    "warning",
    ("kl_placement", "kl_controller"),
    of=IN_PROMPTS,
    blames=("kl_controller", "kl_placement"),
    why=(
        "KL is in the loss, and its coefficient is fixed there: controller, target and horizon "
        "are ignored"
    ),
    instead="Set {kl_controller}=fixed.",
)
def the_controller_is_read(s: Setting) -> bool:
    """The adaptive controller changes only the coefficient in the reward. With KL in the loss the
    coefficient is fixed.
    """
    return s.kl_controller == "adaptive" and s.kl_placement == "loss"


@rule("GK306", "warning", (*PLACES, "loads_reference", "framework"), of=IN_PROMPTS)
def the_reference_is_used(s: Setting) -> Violation | None:
    """A KL coefficient of 0 does not switch KL off: the reference is loaded and run in every
    rollout, without effect.

    EasyR1 goes by ``disable_kl`` alone, verl by ``use_kl_loss`` and ``use_kl_in_reward``; neither
    reads the coefficients.
    """
    return find_idle_reference(s, f"{s.key('kl_placement')}=false")


def find_idle_reference(s: Setting, off: str) -> Violation | None:
    """Find a reference model whose KL has no coefficient; ``off`` is the setting that switches it
    off.
    """
    used = coefficients(s)
    if not s.loads_reference or not used or any(used.values()):
        return None
    return Violation(
        " and ".join(f"{s.key(name)}=0" for name in used),
        "KL has no effect, but the reference model is still loaded and computes log-probabilities",
        f"Set {off}, or a coefficient above 0.",
        tuple(used),
    )


@rule("GK308", "error", PLACES, of=IN_PROMPTS)
def the_coefficients_are_not_negative(s: Setting) -> Violation | None:
    """A negative KL coefficient rewards divergence from the reference; EasyR1 and verl accept it
    silently.
    """
    for name, value in coefficients(s).items():
        if value < 0:
            key = s.key(name)
            changes = ({name: -value}, {name: 0.0})
            return Violation(
                f"{key}={value:g}", NEGATIVE, f"Set {key}={-value:g}.", (name,), changes
            )
    return None
