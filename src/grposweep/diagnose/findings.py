"""What a training log says about the training: a table of checks, each with its evidence and what to do."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean, median
from typing import Any, NamedTuple

from grposweep.diagnose.evidence import Evidence
from grposweep.diagnose.log import Log
from grposweep.search.early_stopping import guards

# Each threshold is outside what healthy trainings show; those that the sweep's guards have are taken from there.
SOME_ROWS = 10  # logged steps, of which a check needs as many
EARLY = 0.3  # share of a training before which a flat reward says nothing
FLAT = 0.25  # of a group's standard deviation: a smaller change of the whole training is none
HIGH = 0.8  # of the highest mean reward of a step: there is little left to gain
DROP = 0.1  # of what the reward is, or was gained, on top of noise
BELOW_ERRORS = 3.0 * math.sqrt(2)  # of the difference of two evaluations
EXPLOSION_TIMES, EXPLOSION_NATS = 3.0, 1.0  # entropy, against the first windows
KL_WARN = 1.0  # nats a token, on average: trainings of language models stay below
SPIKE, SPIKES = 20.0, 3  # times the median; so many steps
NO_VARIANCE = 0.8  # share of groups, on average over the last windows
TRUNCATED = guards.SOME
LONGER = 1.5  # times the first completions
BF16_HALF_STEP = 2.0**-9  # of a weight: a smaller update rounds to nothing (8 bits of significand)
TYPICAL_WEIGHT = 0.02  # the usual initialisation's standard deviation
GENERATION = 0.85  # of a step
NEAR_ZERO = 0.01
CLIPPED = 10.0  # median gradient norm, ten times the usual max_grad_norm


class Level(StrEnum):
    """How bad a finding is. A note explains and never makes a command fail unless it is named."""

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """What was found: a sentence, its evidence with the range of steps, what to do, and the numbers for scripts."""

    name: str
    level: Level
    text: str
    evidence: str
    advice: str
    steps: tuple[int, int]
    numbers: Mapping[str, float] = field(default_factory=dict)


class Said(NamedTuple):
    """What a check answers: its evidence in words, the range of steps, and the numbers; a level if not the usual one."""

    evidence: str
    steps: tuple[int, int]
    numbers: Mapping[str, float]
    level: Level | None = None


class Check(NamedTuple):
    """A check: what a log needs for it, and what is said if it finds something."""

    name: str
    level: Level
    needs: tuple[str, ...]
    find: Callable[[Evidence], Said | None]
    text: str
    advice: str


@dataclass(frozen=True)
class Diagnosis:
    """All findings, the worst first, and the checks that the log has no data for, with what is missing."""

    log: Log
    findings: list[Finding]
    not_judged: dict[str, str]

    @property
    def healthy(self) -> bool:
        """Return whether there is no problem and no warning."""
        return all(finding.level == Level.NOTE for finding in self.findings)

    def fails(self, names: frozenset[str]) -> bool:
        """Return whether a finding is one of these names, groups or levels."""
        return any(names & {found.name, found.level, *GROUPS.get(found.name, ())} for found in self.findings)


def diagnose(log: Log) -> Diagnosis:
    """Apply all checks to a log."""
    evidence = Evidence(log)
    found: dict[str, Finding] = {}
    missing: dict[str, str] = {}
    for check in CHECKS:
        lacking = [name for name in check.needs if not _has(evidence, name)]
        if lacking:
            missing[check.name] = ", ".join(MISSING.get(name, name) for name in lacking)
        elif said := check.find(evidence):
            found[check.name] = Finding(
                check.name, said.level or check.level, check.text, said.evidence, check.advice, said.steps, said.numbers
            )
    for name, others in EXPLAINED_BY.items():
        if others & found.keys():
            found.pop(name, None)
    return Diagnosis(log, sorted(found.values(), key=lambda finding: list(Level).index(finding.level)), missing)


def _has(evidence: Evidence, name: str) -> bool:
    if name == "rows":
        return evidence.curve is not None
    if name == "start":
        return evidence.start is not None and evidence.held_out
    if name == "trend":
        return evidence.trend is not None
    if name == "weights":
        return evidence.log.weights is not None
    if name == "generation":
        return evidence.log.has("generation_share") or evidence.log.has("generation_time", "step_time")
    return bool(evidence.signal(name)) or (name == "loss" and evidence.log.has(name))


MISSING = {
    "rows": f"{SOME_ROWS} logged steps with a reward",
    "start": "an evaluation before training and three after",
    "trend": "18 logged steps with a reward, or six evaluations",
    "weights": "the type of the weights",
    "generation": "times of generation and steps",
}


def _guard(guard: Callable[[Any], str]) -> Callable[[Evidence], Said | None]:
    """Ask one of the sweep's guards."""

    def find(evidence: Evidence) -> Said | None:
        curve = evidence.curve
        text = guard(curve) if curve is not None else ""
        if not text or curve is None:
            return None
        if not evidence.held_out:
            words = (("held-out", "training"), ("before training", "at first"), ("evaluations", "tenths of the log"))
            for old, new in words:
                text = text.replace(old, new)
        recent = evidence.stops[-min(guards.LONG, len(evidence.stops))]
        return Said(text, (recent, evidence.log.end), {"reward": curve.held_out[-1]})

    return find


def _non_finite(evidence: Evidence) -> Said | None:
    for name in ("loss", "grad_norm"):
        last = list(evidence.log.every(name))[-3:]
        if len(last) == 3 and not any(math.isfinite(value) for _, value in last):
            bad = [step for step, value in evidence.log.every(name) if not math.isfinite(value)]
            return Said(f"{name} is {last[-1][1]} in the last {len(last)} logged steps", (bad[0], last[-1][0]), {})
    return None


def _flat(evidence: Evidence) -> Said | None:
    trend, scale, log = evidence.trend, evidence.scale, evidence.log
    if trend is None or scale is None or evidence.risen or (log.total and log.end < EARLY * log.total):
        return None
    if trend.low > 0 or max(trend.high, evidence.early_gain()) >= FLAT * scale or _still_warming(evidence):
        return None
    words = "has fallen" if trend.high < 0 and trend.change < -FLAT * scale else "has not risen"
    return Said(
        f"the {trend.name} {words}: {trend.change:+.3g} from step {trend.first} to {trend.last} "
        f"(95 % interval {trend.low:+.3g} to {trend.high:+.3g}; rewards of a group differ by {scale:.2g})",
        (trend.first, trend.last),
        {"change": trend.change, "low": trend.low, "high": trend.high},
        Level.NOTE if _is_high(evidence) else None,
    )


def _is_high(evidence: Evidence) -> bool:
    """Return whether most prompts are solved: groups without variance, at a reward near the highest that was seen."""
    values = [value for _, value in evidence.log.series("reward")]
    equal = [share for _, share in evidence.signal("zero_std")]
    return bool(values and equal) and fmean(equal) >= 0.5 and fmean(values) >= HIGH * max(values) > 0


def _below_start(evidence: Evidence) -> Said | None:
    curve = evidence.curve
    if curve is None or curve.start is None or len(curve.held_out) < guards.TWICE:
        return None
    now = max(curve.held_out[-guards.TWICE :])
    noise = BELOW_ERRORS * max((error for error in curve.errors if error), default=0.0)
    if curve.start - now <= max(noise, DROP * abs(curve.start)):
        return None
    return Said(
        f"held-out reward was {curve.start:.4g} before training and is {curve.held_out[-1]:.4g} now",
        (0, evidence.log.end),
        {"start": curve.start, "now": curve.held_out[-1]},
    )


def _best_earlier(evidence: Evidence) -> Said | None:
    curve = evidence.curve
    if curve is None or len(curve.held_out) < guards.LONG + 1:
        return None
    best = max(range(len(curve.held_out)), key=curve.held_out.__getitem__)
    now, top = max(curve.held_out[-guards.TWICE :]), curve.held_out[best]
    sigmas = BELOW_ERRORS if evidence.held_out else guards.FALLEN_ERRORS * math.sqrt(2)  # batches have other prompts
    noise = sigmas * max((error for error in curve.errors if error), default=0.0)
    large = (
        DROP * max(abs(top), abs(top - (curve.start or 0.0))) if evidence.held_out else FLAT * (evidence.scale or top)
    )
    if top - now <= max(noise, large) or (curve.start is not None and evidence.held_out and top <= curve.start):
        return None
    step = evidence.stops[best]
    return Said(
        f"{evidence.reward_name} was best at step {step} ({top:.4g}) and is {curve.held_out[-1]:.4g} at {evidence.stops[-1]}",
        (step, evidence.stops[-1]),
        {"best_step": step, "best": top, "now": curve.held_out[-1]},
    )


def _few_groups(evidence: Evidence) -> Said | None:
    last = evidence.windows("zero_std")[-3:]
    if len(last) < 3 or (share := fmean(window.mean for window in last)) < NO_VARIANCE:
        return None
    level = Level.NOTE if evidence.risen else None
    return Said(
        f"{share:.0%} of the groups had no variance in their rewards", (last[0].first, last[-1].last),
        {"share": share}, level,
    )  # fmt: skip


def _entropy_up(evidence: Evidence) -> Said | None:
    windows = evidence.windows("entropy")
    if len(windows) < 4 or evidence.risen:
        return None
    first, last = fmean(w.mean for w in windows[:2]), min(w.mean for w in windows[-2:])
    if last < EXPLOSION_TIMES * first or last < first + EXPLOSION_NATS:
        return None
    return Said(
        f"entropy has risen from {first:.3g} to {last:.3g} nats a token, and the {evidence.reward_name} has not risen",
        (windows[-2].first, windows[-1].last),
        {"first": first, "last": last},
    )


def _kl_drift(evidence: Evidence) -> Said | None:
    windows = evidence.windows("kl")[-guards.TWICE :]
    if len(windows) < guards.TWICE or min(window.mean for window in windows) < KL_WARN:
        return None
    return Said(
        f"KL to the reference is {windows[-1].mean:.3g} nats a token on average; it usually stays below {KL_WARN:g}",
        (windows[0].first, windows[-1].last),
        {"kl": windows[-1].mean},
        Level.NOTE if evidence.risen else None,
    )


def _spikes(name: str, least: float) -> Callable[[Evidence], Said | None]:
    """Look for single steps far above the others."""

    def find(evidence: Evidence) -> Said | None:
        values = evidence.log.series(name)
        usual = median([value for _, value in values if value > 0] or [0.0])
        steps = [step for step, value in values if value > max(SPIKE * usual, least)]
        if len(values) < SOME_ROWS or len(steps) < SPIKES or evidence.risen:
            return None
        most = max(value for _, value in values)
        return Said(
            f"{len(steps)} of {len(values)} logged steps exceed {SPIKE:g} times the median {usual:.3g}, up to {most:.3g}",
            (steps[0], steps[-1]),
            {"count": len(steps), "highest": most},
        )

    return find


def _truncation(evidence: Evidence) -> Said | None:
    windows = evidence.windows("truncated")
    if len(windows) < 2:
        return None
    first, last = windows[0].mean, min(window.mean for window in windows[-2:])
    if last < TRUNCATED or last < first - DROP:
        return None
    return Said(
        f"{windows[-1].mean:.0%} of the completions run into the length limit ({first:.0%} at first)",
        (windows[-2].first, windows[-1].last),
        {"first": first, "last": windows[-1].mean},
    )


def _longer(evidence: Evidence) -> Said | None:
    windows = evidence.windows("length")
    if len(windows) < 4 or evidence.risen:
        return None
    first, last = windows[0], windows[-1]
    if min(w.mean - 3 * w.error for w in windows[-2:]) < LONGER * (first.mean + 3 * first.error):
        return None
    return Said(
        f"completions have grown from {first.mean:.0f} to {last.mean:.0f} tokens, and the {evidence.reward_name} has not risen",
        (first.first, last.last),
        {"first": first.mean, "last": last.mean},
    )


def _no_rate(evidence: Evidence) -> Said | None:
    rates = evidence.log.series("learning_rate")
    zeros = [step for step, rate in rates if rate == 0]
    idle = next((i for i, (_, rate) in enumerate(reversed(rates)) if rate > 0), len(rates))
    if len(rates) < SOME_ROWS or idle < max(5, 0.2 * len(rates)):
        return None
    return Said(f"learning_rate is 0 in the last {idle} logged steps", (zeros[-idle], zeros[-1]), {"steps": idle})


def _still_warming(evidence: Evidence) -> bool:
    rates = [rate for _, rate in evidence.log.series("learning_rate")]
    return len(rates) >= 3 and rates[-1] > rates[-2] > rates[0] and rates[-1] == max(rates)


def _warm_up(evidence: Evidence) -> Said | None:
    rates = evidence.log.series("learning_rate")
    if not _still_warming(evidence) or evidence.risen:
        return None
    return Said(
        f"learning_rate still rises: {rates[0][1]:.3g} at step {rates[0][0]}, {rates[-1][1]:.3g} at step {rates[-1][0]}",
        (rates[0][0], rates[-1][0]),
        {"learning_rate": rates[-1][1]},
    )


def _no_update(evidence: Evidence) -> Said | None:
    rates, norms = (dict(evidence.log.series(name)) for name in ("learning_rate", "grad_norm"))
    sizes = [(step, size) for step, size in evidence.log.series("update_size") if rates.get(step) and norms.get(step)]
    if len(sizes) < SOME_ROWS or any(size > 0 for _, size in sizes):
        return None
    return Said(f"no weight changed in {len(sizes)} logged steps with a gradient", (sizes[0][0], sizes[-1][0]), {})


def _precision(evidence: Evidence) -> Said | None:
    rates = evidence.log.series("learning_rate")
    top = max(rate for _, rate in rates)
    need = TYPICAL_WEIGHT * BF16_HALF_STEP
    if evidence.log.weights not in ("bfloat16", "bf16") or not 0 < top < need:
        return None
    return Said(
        f"weights are bfloat16 and the learning rate is at most {top:.2g}: AdamW moves a weight by about that, and a weight of "
        f"{TYPICAL_WEIGHT:g} only changes by {need:.1g} or more",
        (rates[0][0], rates[-1][0]),
        {"learning_rate": top, "needed": need},
    )


def _no_gradient(evidence: Evidence) -> Said | None:
    last = evidence.log.series("grad_norm")[-2 * SOME_ROWS :]
    if len(last) < 2 * SOME_ROWS or any(norm > 0 for _, norm in last):
        return None
    return Said(f"grad_norm is 0 in the last {len(last)} logged steps", (last[0][0], last[-1][0]), {})


def _clipped_gradient(evidence: Evidence) -> Said | None:
    norms = evidence.log.series("grad_norm")
    usual = median(norm for _, norm in norms)
    if usual < CLIPPED:
        return None
    share = evidence.share("grad_norm", lambda norm: norm > 1)
    return Said(
        f"the median gradient norm is {usual:.3g}; with max_grad_norm 1, the default, {share:.0%} of the updates are clipped",
        (norms[0][0], norms[-1][0]),
        {"median": usual, "share": share},
    )


def _generation(evidence: Evidence) -> Said | None:
    shares = [value for _, value in evidence.log.series("generation_share")] or list(_measured_shares(evidence.log))
    if len(shares) < SOME_ROWS or (share := median(shares)) < GENERATION:
        return None
    return Said(f"{share:.0%} of a step is generation", (evidence.log.steps[0], evidence.log.end), {"share": share})


def _measured_shares(log: Log) -> Iterator[float]:
    steps = dict(log.series("step_time"))
    return (value / steps[step] for step, value in log.series("generation_time") if steps.get(step, 0) >= value > 0)


def _loss(evidence: Evidence) -> Said | None:
    values = [abs(value) for _, value in evidence.log.series("loss")]
    if len(values) < 3 or median(values) > NEAR_ZERO:
        return None
    steps = evidence.log.steps
    return Said(f"the median of |loss| is {median(values):.2g}", (steps[0], steps[-1]), {"median": median(values)})


P, W, N = Level.PROBLEM, Level.WARNING, Level.NOTE
CHECKS = (
    Check("non_finite", P, ("loss",), _non_finite, "The loss is not a number.",
          "Go back to the last checkpoint before it. Lower the learning rate, or train in bf16 instead of fp16."),
    Check("kl_blow_up", P, ("rows", "kl"), _guard(guards.kl_blow_up), "The policy has left its reference and gained nothing.",
          "Stop. Start again with a lower learning rate or a larger beta."),
    Check("entropy_collapse", P, ("rows", "entropy"), _guard(guards.entropy_collapse), "The entropy has collapsed.",
          "Stop. Every completion is the same. Start again with a lower learning rate, clip-higher (epsilon_high) or a KL term."),
    Check("no_variance", P, ("rows", "zero_std"), _guard(guards.no_variance), "No group has any variance in its rewards.",
          "There is no gradient. If the reward is at its maximum, the prompts are solved: use harder ones. If it is at its "
          "minimum, use easier prompts, more generations, or a reward with partial credit."),
    Check("all_truncated", P, ("rows", "truncated"), _guard(guards.all_truncated), "All completions have come to be truncated.",
          "The model repeats without end. Stop, lower the learning rate, and look at completions."),
    Check("reward_fallen", P, ("rows",), _guard(guards.reward_fallen), "The reward has collapsed.",
          "Stop, and take a checkpoint from before. Lower the learning rate or add a KL term."),
    Check("entropy_explosion", P, ("rows", "entropy"), _entropy_up, "The entropy explodes: completions become random.",
          "Lower the learning rate, or the entropy bonus if there is one. Check the sampling temperature."),
    Check("learning_rate_zero", P, ("learning_rate",), _no_rate, "The learning rate is 0, so nothing is trained.",
          "Check the schedule and the number of steps that it was made for."),
    Check("no_gradient", P, ("grad_norm",), _no_gradient, "There is no gradient.",
          "Usually no group has variance in its rewards: see frac_reward_zero_std. Otherwise check which weights are trained."),
    Check("no_update", P, ("update_size", "learning_rate", "grad_norm"), _no_update, "Updates round to nothing.",
          "Keep the weights in float32 (bf16 autocast), or raise the learning rate."),
    Check("below_start", P, ("start",), _below_start, "The evaluation is below its start.",
          "Training makes the model worse on held-out prompts. Lower the learning rate; compare the training reward with the "
          "evaluation's: if the first rises, the reward is being gamed."),
    Check("best_step", W, ("rows",), _best_earlier, "The best step was earlier.",
          "Take the checkpoint nearest to that step. For the next run: fewer steps, or a lower learning rate."),
    Check("flat", W, ("trend",), _flat, "The reward is flat.",
          "Look at completions and their rewards: can the model earn the reward at all, and does it differ in a group? If so, "
          "raise the learning rate (3 to 10 times) or the number of prompts a step."),
    Check("few_groups", W, ("zero_std",), _few_groups, "Few groups carry signal.",
          "Most completions are generated for nothing. Drop prompts that are always or never solved, or raise num_generations."),
    Check("kl_drift", W, ("kl",), _kl_drift, "The policy drifts far from its reference.",
          "Without a gain in reward this is noise: lower the learning rate or raise beta."),
    Check("kl_spikes", W, ("kl",), _spikes("kl", KL_WARN), "KL has spikes.",
          "Single tokens became very unlikely. Lower the learning rate, or clip more (epsilon)."),
    Check("grad_spikes", W, ("grad_norm",), _spikes("grad_norm", 1.0), "The gradient norm has spikes.",
          "Keep max_grad_norm at 1 or less, and lower the learning rate. Look at the batches of these steps."),
    Check("truncation", W, ("truncated",), _truncation, "Many completions are truncated.",
          "A truncated answer earns no reward. Raise max_completion_length, or leave truncated completions out of the loss."),
    Check("length_growth", W, ("length", "rows"), _longer, "Completions grow without a gain in reward.",
          "Look at completions. Use a loss without length bias (dr_grpo, dapo), or penalise overlong completions."),
    Check("precision", W, ("learning_rate", "weights"), _precision, "Updates are too small for the precision of the weights.",
          "Keep the weights in float32 (bf16 autocast), or train with LoRA at a higher learning rate."),
    Check("warm_up", N, ("learning_rate",), _warm_up, "The learning rate is still in warm-up.",
          "A flat reward says nothing yet."),
    Check("gradient_clipped", N, ("grad_norm",), _clipped_gradient, "Gradient clipping scales all updates down.",
          "This is common. The learning rate then sets the size of the updates alone."),
    Check("generation_bound", N, ("generation",), _generation, "Most of the time is generation.",
          "Generate with vLLM or SGLang, lower max_completion_length, or do more updates a rollout."),
    Check("loss_near_zero", N, ("loss",), _loss, "The loss is near 0, as it should be.",
          "With one update a rollout, the ratio of new to old policy is 1 and the advantages of a group add up to 0. So the "
          "policy term's value is 0, its gradient is not, and only the KL term is left. Watch the reward instead."),
)  # fmt: skip  # a row a check
COLLAPSE = (
    "non_finite",
    "kl_blow_up",
    "entropy_collapse",
    "entropy_explosion",
    "no_variance",
    "all_truncated",
    "reward_fallen",
)
GROUPS: Mapping[str, tuple[str, ...]] = dict.fromkeys(COLLAPSE, ("collapse",))
EXPLAINED_BY = {  # a finding that another one explains is not shown
    "no_variance": {"reward_fallen"},  # all rewards are 0: its own advice would mislead
    "flat": {*COLLAPSE, "learning_rate_zero", "no_gradient", "no_update", "below_start", "precision", "few_groups"},
    "below_start": {"reward_fallen"},
    "best_step": {"below_start"},
    "few_groups": {"no_variance", "reward_fallen"},
    "no_gradient": {"reward_fallen", "no_variance", "few_groups", "learning_rate_zero", "non_finite"},
    "no_update": {"learning_rate_zero"},
    "kl_drift": {"kl_blow_up"},
    "kl_spikes": {"kl_blow_up", "kl_drift"},
    "truncation": {"all_truncated"},
    "loss_near_zero": {"no_gradient", "no_variance", "few_groups", "non_finite", "learning_rate_zero", "reward_fallen"},
}
NAMES_TO_FAIL = frozenset({check.name for check in CHECKS} | {"collapse"} | {level.value for level in Level})
