"""The findings in a training log: a table of checks, each with its sentence and advice."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from grporecipe.diagnose import _checks as checks
from grporecipe.diagnose._checks import SOME_ROWS, Level, Sign
from grporecipe.diagnose._evidence import Evidence
from grporecipe.diagnose._log import Log
from grporecipe.model import guards


@dataclass(frozen=True)
class Finding:
    """One finding: a sentence, its evidence with the range of steps, advice, and the numbers for
    scripts.
    """

    name: str
    level: Level
    text: str
    evidence: str
    advice: str
    steps: tuple[int, int]
    numbers: Mapping[str, float] = field(default_factory=dict)


class Check(NamedTuple):
    """A check: the metrics that it needs, the sentence that it reports, and the fields of a setting
    that its advice changes.
    """

    name: str
    level: Level
    needs: tuple[str, ...]
    find: Callable[[Evidence], Sign | None]
    text: str
    advice: str
    changes: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """All findings, worst first, and the checks that could not run, each with the data that it
    lacks.
    """

    log: Log
    findings: list[Finding]
    not_judged: dict[str, str]

    @property
    def healthy(self) -> bool:
        """Return whether there is no problem and no warning."""
        return all(finding.level == Level.NOTE for finding in self.findings)

    def fails(self, names: frozenset[str]) -> bool:
        """Return whether a finding has one of these names or levels, or is a collapse and these
        include ``collapse``.
        """
        own = (
            {item.name, item.level, *(["collapse"] if item.name in COLLAPSE else [])}
            for item in self.findings
        )
        return any(names & each for each in own)


def diagnose(log: Log) -> Diagnosis:
    """Apply all checks to a log."""
    evidence = Evidence(log)
    findings: dict[str, Finding] = {}
    missing: dict[str, str] = {}
    for check in CHECKS:
        lacking = [name for name in check.needs if not _has(evidence, name)]
        if "update_size" in lacking:
            # only this project's trainer logs it
            continue
        if lacking:
            missing[check.name] = ", ".join(MISSING.get(name, name) for name in lacking)
        elif sign := check.find(evidence):
            findings[check.name] = Finding(
                check.name,
                sign.level or check.level,
                check.text,
                sign.evidence,
                check.advice,
                sign.steps,
                sign.numbers,
            )
    for name, others in EXPLAINED_BY.items():
        if others & findings.keys():
            findings.pop(name, None)
    return Diagnosis(
        log,
        sorted(findings.values(), key=lambda finding: list(Level).index(finding.level)),
        missing,
    )


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
        return evidence.log.has("generation_share") or evidence.log.has(
            "generation_time", "step_time"
        )
    return bool(evidence.signal(name)) or (name == "loss" and evidence.log.has(name))


MISSING = {
    "rows": f"{SOME_ROWS} logged steps with a reward",
    "start": "an evaluation before training and three after",
    "trend": "18 logged steps with a reward, or six evaluations",
    "weights": "the type of the weights",
    "generation": "times of generation and steps",
}


P, W, N = Level.PROBLEM, Level.WARNING, Level.NOTE
# a row a check
CHECKS = (
    Check(
        "non_finite",
        P,
        ("loss",),
        checks.non_finite("loss"),
        "The loss is not a number.",
        "Go back to the last checkpoint before it. Lower the learning rate, or train in bf16 "
        "instead of fp16.",
    ),
    Check(
        "non_finite_gradient",
        P,
        (),
        checks.non_finite("grad_norm"),
        "The gradient is not a number.",
        "From the first step on, the learning rate is not the reason: train in bf16 instead of "
        "fp16, and look for completions without tokens. Later, go back to the last checkpoint "
        "before it, and lower the learning rate.",
    ),
    Check(
        "kl_blow_up",
        P,
        ("rows", "kl"),
        checks.guard(guards.kl_blow_up),
        "The policy has left its reference and gained nothing.",
        "Stop. Start again with a lower learning rate or a larger beta.",
        "learning_rate beta",
    ),
    Check(
        "entropy_collapse",
        P,
        ("rows", "entropy"),
        checks.guard(guards.entropy_collapse),
        "The entropy has collapsed.",
        "Stop. Every completion is the same. Start again with a lower learning rate, "
        "clip-higher (epsilon_high) or a KL term.",
        "learning_rate epsilon_high beta",
    ),
    Check(
        "no_variance",
        P,
        ("rows", "zero_std"),
        checks.guard(guards.no_variance),
        "No group has any variance in its rewards.",
        "There is no gradient. If the reward is at its maximum, the prompts are solved: use "
        "harder ones. If it is at its "
        "minimum, use easier prompts, more generations, or a reward with partial credit.",
        "num_generations",
    ),
    Check(
        "all_truncated",
        P,
        ("rows", "truncated"),
        checks.guard(guards.all_truncated),
        "All completions are truncated.",
        "The model repeats itself until the limit. Stop, lower the learning rate, and look at "
        "completions.",
        "learning_rate max_completion_length",
    ),
    Check(
        "reward_fallen",
        P,
        ("rows",),
        checks.guard(guards.reward_fallen),
        "The reward has collapsed.",
        "Stop, and take a checkpoint from before. Lower the learning rate or add a KL term.",
        "learning_rate beta",
    ),
    Check(
        "entropy_explosion",
        P,
        ("rows", "entropy"),
        checks.entropy_up,
        "The entropy explodes: completions become random.",
        "Lower the learning rate, or the entropy bonus if there is one. Check the sampling "
        "temperature.",
        "learning_rate temperature",
    ),
    Check(
        "learning_rate_zero",
        P,
        ("learning_rate",),
        checks.no_rate,
        "The learning rate is 0, so nothing is trained.",
        "Check the schedule and the number of steps for which it is computed.",
    ),
    Check(
        "no_gradient",
        P,
        ("grad_norm",),
        checks.no_gradient,
        "There is no gradient.",
        "Where groups have variance in their rewards (frac_reward_zero_std below 1), the trained "
        "weights get none: check that they are not frozen, that LoRA's target modules exist in the "
        "model, and that inputs require gradients under gradient checkpointing.",
    ),
    Check(
        "no_update",
        P,
        ("update_size", "learning_rate", "grad_norm"),
        checks.no_update,
        "Updates round to nothing.",
        "Keep the weights in float32 (bf16 autocast), or raise the learning rate.",
    ),
    Check(
        "nothing_moved",
        P,
        ("reward",),
        checks.unmoved,
        "Nothing has moved since the start.",
        "Stop, and look at what the evidence names. Learning rate: check the warm-up and the "
        "number of steps. Variance: drop prompts that are always or never solved. Gradient: check "
        "which weights are trained (the B of LoRA starts at zero and must not stay there). Same "
        "weights: keep them in float32.",
    ),
    Check(
        "below_start",
        P,
        ("start",),
        checks.below_start,
        "The evaluation is below its start.",
        "Training makes the model worse on held-out prompts. Lower the learning rate; compare the "
        "training reward with the evaluation's: if the first rises, the reward is being gamed.",
        "learning_rate",
    ),
    Check(
        "rate_too_high",
        W,
        ("rows", "entropy"),
        checks.rate_too_high,
        "The learning rate is too high.",
        "The policy became certain before it had learnt. Lower the learning rate 3 to 5 times, "
        "or warm it up over more steps.",
        "learning_rate warmup_steps",
    ),
    Check(
        "best_step",
        W,
        ("rows",),
        checks.best_earlier,
        "The best step was earlier.",
        "Take the checkpoint nearest to that step. For the next run: fewer steps, or a lower "
        "learning rate.",
        "learning_rate max_steps epochs",
    ),
    Check(
        "flat",
        W,
        ("trend",),
        checks.flat,
        "The reward is flat.",
        "Look at completions and their rewards: can the model earn the reward at all, and does "
        "it differ in a group? If so, "
        "raise the learning rate (3 to 10 times) or the number of prompts per step.",
        "learning_rate",
    ),
    Check(
        "falling",
        W,
        ("trend",),
        checks.falling,
        "The reward falls.",
        "Training makes the model worse. Lower the learning rate (3 to 10 times), or add a KL "
        "term.",
        "learning_rate beta",
    ),
    Check(
        "entropy_fall",
        W,
        ("rows", "entropy"),
        checks.entropy_down,
        "The entropy has nearly vanished.",
        "All completions of a prompt are soon the same, and nothing new is tried. Lower the "
        "learning rate, or use clip-higher (epsilon_high) or a KL term.",
        "learning_rate epsilon_high beta",
    ),
    Check(
        "few_groups",
        W,
        ("zero_std",),
        checks.few_groups,
        "Few groups carry signal.",
        "Most completions are generated for nothing. Raise num_generations, or filter the prompts: "
        "in verl with algorithm.filter_groups.enable=true, in EasyR1 with "
        "algorithm.online_filtering=true, in ms-swift with dynamic_sample=true. TRL has no such "
        "filter: drop prompts that are always or never solved from the data set.",
        "num_generations",
    ),
    Check(
        "kl_drift",
        W,
        ("kl",),
        checks.kl_drift,
        "The policy drifts far from its reference.",
        "Without a gain in reward this is noise: lower the learning rate or raise beta.",
        "learning_rate beta",
    ),
    Check(
        "kl_spikes",
        W,
        ("kl",),
        checks.spikes("kl", checks.KL_WARN),
        "KL has spikes.",
        "Single tokens became very unlikely. Lower the learning rate, or clip more (epsilon).",
        "learning_rate epsilon",
    ),
    Check(
        "grad_spikes",
        W,
        ("grad_norm",),
        checks.spikes("grad_norm", 1.0),
        "The gradient norm has spikes.",
        "Keep max_grad_norm at 1 or less, and lower the learning rate. Look at the batches of "
        "these steps.",
        "max_grad_norm learning_rate",
    ),
    Check(
        "truncation",
        W,
        ("truncated",),
        checks.truncation,
        "Many completions are truncated.",
        "A truncated answer earns no reward. Raise max_completion_length, or leave truncated "
        "completions out of the loss.",
        "max_completion_length mask_truncated_completions",
    ),
    Check(
        "length_growth",
        W,
        ("length", "rows"),
        checks.longer,
        "Completions grow without a gain in reward.",
        "Look at completions. Use a loss without length bias (dr_grpo, dapo), or penalise "
        "overlong completions.",
        "loss_type",
    ),
    Check(
        "precision",
        W,
        ("learning_rate", "weights"),
        checks.precision,
        "Updates are too small for the precision of the weights.",
        "Keep the weights in float32 (bf16 autocast), or train with LoRA at a higher learning "
        "rate.",
    ),
    Check(
        "warm_up",
        N,
        ("learning_rate",),
        checks.warm_up,
        "The learning rate is still in warm-up.",
        "A flat reward says nothing yet.",
    ),
    Check(
        "gradient_clipped",
        N,
        ("grad_norm",),
        checks.clipped_gradient,
        "Gradient clipping scales all updates down.",
        "This is common. The learning rate then sets the size of the updates alone.",
    ),
    Check(
        "generation_bound",
        N,
        ("generation",),
        checks.generation,
        "Most of the time is generation.",
        "Generate with vLLM or SGLang, lower max_completion_length, or do more updates per "
        "rollout.",
        "use_vllm num_iterations",
    ),
    Check(
        "loss_near_zero",
        N,
        ("loss",),
        checks.loss,
        "The loss is near 0, as it should be.",
        "The ratio of new to old policy is 1 in the first update of a rollout, and a group's "
        "advantages add up to 0. So the policy term's value is 0, its gradient is not, and only "
        "the KL term is left. Watch the reward instead.",
    ),
)
COLLAPSE = (*guards.GUARDS, "entropy_explosion")
IDLE = ("nothing_moved", "learning_rate_zero", "no_gradient", "no_update")
# a finding is not shown if one of these explains it
EXPLAINED_BY = {
    # all rewards are 0; the advice on variance would mislead
    "no_variance": {"reward_fallen"},
    "nothing_moved": {*COLLAPSE, "learning_rate_zero", "no_gradient", "no_update"},
    "flat": {*COLLAPSE, *IDLE, "below_start", "precision", "few_groups"},
    "falling": {*COLLAPSE, "below_start"},
    "below_start": {"reward_fallen"},
    "best_step": {"below_start"},
    "few_groups": {"no_variance", "reward_fallen", "nothing_moved", "rate_too_high"},
    "no_gradient": {
        "reward_fallen",
        "no_variance",
        "few_groups",
        "learning_rate_zero",
        "non_finite",
    },
    "no_update": {"learning_rate_zero"},
    "entropy_fall": {"entropy_collapse", "rate_too_high"},
    "kl_drift": {"kl_blow_up"},
    "kl_spikes": {"kl_blow_up", "kl_drift"},
    "truncation": {"all_truncated"},
    "loss_near_zero": {
        *IDLE,
        "no_variance",
        "few_groups",
        "non_finite",
        "non_finite_gradient",
        "reward_fallen",
        "rate_too_high",
    },
}
NAMES_TO_FAIL = frozenset(
    {check.name for check in CHECKS} | {"collapse"} | {level.value for level in Level}
)
