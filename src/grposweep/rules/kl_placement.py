"""GK, frameworks that count prompts: a KL term in the loss or in the reward, by an estimator and a coefficient that count.

Sources: EasyR1 0.3.3 verl/trainer/core_algos.py (compute_kl, get_kl_controller), verl/workers/actor/dp_actor.py; verl 0.9.1
trainer/ppo/core_algos.py (kl_penalty), trainer/ppo/utils.py (need_reference_policy). What is said about gradients was
computed exactly on a categorical policy.
"""

from grposweep.rules.kl import NEGATIVE
from grposweep.rules.registry import Violation, rule
from grposweep.setting import IN_PROMPTS, Setting

IN_LOSS, IN_REWARD = ("loss", "both"), ("reward", "both")
NORMALISED = ("grpo", "grpo_passk", "grpo_vectorized")
PLACES = ("kl_placement", "beta", "kl_reward_coefficient")


def coefficients(s: Setting) -> list[tuple[str, float]]:
    """Return the coefficients that count, by field."""
    found = [("beta", s.beta)] if s.kl_placement in IN_LOSS else []
    return found + ([("kl_reward_coefficient", s.kl_reward_coefficient)] if s.kl_placement in IN_REWARD else [])


@rule("GK301", "warning", (*PLACES, "scale_rewards", "advantage_estimator"), of=IN_PROMPTS,
      blames=("kl_placement", "kl_reward_coefficient"),
      what="{kl_reward_coefficient=} in the reward",
      why="GRPO divides by the deviation of each group, so where all answers are equally good KL noise alone decides, "
          "whatever the coefficient",
      instead="Put KL into the loss.")  # fmt: skip
def the_kl_of_the_reward_is_not_normalised_away(s: Setting) -> bool:
    """KL in the reward, which GRPO then divides by the deviation of the group: its coefficient stops to matter.

    In a group of equally good answers KL is all the variance there is. With verl's own function, four correct answers
    get advantages of 1.44, -0.72, -0.13, -0.58 with a coefficient of 1e-3, and 1.45, -0.73, -0.14, -0.59 with 1e-2.
    """
    is_in_reward = s.kl_placement in IN_REWARD and s.kl_reward_coefficient != 0
    return is_in_reward and s.scale_rewards == "group" and s.advantage_estimator in NORMALISED


@rule("GK302", "error", ("framework", "kl_placement", "kl_estimator", "beta"), of=IN_PROMPTS,
      blames=("kl_estimator", "kl_placement"), what="{kl_estimator}=kl",
      why="as a loss its expected gradient is 0, so the KL term does nothing but add noise",
      instead="Set {kl_estimator}=low_var_kl.", to=({"kl_estimator": "k3"}, {"kl_estimator": "k2"}))  # fmt: skip
def the_estimator_in_the_loss_has_a_gradient(s: Setting) -> bool:
    """The estimator ``kl`` (k1) as a loss has an expected gradient of exactly 0: KL looks enabled and does nothing.

    k3 (``low_var_kl``) has one, k2 (``mse``) that of the reverse KL. ``kl`` is EasyR1's default, while its example sets
    ``low_var_kl``.
    """
    return s.kl_placement in IN_LOSS and s.kl_estimator == "k1" and s.beta != 0


@rule("GK303", "error", ("framework", "kl_placement", "kl_estimator", "kl_reward_estimator"), of=IN_PROMPTS)
def the_estimator_works(s: Setting) -> Violation | None:
    """The estimator ``full`` needs logits that neither framework hands it.

    EasyR1 sums over time instead: RuntimeError in the first step, or a silent broadcast where sizes happen to agree. verl:
    NotImplementedError in the first step.
    """
    for name, places in (("kl_estimator", IN_LOSS), ("kl_reward_estimator", IN_REWARD)):
        if s.kl_placement in places and getattr(s, name) == "full":
            return Violation(
                what=f"{s.key(name)}=full",
                why=f"{s.trainer} fails at the first step: it has log-probabilities of tokens, not logits",
                instead=f"Set {s.key(name)}=low_var_kl.",
                fields=(name, "kl_placement"),
                suggestions=({name: "k3"},),
            )
    return None


def has_no_horizon(s: Setting) -> bool:
    """Return whether an adaptive controller, wherever it is built, moves over no horizon."""
    return s.kl_controller == "adaptive" and s.kl_horizon is not None and s.kl_horizon <= 0


@rule("GK304", "error", ("kl_placement", "kl_controller", "kl_horizon", "loads_reference", "framework"), of=IN_PROMPTS,
      blames=("kl_horizon", "kl_controller"), why="{kl_controller}=adaptive divides by it, so it must be above 0",
      instead="Set {kl_horizon}=10000, or {kl_controller}=fixed.",
      to=({"kl_horizon": 10000.0}, {"kl_controller": "fixed"}))  # fmt: skip
def the_controller_has_a_horizon(s: Setting) -> bool:
    """An adaptive coefficient moves over a horizon, which is above 0.

    EasyR1 at start, also with the KL in the loss, and verl with the KL in the reward: "horizon must be larger than 0."
    """
    return s.kl_placement in IN_REWARD and has_no_horizon(s)


@rule("GK305", "warning", ("kl_placement", "kl_controller"), of=IN_PROMPTS, blames=("kl_controller", "kl_placement"),
      why="KL is in the loss, where the coefficient never moves: controller, target and horizon are ignored",
      instead="Set {kl_controller}=fixed.")  # fmt: skip
def the_controller_is_read(s: Setting) -> bool:
    """The adaptive controller moves the coefficient in the reward only; with KL in the loss the coefficient stays fixed."""
    return s.kl_controller == "adaptive" and s.kl_placement == "loss"


@rule("GK306", "warning", (*PLACES, "loads_reference", "framework"), of=IN_PROMPTS)
def the_reference_is_used(s: Setting) -> Violation | None:
    """A KL coefficient of 0 does not switch KL off: the reference is loaded, and asked in every rollout, for nothing.

    EasyR1 goes by ``disable_kl`` alone, verl by ``use_kl_loss`` and ``use_kl_in_reward``; neither looks at coefficients.
    """
    return find_idle_reference(s, f"{s.key('kl_placement')}=false")


def find_idle_reference(s: Setting, off: str) -> Violation | None:
    """Find a reference model whose KL has no coefficient; ``off`` is what switches it off."""
    found = coefficients(s)
    if not s.loads_reference or not found or any(value != 0 for _, value in found):
        return None
    return Violation(
        what=" and ".join(f"{s.key(name)}=0" for name, _ in found),
        why="KL has no effect, but the reference model is loaded and computes log-probabilities all the same",
        instead=f"Set {off}, or a coefficient above 0.",
        fields=tuple(name for name, _ in found),
    )


@rule("GK308", "error", PLACES, of=IN_PROMPTS)
def the_coefficients_are_not_negative(s: Setting) -> Violation | None:
    """A negative KL coefficient rewards divergence from the reference; EasyR1 and verl accept it without a word."""
    for name, value in coefficients(s):
        if value < 0:
            return Violation(
                f"{s.key(name)}={value:g}",
                NEGATIVE,
                f"Set {s.key(name)}={-value:g}.",
                (name,),
                ({name: -value}, {name: 0.0}),
            )
    return None
