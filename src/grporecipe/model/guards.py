"""Guards that find a training that has collapsed, with the evidence in words.

Every threshold is far outside what healthy trainings show, on at least two successive evaluations.
No guard ends a trial that is still better than the model before training: guards catch what is
surely lost, they do not compare trials. On the recorded curves of benchmarks/curves no guard ends a
trial that a sweep would have wanted.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from grporecipe.files import Config

# evaluations in a row: one may be an outlier
TWICE = 2
# evaluations in a row where a signal also stands still in trainings that recover,
LONG = 3
# which are as much of the whole training
LONG_SHARE = 0.3
# a reward within these of its start has not risen; noise does so in 1 of 700 evaluations
STANDARD_ERRORS = 3.0

KL_NATS = (
    # a token, TRL's k3 estimate. Trainings of language models stay below 1, and the policy is
    # another one at 10.
    10.0
)
# a token: nothing is sampled any more. Healthy policies have 0.05 to 2; certain, right ones less,
ENTROPY_NATS = 1e-3
# so it also has to be this share of what it was at the first evaluation.
ENTROPY_SHARE = 0.02
# of the groups, or of the completions
ALL = 0.999
# a model that began with more truncated completions has too short a limit, and has not collapsed
SOME = 0.5
# of the start's reward is gone,
FALLEN = 0.5
# and more than the noise of two evaluations explains
FALLEN_ERRORS = 5.0


@dataclass(frozen=True)
class RewardCurve:
    """The reward of a training at its evaluations after the start.

    All sequences have one entry per evaluation, or are empty. ``held_out`` is the reward, larger is
    better, and ``errors`` its standard errors. ``completions`` counts what the training generated
    until each evaluation, ``total`` what a whole training generates; a log counts steps.
    ``signals`` are means over the training steps since the previous evaluation: train_reward, kl,
    entropy, grad_norm, zero_std (share of groups without reward variance), truncated (share of
    completions), update_size; None is not a number.
    """

    total: float
    completions: Sequence[float]
    held_out: Sequence[float]
    start: float | None = None
    errors: Sequence[float | None] = ()
    signals: Mapping[str, Sequence[float | None]] = field(default_factory=dict)

    @property
    def begun(self) -> float:
        """Return the reward before training, or the first one."""
        return self.held_out[0] if self.start is None else self.start


def non_finite(curve: RewardCurve) -> str:
    """No training step since the last evaluation had a finite loss; it never becomes finite
    again.
    """
    if recent(curve, "broken", 1) != [1.0]:
        return ""
    return "the loss was not a number at any step since the last evaluation"


def kl_blow_up(curve: RewardCurve) -> str:
    """The policy is far from its reference and has gained nothing."""
    kl = recent(curve, "kl", TWICE)
    if len(kl) < TWICE or min(kl) < KL_NATS or has_risen(curve):
        return ""
    return (
        f"KL to the reference is {kl[-1]:.3g} nats per token (more than {KL_NATS:g} twice), "
        f"{_reward(curve)}"
    )


def entropy_collapse(curve: RewardCurve) -> str:
    """Entropy has collapsed while the reward is still low."""
    entropy = recent(curve, "entropy", TWICE)
    first = _first(curve, "entropy")
    if (
        len(entropy) < TWICE
        or first is None
        or max(entropy) > min(ENTROPY_NATS, ENTROPY_SHARE * first)
        or has_risen(curve)
    ):
        return ""
    return (
        f"entropy has fallen from {first:.3g} to {entropy[-1]:.2g} nats per token, {_reward(curve)}"
    )


def no_variance(curve: RewardCurve) -> str:
    """All completions of every group earn the same reward, so there is no gradient."""
    shares = recent(curve, "zero_std", LONG)
    if not _stands_still(curve, shares) or has_risen(curve):
        return ""
    return f"no group has had any variance in its rewards for {LONG} evaluations, {_reward(curve)}"


def all_truncated(curve: RewardCurve) -> str:
    """All completions have come to run into the length limit: endless repetition."""
    shares = recent(curve, "truncated", LONG)
    first = _first(curve, "truncated")
    if not _stands_still(curve, shares) or first is None or first > SOME or has_risen(curve):
        return ""
    return (
        f"all completions have been truncated for {LONG} evaluations ({first:.0%} at first), "
        f"{_reward(curve)}"
    )


def reward_fallen(curve: RewardCurve) -> str:
    """The model is far worse than before training."""
    if curve.start is None or curve.start == 0 or len(curve.held_out) < TWICE:
        return ""
    best = max(curve.held_out[-TWICE:])
    errors = [error for error in curve.errors[-TWICE:] if error is not None]
    noise = FALLEN_ERRORS * math.sqrt(2) * max(errors, default=0.0)
    if curve.start - best <= max(FALLEN * abs(curve.start), noise):
        return ""
    return (
        f"held-out reward has fallen from {curve.start:.4g} before training to "
        f"{curve.held_out[-1]:.4g}"
    )


# logged steps, and the share of a training by which it should have moved
FEW_STEPS, SOME_STEPS, FIRST = 5, 20, 0.1


def unmoved(rows: Iterable[Config], total: int | None = None) -> str:
    """Return why no logged step could change a weight; empty if one did, or if it is too early to
    say.

    ``rows`` are the logged steps from the first on, with step, learning_rate, grad_norm,
    update_size and zero_std; a missing metric is unknown. Read until the first step that moved.
    Groups without variance may come by chance, so they count after 20 logged steps or a tenth of
    the ``total`` steps. Not in `GUARDS`, which end a training.
    """
    causes: dict[str, int] = {}
    step = 0
    for row in rows:
        cause = _idle(row)
        if not cause:
            return ""
        causes[cause] = causes.get(cause, 0) + 1
        step = row["step"]
    count = sum(causes.values())
    enough = min(SOME_STEPS, max(FIRST * total, FEW_STEPS)) if total else SOME_STEPS
    if count < FEW_STEPS or (NO_SIGNAL in causes and count < SOME_STEPS and step < enough):
        return ""
    listed = ", ".join(f"{cause} ({number} of them)" for cause, number in causes.items())
    if len(causes) == 1:
        (listed,) = causes
    return f"no weight can have changed in the {count} logged steps to {step:,}: {listed}"


NO_SIGNAL = "no group had any variance in its rewards"


def _idle(row: Config) -> str:
    """Return why a step changes no weight; empty if it may."""
    if row.get("learning_rate") == 0:
        return "the learning rate was 0"
    if row.get("grad_norm") == 0 or (row.get("zero_std") == 1 and row.get("grad_norm") is None):
        return NO_SIGNAL if row.get("zero_std") == 1 else "the gradient was 0"
    if row.get("update_size") == 0:
        return "there was a gradient, and the weights stayed the same"
    return ""


GUARDS: dict[str, Callable[[RewardCurve], str]] = {
    "non_finite": non_finite,
    "kl_blow_up": kl_blow_up,
    "entropy_collapse": entropy_collapse,
    "no_variance": no_variance,
    "all_truncated": all_truncated,
    "reward_fallen": reward_fallen,
}


def recent(curve: RewardCurve, name: str, count: int) -> list[float]:
    """Return a signal at the last evaluations; fewer if it was not always logged."""
    values: Sequence[float | None] = curve.signals.get(name, ())
    return [value for value in values[-count:] if value is not None]


def _first(curve: RewardCurve, name: str) -> float | None:
    return next((value for value in curve.signals.get(name, ()) if value is not None), None)


def _stands_still(curve: RewardCurve, shares: list[float]) -> bool:
    """Return whether a share has been 1 for long."""
    if len(shares) < LONG or min(shares) < ALL:
        return False
    before = curve.completions[-LONG - 1] if len(curve.completions) > LONG else 0.0
    return (curve.completions[-1] - before) / curve.total >= LONG_SHARE


def has_risen(curve: RewardCurve) -> bool:
    """Return whether the held-out reward is above its start by more than noise; above its first
    value if there is no start.
    """
    error = next((error for error in reversed(curve.errors) if error is not None), 0.0)
    return curve.held_out[-1] - curve.begun > STANDARD_ERRORS * error


def _reward(curve: RewardCurve) -> str:
    start = "" if curve.start is None else f" (before training {curve.start:.4g})"
    return f"and held-out reward is {curve.held_out[-1]:.4g}{start}"
