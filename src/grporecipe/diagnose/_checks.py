"""The checks of a training log. Each looks for one symptom and returns its values, or None."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from grporecipe.diagnose._evidence import Evidence, Window
from grporecipe.diagnose._log import Log
from grporecipe.model import guards
from grporecipe.model.guards import RewardCurve

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
# nats per token, on average: trainings of language models stay below
KL_WARN = 1.0
# times the median; the number of such steps
SPIKE, SPIKES = 20.0, 3
# share of groups, on average over the last windows: a warning, and a note
NO_VARIANCE, HALF = 0.8, 0.5
# gradient norm, against the first windows; below the usual max_grad_norm it counts for nothing
GROWTH_TIMES, GROWTH_NORM = 10.0, 1.0
# clip ratio
OFTEN_CLIPPED = 0.05
# standard errors of a window's mean
SURE = 2.0
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
HUGE = 100.0


class Level(StrEnum):
    """How bad a finding is. A note only explains: it makes the command fail only if ``--fail-on``
    names it.
    """

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"


class Sign(NamedTuple):
    """The result of a check: the range of steps, the values of the sentence in ``findings.yaml``,
    and the name of its variant there.
    """

    steps: tuple[int, int]
    values: Mapping[str, float | str]
    variant: str = ""


Finder = Callable[[Evidence], Sign | None]


def guard(check: Callable[[RewardCurve], str]) -> Finder:
    """Return a check that applies one of the sweep's guards to the log."""

    def find(evidence: Evidence) -> Sign | None:
        curve = evidence.curve
        text = check(curve)
        if not text:
            return None
        if not evidence.held_out:
            text = text.replace("held-out", "training").replace("before training", "at first")
            text = text.replace("evaluations", "tenths of the log")
        recent = evidence.stops[-min(guards.LONG, len(evidence.stops))]
        return Sign((recent, evidence.log.end), {"text": text, "reward": curve.held_out[-1]})

    return find


def non_finite(name: str) -> Finder:
    """Return a check for values of a metric that are NaN or infinite in the last steps."""

    def find(evidence: Evidence) -> Sign | None:
        values = list(evidence.log.every(name))
        last = values[-3:]
        if len(last) < 3 or any(math.isfinite(value) for _, value in last):
            return None
        bad = [step for step, value in values if not math.isfinite(value)]
        variant = "from the first" if len(bad) == len(values) else ""
        return Sign((bad[0], last[-1][0]), {"value": str(last[-1][1])}, variant)

    return find


def no_gain(evidence: Evidence, falls: bool) -> Sign | None:
    """Return the change of a reward that has fallen, or else has stayed flat. Return None if it has
    risen, or if it may still rise.
    """
    trend, scale, log = evidence.trend, evidence.scale, evidence.log
    if (
        trend is None
        or scale is None
        or evidence.risen
        or (log.total and log.end < EARLY * log.total)
        or trend.low > 0
        or max(trend.high, evidence.early_gain()) >= FLAT * scale
        or _still_warming(evidence)
    ):
        return None
    has_fallen = trend.high < 0 and trend.change < -FLAT * scale
    if has_fallen != falls:
        return None
    variant = "solved" if _is_high(evidence) else ""
    return Sign(
        (trend.first, trend.last),
        {
            "name": trend.name,
            "change": trend.change,
            "low": trend.low,
            "high": trend.high,
            "scale": scale,
        },
        variant,
    )


def _is_high(evidence: Evidence) -> bool:
    """Return whether most prompts are solved: groups have no variance, and the reward is near its
    highest value.
    """
    values = evidence.log.values("reward")
    equal = [share for _, share in evidence.signal("zero_std")]
    return (
        bool(values and equal) and fmean(equal) >= 0.5 and fmean(values) >= HIGH * max(values) > 0
    )


def below_start(evidence: Evidence) -> Sign | None:
    """Look for evaluations that are worse than the one before training."""
    curve = evidence.curve
    start = curve.begun
    now = max(curve.held_out[-guards.TWICE :])
    if start - now <= max(BELOW_ERRORS * evidence.noise, DROP * abs(start)):
        return None
    return Sign((0, evidence.log.end), {"start": start, "now": curve.held_out[-1]})


def best_earlier(evidence: Evidence) -> Sign | None:
    """Look for a reward that was much better earlier."""
    curve = evidence.curve
    if len(curve.held_out) < guards.LONG + 1:
        return None
    now = max(curve.held_out[-guards.TWICE :])
    top = curve.held_out[evidence.best]
    # batches have other prompts
    sigmas = BELOW_ERRORS if evidence.held_out else guards.FALLEN_ERRORS * math.sqrt(2)
    noise = sigmas * evidence.noise
    gain = max(abs(top), abs(top - (curve.start or 0.0)))
    large = DROP * gain if evidence.held_out else FLAT * (evidence.scale or top)
    if top - now <= max(noise, large) or (
        curve.start is not None and evidence.held_out and top <= curve.start
    ):
        return None
    steps = (evidence.stops[evidence.best], evidence.stops[-1])
    return Sign(steps, {"best_step": steps[0], "best": top, "now": curve.held_out[-1]})


def few_groups(evidence: Evidence) -> Sign | None:
    """Look for groups whose rewards are all equal."""
    last = evidence.windows("zero_std")[-3:]
    if len(last) < 3:
        return None
    share = fmean(window.mean for window in last)
    if share < HALF:
        return None
    is_note = share < NO_VARIANCE or evidence.risen or not evidence.stops
    variant = "half" if is_note else ""
    return Sign((last[0].first, last[-1].last), {"share": share}, variant)


def entropy_down(evidence: Evidence) -> Sign | None:
    """Look for entropy that has nearly vanished while the reward has not risen."""
    windows = evidence.windows("entropy")
    if len(windows) < 4 or evidence.risen:
        return None
    first = fmean(w.mean for w in windows[:2])
    last = max(w.mean for w in windows[-2:])
    if last > min(VANISHED_SHARE * first, VANISHED_NATS):
        return None
    return Sign(_ends(windows), {"first": first, "last": last})


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
    if len(fast) < guards.TWICE or not evidence.lost:
        return None
    step, value = fast[0]
    top = max(curve.held_out[evidence.best], curve.begun)
    return Sign(
        (step, evidence.log.end),
        {
            "best": top,
            "best_step": evidence.stops[evidence.best],
            "first": begun,
            "then": value,
            "by_step": step,
            "now": curve.held_out[-1],
        },
    )


def _ends(windows: Sequence[Window]) -> tuple[int, int]:
    return windows[-2].first, windows[-1].last


def grown(name: str, times: float, more: float) -> Finder:
    """Return a check for a metric that has multiplied, and is larger by at least ``more``."""

    def find(evidence: Evidence) -> Sign | None:
        windows = evidence.windows(name)
        if len(windows) < 4:
            return None
        first = fmean(window.mean for window in windows[:2])
        last = min(window.mean for window in windows[-2:])
        if min(w.mean - SURE * w.error for w in windows[-2:]) < max(times * first, first + more):
            return None
        return Sign(_ends(windows), {"first": first, "last": last})

    return find


def grad_growth(evidence: Evidence) -> Sign | None:
    """Look for a gradient norm that has multiplied, and a clip ratio that has grown with it."""
    sign = grown("grad_norm", GROWTH_TIMES, GROWTH_NORM)(evidence)
    clips = [window.mean for window in evidence.windows("clip_ratio")]
    if sign is None or not clips or clips[-1] < max(2 * clips[0], OFTEN_CLIPPED):
        return sign
    return Sign(sign.steps, {**sign.values, "clips_first": clips[0], "clips": clips[-1]}, "clipped")


def traded(evidence: Evidence) -> Sign | None:
    """Look for a reward function that has lost most of its value while another has risen."""
    values: dict[str, float | str] = {}
    since = 0
    for name in evidence.reward_functions:
        windows = evidence.windows(name)
        if len(windows) < 4:
            continue
        means = [fmean((first.mean, second.mean)) for first, second in pairwise(windows)]
        top = max(means)
        noise = 2 * SURE * max(window.error for window in windows)
        shown = name.removesuffix("/mean")
        if top > 0 and means[-1] < min(top / 2, top - noise):
            since = windows[means.index(top)].first
            values |= {"fallen": shown, "top": top, "rest": means[-1]}
        elif means[-1] > means[0] + noise:
            values |= {"risen": shown, "first": means[0], "last": means[-1]}
    if len(values) < 6:
        return None
    return Sign((since, evidence.log.end), values)


def kl_drift(evidence: Evidence) -> Sign | None:
    """Look for a KL that is high on average."""
    windows = evidence.windows("kl")[-guards.TWICE :]
    if len(windows) < guards.TWICE or min(window.mean for window in windows) < KL_WARN:
        return None
    variant = "rising" if evidence.risen else ""
    return Sign(_ends(windows), {"kl": windows[-1].mean}, variant)


def spikes(name: str, least: float) -> Finder:
    """Return a check for single steps far above the others."""

    def find(evidence: Evidence) -> Sign | None:
        values = evidence.log.values(name)
        usual = median([value for value in values if value > 0] or [0.0])
        least_spike = max(SPIKE * usual, least)
        steps = [step for step, value in evidence.log.series(name) if value > least_spike]
        if len(values) < SOME_ROWS or len(steps) < SPIKES:
            return None
        return Sign(
            (steps[0], steps[-1]),
            {"count": len(steps), "rows": len(values), "usual": usual, "highest": max(values)},
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
    return Sign(_ends(windows), {"first": first, "last": windows[-1].mean})


def no_rate(evidence: Evidence) -> Sign | None:
    """Look for a learning rate of 0. A schedule's last steps may have it."""
    rates = evidence.log.series("learning_rate")
    idle = next((i for i, (_, rate) in enumerate(reversed(rates)) if rate > 0), len(rates))
    if len(rates) < SOME_ROWS or idle < max(5, 0.2 * len(rates)):
        return None
    return Sign((rates[-idle][0], rates[-1][0]), {"count": idle})


def _still_warming(evidence: Evidence) -> bool:
    rates = evidence.log.values("learning_rate")
    return len(rates) >= 3 and rates[-1] > rates[-2] > rates[0] and rates[-1] == max(rates)


def warm_up(evidence: Evidence) -> Sign | None:
    """Look for a learning rate that is still rising."""
    if not _still_warming(evidence):
        return None
    rates = evidence.log.series("learning_rate")
    steps = (rates[0][0], rates[-1][0])
    return Sign(steps, {"first": rates[0][1], "learning_rate": rates[-1][1]})


def unmoved(evidence: Evidence) -> Sign | None:
    """Look for a training in which no logged step could change a weight."""
    log = evidence.log
    equal = dict(evidence.signal("zero_std"))
    rows = ({**log.rows[step], "step": step, "zero_std": equal.get(step)} for step in log.steps)
    text = guards.unmoved(rows, log.total)
    if text:
        return Sign(log.range, {"text": text, "count": len(log.steps)})
    return None


def no_update(evidence: Evidence) -> Sign | None:
    """Look for steps that have a gradient but changed no weight."""
    rates = dict(evidence.log.series("learning_rate"))
    norms = dict(evidence.log.series("grad_norm"))
    sizes = [
        (step, size)
        for step, size in evidence.log.series("update_size")
        if rates.get(step) and norms.get(step)
    ]
    if len(sizes) < SOME_ROWS or any(size > 0 for _, size in sizes):
        return None
    return Sign((sizes[0][0], sizes[-1][0]), {"count": len(sizes)})


def precision(evidence: Evidence) -> Sign | None:
    """Look for a learning rate too small for bfloat16 weights: its updates round to nothing."""
    top = max(evidence.log.values("learning_rate"))
    need = TYPICAL_WEIGHT * BF16_HALF_STEP
    if evidence.log.weights not in ("bfloat16", "bf16") or not 0 < top < need:
        return None
    return Sign(
        evidence.log.range, {"learning_rate": top, "weight": TYPICAL_WEIGHT, "needed": need}
    )


def no_gradient(evidence: Evidence) -> Sign | None:
    """Look for a gradient norm of 0 that equal rewards do not explain."""
    last = evidence.log.series("grad_norm")[-2 * SOME_ROWS :]
    if len(last) < 2 * SOME_ROWS or any(norm > 0 for _, norm in last):
        return None
    equal = dict(evidence.signal("zero_std"))
    shares = [equal[step] for step, _ in last if step in equal]
    if shares and min(shares) >= guards.ALL:
        return None
    variant = "frozen" if shares else ""
    return Sign((last[0][0], last[-1][0]), {"count": len(last)}, variant)


def clipped_gradient(evidence: Evidence) -> Sign | None:
    """Look for a gradient norm far above the usual limit."""
    norms = evidence.log.values("grad_norm")
    usual = median(norms)
    if usual < CLIPPED:
        return None
    share = sum(norm > 1 for norm in norms) / len(norms)
    variant = "huge" if usual > HUGE else ""
    return Sign(evidence.log.range, {"median": usual, "share": share}, variant)


def generation(evidence: Evidence) -> Sign | None:
    """Look for steps that spend most of their time on generation."""
    shares = evidence.log.values("generation_share") or list(_measured_shares(evidence.log))
    share = median(shares or [0.0])
    if len(shares) < SOME_ROWS or share < GENERATION:
        return None
    return Sign(evidence.log.range, {"share": share})


def _measured_shares(log: Log) -> Iterator[float]:
    steps = dict(log.series("step_time"))
    return (
        value / steps[step]
        for step, value in log.series("generation_time")
        if steps.get(step, 0) >= value > 0
    )


def loss(evidence: Evidence) -> Sign | None:
    """Look for a loss near 0."""
    values = list(map(abs, evidence.log.values("loss")))
    usual = median(values or [0.0])
    if len(values) < 3 or usual > NEAR_ZERO:
        return None
    return Sign(evidence.log.range, {"median": usual})


def never_clipped(evidence: Evidence) -> Sign | None:
    """Look for a clip ratio that is always 0."""
    ratios = evidence.log.values("clip_ratio")
    if len(ratios) < SOME_ROWS or any(ratios):
        return None
    return Sign(evidence.log.range, {"count": len(ratios)})


FINDERS: dict[str, Finder] = {
    **{name: guard(find) for name, find in guards.GUARDS.items()},
    "non_finite": non_finite("loss"),
    "non_finite_gradient": non_finite("grad_norm"),
    "entropy_explosion": grown("entropy", EXPLOSION_TIMES, EXPLOSION_NATS),
    "learning_rate_zero": no_rate,
    "no_gradient": no_gradient,
    "no_update": no_update,
    "nothing_moved": unmoved,
    "below_start": below_start,
    "rate_too_high": rate_too_high,
    "best_step": best_earlier,
    "flat": partial(no_gain, falls=False),
    "falling": partial(no_gain, falls=True),
    "reward_traded": traded,
    "entropy_fall": entropy_down,
    "few_groups": few_groups,
    "kl_drift": kl_drift,
    "kl_spikes": spikes("kl", KL_WARN),
    "grad_growth": grad_growth,
    "grad_spikes": spikes("grad_norm", 1.0),
    "truncation": truncation,
    "length_growth": grown("length", LONGER, 0.0),
    "precision": precision,
    "warm_up": warm_up,
    "gradient_clipped": clipped_gradient,
    "generation_bound": generation,
    "never_clipped": never_clipped,
    "loss_near_zero": loss,
}
