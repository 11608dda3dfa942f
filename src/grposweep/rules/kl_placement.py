"""GK, EasyR1 and verl: a KL term in the loss or in the reward, by which estimator, and with a coefficient that counts.

Sources: EasyR1 0.3.3 verl/trainer/core_algos.py (compute_kl, get_kl_controller), verl/workers/actor/dp_actor.py; verl 0.9.1
trainer/ppo/core_algos.py (kl_penalty), trainer/ppo/utils.py (need_reference_policy). What is said about gradients was
computed exactly on a categorical policy.
"""

from grposweep.rules.registry import Violation, rule
from grposweep.setting import IN_PROMPTS, Setting

IN_LOSS, IN_REWARD = ("loss", "both"), ("reward", "both")
VERL = frozenset({"verl"})
NORMALISED = ("grpo", "grpo_passk", "grpo_vectorized")
PLACES = ("kl_placement", "beta", "kl_reward_coefficient")


def _coefficients(s: Setting) -> list[tuple[str, float]]:
    """The coefficients that count, by field."""
    found = [("beta", s.beta)] if s.kl_placement in IN_LOSS else []
    return found + ([("kl_reward_coefficient", s.kl_reward_coefficient)] if s.kl_placement in IN_REWARD else [])


@rule("GK301", "warning", (*PLACES, "scale_rewards", "advantage_estimator"), of=IN_PROMPTS)
def the_reward_s_kl_is_not_normalised_away(s: Setting) -> Violation | None:
    """KL in the reward, which GRPO then divides by the deviation of the group: its coefficient stops to matter.

    In a group of equally good answers KL is all the variance there is. With verl's own function, four correct answers
    get advantages of 1.44, -0.72, -0.13, -0.58 with a coefficient of 1e-3, and 1.45, -0.73, -0.14, -0.59 with 1e-2.
    """
    if s.kl_placement not in IN_REWARD or s.kl_reward_coefficient == 0:
        return None
    if s.scale_rewards != "group" or s.advantage_estimator not in NORMALISED:
        return None
    return Violation(
        what=f"{s.key('kl_reward_coefficient')}={s.kl_reward_coefficient:g} in the reward",
        why="GRPO divides by the deviation of each group, so where all answers are equally good KL noise alone decides, "
        "whatever the coefficient",
        instead="Put KL into the loss.",
        fields=("kl_placement", "kl_reward_coefficient"),
    )


@rule("GK302", "error", ("framework", "kl_placement", "kl_estimator", "beta"), of=IN_PROMPTS)
def the_loss_s_estimator_has_a_gradient(s: Setting) -> Violation | None:
    """The estimator ``kl`` (k1) as a loss has an expected gradient of exactly 0: KL looks enabled and does nothing.

    k3 (``low_var_kl``) has one, k2 (``mse``) that of the reverse KL. ``kl`` is EasyR1's default, while its example sets
    ``low_var_kl``.
    """
    if s.kl_placement not in IN_LOSS or s.kl_estimator != "k1" or s.beta == 0:
        return None
    return Violation(
        what=f"{s.key('kl_estimator')}=kl",
        why="as a loss its expected gradient is 0, so the KL term does nothing but add noise",
        instead=f"Set {s.key('kl_estimator')}=low_var_kl.",
        fields=("kl_estimator", "kl_placement"),
        suggestions=({"kl_estimator": "k3"}, {"kl_estimator": "k2"}),
    )


@rule("GK303", "error", ("framework", "kl_placement", "kl_estimator", "kl_reward_estimator"), of=IN_PROMPTS)
def the_estimator_works(s: Setting) -> Violation | None:
    """The estimator ``full`` needs logits that neither framework hands it.

    EasyR1 sums over time instead: RuntimeError in the first step, or a silent broadcast where sizes happen to agree. verl:
    NotImplementedError in the first step.
    """
    places = (("kl_estimator", IN_LOSS), ("kl_reward_estimator", IN_REWARD))
    for name, where in places:
        if s.kl_placement in where and getattr(s, name) == "full":
            return Violation(
                what=f"{s.key(name)}=full",
                why=f"{s.trainer} fails at the first step: it has log-probabilities of tokens, not logits",
                instead=f"Set {s.key(name)}=low_var_kl.",
                fields=(name, "kl_placement"),
                suggestions=({name: "k3"},),
            )
    return None


CONTROL = ("kl_placement", "kl_controller", "kl_horizon", "loads_reference", "framework")


@rule("GK304", "error", CONTROL, of=IN_PROMPTS)
def the_controller_has_a_horizon(s: Setting) -> Violation | None:
    """An adaptive coefficient moves over a horizon, which is above 0.

    EasyR1 at start, also with the KL in the loss, and verl with the KL in the reward: "horizon must be larger than 0."
    """
    is_built = s.loads_reference if s.framework.name == "easyr1" else s.kl_placement in IN_REWARD
    if not is_built or s.kl_controller != "adaptive" or s.kl_horizon is None or s.kl_horizon > 0:
        return None
    return Violation(
        what=f"{s.key('kl_horizon')}={s.kl_horizon:g}",
        why=f"{s.key('kl_controller')}=adaptive divides by it, so it must be above 0",
        instead=f"Set {s.key('kl_horizon')}=10000, or {s.key('kl_controller')}=fixed.",
        fields=("kl_horizon", "kl_controller"),
        suggestions=({"kl_horizon": 10000.0}, {"kl_controller": "fixed"}),
    )


@rule("GK305", "warning", ("kl_placement", "kl_controller"), of=IN_PROMPTS)
def the_controller_is_read(s: Setting) -> Violation | None:
    """The adaptive controller moves the coefficient in the reward only; with KL in the loss the coefficient stays fixed."""
    if s.kl_controller != "adaptive" or s.kl_placement != "loss":
        return None
    return Violation(
        what=f"{s.key('kl_controller')}=adaptive",
        why="KL is in the loss, where the coefficient never moves: controller, target and horizon are ignored",
        instead=f"Set {s.key('kl_controller')}=fixed.",
        fields=("kl_controller", "kl_placement"),
    )


@rule("GK306", "warning", (*PLACES, "loads_reference", "framework"), of=IN_PROMPTS)
def the_reference_is_used(s: Setting) -> Violation | None:
    """A KL coefficient of 0 does not switch KL off: the reference is loaded, and asked in every rollout, for nothing.

    EasyR1 goes by ``disable_kl`` alone, verl by ``use_kl_loss`` and ``use_kl_in_reward``; neither looks at coefficients.
    """
    found = _coefficients(s)
    if not s.loads_reference or not found or any(value != 0 for _, value in found):
        return None
    off = "algorithm.disable_kl=true" if s.framework.name == "easyr1" else f"{s.key('kl_placement')}=false"
    return Violation(
        what=" and ".join(f"{s.key(name)}=0" for name, _ in found),
        why="KL has no effect, but the reference model is loaded and computes log-probabilities all the same",
        instead=f"Set {off}, or a coefficient above 0.",
        fields=tuple(name for name, _ in found),
    )


@rule("GK307", "warning", PLACES, of=VERL)
def kl_counts_once(s: Setting) -> Violation | None:
    """KL in the loss and in the reward at once: it counts twice, with two coefficients and two estimators.

    verl prints "NOTICE: You have both enabled in-reward kl and kl loss." and goes on.
    """
    if s.kl_placement != "both":
        return None
    return Violation(
        what=f"{s.key('beta')}={s.beta:g} and {s.key('kl_reward_coefficient')}={s.kl_reward_coefficient:g}",
        why="KL is in the loss and in the reward at once, so it counts twice",
        instead="Set algorithm.use_kl_in_reward=false.",
        fields=("beta", "kl_reward_coefficient", "kl_placement"),
    )


@rule("GK308", "error", (*PLACES,), of=IN_PROMPTS)
def the_coefficients_are_not_negative(s: Setting) -> Violation | None:
    """A negative KL coefficient rewards divergence from the reference; EasyR1 and verl accept it without a word."""
    for name, value in _coefficients(s):
        if value < 0:
            return Violation(
                what=f"{s.key(name)}={value:g}",
                why="a negative coefficient rewards moving away from the reference",
                instead=f"Set {s.key(name)}={-value:g}.",
                fields=(name,),
                suggestions=({name: -value}, {name: 0.0}),
            )
    return None
