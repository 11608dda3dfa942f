"""The checks of a training log. Each looks for one symptom and returns its evidence, or None."""

import math
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from statistics import fmean, median
from typing import Any, NamedTuple

from grporecipe.diagnose._evidence import Evidence
from grporecipe.diagnose._log import Log
from grporecipe.model import guards

# Healthy trainings do not reach these thresholds. A threshold that a sweep's guard has too is taken
# from the guard.

# logged steps that a check needs
SOME_ROWS = 10
# share of a training; a flat reward before it means nothing
EARLY = 0.3
# of a group's standard deviation: a smaller change over the whole training counts as none
FLAT = 0.25
# of the highest mean reward of a step: above it there is little left to gain
HIGH = 0.8
# of the reward or of its gain, in addition to noise
DROP = 0.1
# standard errors of an evaluation: three of the difference of two
BELOW_ERRORS = 3.0 * math.sqrt(2)
# entropy, against the first windows
EXPLOSION_TIMES, EXPLOSION_NATS = 3.0, 1.0
# of the first entropy; healthy policies keep 0.05 nats or more
VANISHED_SHARE, VANISHED_NATS = 0.1, 0.05
# logged steps, and the share of the first entropy that is left
FAST_STEPS, FAST_SHARE = 20, 0.2
# of the reward's gain
LOST = 1 / 3
# nats per token, on average: trainings of language models stay below
KL_WARN = 1.0
# times the median; the number of such steps
SPIKE, SPIKES = 20.0, 3
# share of groups, on average over the last windows
NO_VARIANCE = 0.8
TRUNCATED = guards.SOME
# times the first completions
LONGER = 1.5
# of a weight: a smaller update rounds to nothing (8 bits of significand)
BF16_HALF_STEP = 2.0**-9
# the usual initialisation's standard deviation
TYPICAL_WEIGHT = 0.02
# of a step
GENERATION = 0.85
NEAR_ZERO = 0.01
# median gradient norm, ten times the usual max_grad_norm
CLIPPED = 10.0


class Level(StrEnum):
    """How bad a finding is. A note only explains: it makes the command fail only if ``--fail-on``
    names it.
    """

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"


class Sign(NamedTuple):
    """The result of a check: a sentence of evidence, the range of steps, numbers for scripts, and
    an unusual level.
    """

    evidence: str
    steps: tuple[int, int]
    numbers: Mapping[str, float]
    level: Level | None = None


def guard(guard: Callable[[Any], str]) -> Callable[[Evidence], Sign | None]:
    """Return a check that applies one of the sweep's guards to the log."""

    def find(evidence: Evidence) -> Sign | None:
        curve = evidence.curve
        text = guard(curve) if curve is not None else ""
        if not text or curve is None:
            return None
        if not evidence.held_out:
            words = (
                ("held-out", "training"),
                ("before training", "at first"),
                ("evaluations", "tenths of the log"),
            )
            for old, new in words:
                text = text.replace(old, new)
        recent = evidence.stops[-min(guards.LONG, len(evidence.stops))]
        return Sign(text, (recent, evidence.log.end), {"reward": curve.held_out[-1]})

    return find


def non_finite(name: str) -> Callable[[Evidence], Sign | None]:
    """Return a check for values of a metric that are NaN or infinite in the last steps."""

    def find(evidence: Evidence) -> Sign | None:
        values = list(evidence.log.every(name))
        last = values[-3:]
        if len(last) < 3 or any(math.isfinite(value) for _, value in last):
            return None
        bad = [step for step, value in values if not math.isfinite(value)]
        text = f"{name} is {last[-1][1]} in the last {len(last)} logged steps"
        if len(bad) == len(values):
            text = f"{name} is {last[-1][1]} from the first logged step"
        return Sign(text, (bad[0], last[-1][0]), {})

    return find


def flat(evidence: Evidence) -> Sign | None:
    """Look for a flat reward: the interval of its change excludes a large gain."""
    if _has_fallen(evidence) or (observed := _no_gain(evidence, "has not risen")) is None:
        return None
    return observed._replace(level=Level.NOTE) if _is_high(evidence) else observed


def falling(evidence: Evidence) -> Sign | None:
    """Look for a falling reward: the interval of its change excludes a flat one."""
    return _no_gain(evidence, "has fallen") if _has_fallen(evidence) else None


def _has_fallen(evidence: Evidence) -> bool:
    trend = evidence.trend
    scale = evidence.scale
    return (
        trend is not None and scale is not None and trend.high < 0 and trend.change < -FLAT * scale
    )


def _no_gain(evidence: Evidence, words: str) -> Sign | None:
    """Return the change of a reward that has not risen. Return None if it has, or if it may still
    rise.
    """
    trend, scale, log = evidence.trend, evidence.scale, evidence.log
    if (
        trend is None
        or scale is None
        or evidence.risen
        or (log.total and log.end < EARLY * log.total)
    ):
        return None
    if (
        trend.low > 0
        or max(trend.high, evidence.early_gain()) >= FLAT * scale
        or _still_warming(evidence)
    ):
        return None
    return Sign(
        f"the {trend.name} {words}: {trend.change:+.3g} from step {trend.first} to {trend.last} "
        f"(95 % interval {trend.low:+.3g} to {trend.high:+.3g}; rewards of a group differ by "
        f"{scale:.2g})",
        (trend.first, trend.last),
        {"change": trend.change, "low": trend.low, "high": trend.high},
    )


def _is_high(evidence: Evidence) -> bool:
    """Return whether most prompts are solved: groups have no variance, and the reward is near its
    highest value.
    """
    values = [value for _, value in evidence.log.series("reward")]
    equal = [share for _, share in evidence.signal("zero_std")]
    return (
        bool(values and equal) and fmean(equal) >= 0.5 and fmean(values) >= HIGH * max(values) > 0
    )


def below_start(evidence: Evidence) -> Sign | None:
    """Look for evaluations that are worse than the one before training."""
    curve = evidence.curve
    if curve is None or curve.start is None or len(curve.held_out) < guards.TWICE:
        return None
    now = max(curve.held_out[-guards.TWICE :])
    noise = BELOW_ERRORS * max((error for error in curve.errors if error), default=0.0)
    if curve.start - now <= max(noise, DROP * abs(curve.start)):
        return None
    return Sign(
        f"held-out reward was {curve.start:.4g} before training and is {curve.held_out[-1]:.4g} "
        "now",
        (0, evidence.log.end),
        {"start": curve.start, "now": curve.held_out[-1]},
    )


def best_earlier(evidence: Evidence) -> Sign | None:
    """Look for a reward that was much better earlier."""
    curve = evidence.curve
    if curve is None or len(curve.held_out) < guards.LONG + 1:
        return None
    best = max(range(len(curve.held_out)), key=curve.held_out.__getitem__)
    now = max(curve.held_out[-guards.TWICE :])
    top = curve.held_out[best]
    # batches have other prompts
    sigmas = BELOW_ERRORS if evidence.held_out else guards.FALLEN_ERRORS * math.sqrt(2)
    noise = sigmas * max((error for error in curve.errors if error), default=0.0)
    gain = max(abs(top), abs(top - (curve.start or 0.0)))
    large = DROP * gain if evidence.held_out else FLAT * (evidence.scale or top)
    if top - now <= max(noise, large) or (
        curve.start is not None and evidence.held_out and top <= curve.start
    ):
        return None
    step = evidence.stops[best]
    return Sign(
        f"{evidence.reward_name} was best at step {step} ({top:.4g}) and is "
        f"{curve.held_out[-1]:.4g} at {evidence.stops[-1]}",
        (step, evidence.stops[-1]),
        {"best_step": step, "best": top, "now": curve.held_out[-1]},
    )


def few_groups(evidence: Evidence) -> Sign | None:
    """Look for groups whose rewards are all equal."""
    last = evidence.windows("zero_std")[-3:]
    if len(last) < 3 or (share := fmean(window.mean for window in last)) < NO_VARIANCE:
        return None
    level = Level.NOTE if evidence.risen else None
    stands = (
        ""
        if evidence.risen or evidence.curve is None
        else f", and the {evidence.reward_name} has not risen"
    )
    return Sign(
        f"{share:.0%} of the groups had no variance in their rewards{stands}",
        (last[0].first, last[-1].last),
        {"share": share},
        level,
    )


def entropy_down(evidence: Evidence) -> Sign | None:
    """Look for entropy that has nearly vanished while the reward has not risen."""
    windows = evidence.windows("entropy")
    if len(windows) < 4 or evidence.risen:
        return None
    first = fmean(w.mean for w in windows[:2])
    last = max(w.mean for w in windows[-2:])
    if last > min(VANISHED_SHARE * first, VANISHED_NATS):
        return None
    return Sign(
        f"entropy has fallen from {first:.3g} to {last:.2g} nats per token, and the "
        f"{evidence.reward_name} has not risen",
        (windows[-2].first, windows[-1].last),
        {"first": first, "last": last},
    )


def rate_too_high(evidence: Evidence) -> Sign | None:
    """Look for entropy that vanished within the first steps, and a reward that then lost much of
    its gain.

    SmolLM2-135M on an H100 (benchmarks/gpu/RESULTS.md): rates of 2.3e-5 and more did so, and 1.8e-5
    and less did not.
    """
    curve = evidence.curve
    values = evidence.signal("entropy")
    begun = median(value for _, value in values[:3])
    fast = [(step, value) for step, value in values[:FAST_STEPS] if value <= FAST_SHARE * begun]
    if curve is None or len(curve.held_out) < guards.LONG or len(fast) < guards.TWICE:
        return None
    best = max(range(len(curve.held_out)), key=curve.held_out.__getitem__)
    start = curve.held_out[0] if curve.start is None else curve.start
    top = max(curve.held_out[best], start)
    now = fmean(curve.held_out[-guards.TWICE :])
    noise = 2 * max((error for error in curve.errors if error), default=0.0)
    if top - now <= max(noise, LOST * (top - start)) and evidence.risen:
        return None
    step, value = fast[0]
    return Sign(
        f"entropy fell from {begun:.3g} to {value:.2g} nats per token by step {step}, and the "
        f"{evidence.reward_name} from "
        f"{top:.4g} at step {evidence.stops[best]} to {curve.held_out[-1]:.4g}",
        (step, evidence.log.end),
        {"first": begun, "by_step": step, "best": top, "now": curve.held_out[-1]},
    )


def entropy_up(evidence: Evidence) -> Sign | None:
    """Look for entropy that has multiplied while the reward has not risen."""
    windows = evidence.windows("entropy")
    if len(windows) < 4 or evidence.risen:
        return None
    first = fmean(w.mean for w in windows[:2])
    last = min(w.mean for w in windows[-2:])
    if last < EXPLOSION_TIMES * first or last < first + EXPLOSION_NATS:
        return None
    return Sign(
        f"entropy has risen from {first:.3g} to {last:.3g} nats per token, and the "
        f"{evidence.reward_name} has not risen",
        (windows[-2].first, windows[-1].last),
        {"first": first, "last": last},
    )


def kl_drift(evidence: Evidence) -> Sign | None:
    """Look for a KL that is high on average."""
    windows = evidence.windows("kl")[-guards.TWICE :]
    if len(windows) < guards.TWICE or min(window.mean for window in windows) < KL_WARN:
        return None
    return Sign(
        f"KL to the reference is {windows[-1].mean:.3g} nats per token on average; it usually "
        f"stays below {KL_WARN:g}",
        (windows[0].first, windows[-1].last),
        {"kl": windows[-1].mean},
        Level.NOTE if evidence.risen else None,
    )


def spikes(name: str, least: float) -> Callable[[Evidence], Sign | None]:
    """Look for single steps far above the others."""

    def find(evidence: Evidence) -> Sign | None:
        values = evidence.log.series(name)
        usual = median([value for _, value in values if value > 0] or [0.0])
        steps = [step for step, value in values if value > max(SPIKE * usual, least)]
        if len(values) < SOME_ROWS or len(steps) < SPIKES or evidence.risen:
            return None
        most = max(value for _, value in values)
        return Sign(
            f"{len(steps)} of {len(values)} logged steps exceed {SPIKE:g} times the median "
            f"{usual:.3g}, up to {most:.3g}",
            (steps[0], steps[-1]),
            {"count": len(steps), "highest": most},
        )

    return find


def truncation(evidence: Evidence) -> Sign | None:
    """Look for completions that reach the length limit."""
    windows = evidence.windows("truncated")
    if len(windows) < 2:
        return None
    first = windows[0].mean
    last = min(window.mean for window in windows[-2:])
    if last < TRUNCATED or last < first - DROP:
        return None
    return Sign(
        f"{windows[-1].mean:.0%} of the completions run into the length limit ({first:.0%} at "
        "first)",
        (windows[-2].first, windows[-1].last),
        {"first": first, "last": windows[-1].mean},
    )


def longer(evidence: Evidence) -> Sign | None:
    """Look for completions that have become longer while the reward has not risen."""
    windows = evidence.windows("length")
    if len(windows) < 4 or evidence.risen:
        return None
    first = windows[0]
    last = windows[-1]
    if min(w.mean - 3 * w.error for w in windows[-2:]) < LONGER * (first.mean + 3 * first.error):
        return None
    return Sign(
        f"completions have grown from {first.mean:.0f} to {last.mean:.0f} tokens, and the "
        f"{evidence.reward_name} has not risen",
        (first.first, last.last),
        {"first": first.mean, "last": last.mean},
    )


def no_rate(evidence: Evidence) -> Sign | None:
    """Look for a learning rate of 0. A schedule's last steps may have it."""
    rates = evidence.log.series("learning_rate")
    zeros = [step for step, rate in rates if rate == 0]
    idle = next((i for i, (_, rate) in enumerate(reversed(rates)) if rate > 0), len(rates))
    if len(rates) < SOME_ROWS or idle < max(5, 0.2 * len(rates)):
        return None
    return Sign(
        f"learning_rate is 0 in the last {idle} logged steps",
        (zeros[-idle], zeros[-1]),
        {"steps": idle},
    )


def _still_warming(evidence: Evidence) -> bool:
    rates = [rate for _, rate in evidence.log.series("learning_rate")]
    return len(rates) >= 3 and rates[-1] > rates[-2] > rates[0] and rates[-1] == max(rates)


def warm_up(evidence: Evidence) -> Sign | None:
    """Look for a learning rate that is still rising."""
    rates = evidence.log.series("learning_rate")
    if not _still_warming(evidence) or evidence.risen:
        return None
    return Sign(
        f"learning_rate still rises: {rates[0][1]:.3g} at step {rates[0][0]}, "
        f"{rates[-1][1]:.3g} at step {rates[-1][0]}",
        (rates[0][0], rates[-1][0]),
        {"learning_rate": rates[-1][1]},
    )


def unmoved(evidence: Evidence) -> Sign | None:
    """Look for a training in which no logged step could change a weight."""
    log = evidence.log
    equal = dict(evidence.signal("zero_std"))
    rows = ({**log.rows[step], "step": step, "zero_std": equal.get(step)} for step in log.steps)
    text = guards.unmoved(rows, log.total)
    return Sign(text, (log.steps[0], log.end), {"steps": len(log.steps)}) if text else None


def no_update(evidence: Evidence) -> Sign | None:
    """Look for steps that have a gradient but changed no weight."""
    rates, norms = (dict(evidence.log.series(name)) for name in ("learning_rate", "grad_norm"))
    sizes = [
        (step, size)
        for step, size in evidence.log.series("update_size")
        if rates.get(step) and norms.get(step)
    ]
    if len(sizes) < SOME_ROWS or any(size > 0 for _, size in sizes):
        return None
    return Sign(
        f"no weight changed in {len(sizes)} logged steps with a gradient",
        (sizes[0][0], sizes[-1][0]),
        {},
    )


def precision(evidence: Evidence) -> Sign | None:
    """Look for a learning rate too small for bfloat16 weights: its updates round to nothing."""
    rates = evidence.log.series("learning_rate")
    top = max(rate for _, rate in rates)
    need = TYPICAL_WEIGHT * BF16_HALF_STEP
    if evidence.log.weights not in ("bfloat16", "bf16") or not 0 < top < need:
        return None
    return Sign(
        f"weights are bfloat16 and the learning rate is at most {top:.2g}: AdamW moves a weight by "
        f"about that, and a weight of {TYPICAL_WEIGHT:g} only changes by {need:.1g} or more",
        (rates[0][0], rates[-1][0]),
        {"learning_rate": top, "needed": need},
    )


def no_gradient(evidence: Evidence) -> Sign | None:
    """Look for a gradient norm of 0."""
    last = evidence.log.series("grad_norm")[-2 * SOME_ROWS :]
    if len(last) < 2 * SOME_ROWS or any(norm > 0 for _, norm in last):
        return None
    return Sign(
        f"grad_norm is 0 in the last {len(last)} logged steps", (last[0][0], last[-1][0]), {}
    )


def clipped_gradient(evidence: Evidence) -> Sign | None:
    """Look for a gradient norm far above the usual limit."""
    norms = evidence.log.series("grad_norm")
    usual = median(norm for _, norm in norms)
    if usual < CLIPPED:
        return None
    share = evidence.share("grad_norm", lambda norm: norm > 1)
    return Sign(
        f"the median gradient norm is {usual:.3g}; with max_grad_norm 1, the default, "
        f"{share:.0%} of the updates are clipped",
        (norms[0][0], norms[-1][0]),
        {"median": usual, "share": share},
    )


def generation(evidence: Evidence) -> Sign | None:
    """Look for steps that spend most of their time on generation."""
    shares = [value for _, value in evidence.log.series("generation_share")] or list(
        _measured_shares(evidence.log)
    )
    if len(shares) < SOME_ROWS or (share := median(shares)) < GENERATION:
        return None
    return Sign(
        f"{share:.0%} of a step is generation",
        (evidence.log.steps[0], evidence.log.end),
        {"share": share},
    )


def _measured_shares(log: Log) -> Iterator[float]:
    steps = dict(log.series("step_time"))
    return (
        value / steps[step]
        for step, value in log.series("generation_time")
        if steps.get(step, 0) >= value > 0
    )


def loss(evidence: Evidence) -> Sign | None:
    """Look for a loss near 0."""
    values = [abs(value) for _, value in evidence.log.series("loss")]
    if len(values) < 3 or median(values) > NEAR_ZERO:
        return None
    steps = evidence.log.steps
    return Sign(
        f"the median of |loss| is {median(values):.2g}",
        (steps[0], steps[-1]),
        {"median": median(values)},
    )
