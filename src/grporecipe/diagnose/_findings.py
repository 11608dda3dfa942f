"""The findings in a training log; ``findings.yaml`` has the sentence and the advice of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

from grporecipe.diagnose._checks import FINDERS, SOME_ROWS, Level, Sign
from grporecipe.diagnose._evidence import Evidence
from grporecipe.diagnose._log import Log
from grporecipe.files import Config, read_own_yaml


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
    numbers: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Check:
    """A row of ``findings.yaml``, which explains the fields."""

    name: str
    level: str
    needs: tuple[str, ...]
    text: str
    evidence: str
    advice: str
    variants: Config = field(default_factory=dict)
    unless: Literal["", "risen", "kept"] = ""
    changes: str = ""
    explained_by: frozenset[str] = frozenset()
    collapse: bool = False


@cache
def load_checks() -> tuple[Check, ...]:
    """Return the checks, in the order of the file."""
    return tuple(
        Check(name=name, **row) for name, row in read_own_yaml(__file__, "findings.yaml").items()
    )


def collapses() -> set[str]:
    """Return the names of the findings that mean a lost training."""
    return {check.name for check in load_checks() if check.collapse}


def names_to_fail() -> set[str]:
    """Return what ``--fail-on`` takes."""
    return {check.name for check in load_checks()} | {"collapse", *Level}


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
        wanted = names | collapses() if "collapse" in names else names
        return any({finding.name, finding.level} & wanted for finding in self.findings)


def diagnose(log: Log) -> Diagnosis:
    """Apply all checks to a log."""
    evidence = Evidence(log)
    findings: dict[str, Finding] = {}
    missing: dict[str, str] = {}
    for check in load_checks():
        lacking = [name for name in check.needs if not _has(evidence, name)]
        if any(name == "update_size" or log.has(name) for name in lacking):
            # only this project's trainer logs update_size; others may be NaN throughout
            continue
        if lacking:
            missing[check.name] = ", ".join(MISSING.get(name, name) for name in lacking)
        elif not _is_excused(check, evidence):
            sign = FINDERS[check.name](evidence)
            if sign is not None:
                findings[check.name] = _describe(check, sign, evidence)
    _leave_out(findings)
    ordered = sorted(findings.values(), key=lambda finding: LEVELS.index(finding.level))
    return Diagnosis(log, ordered, missing)


def _describe(check: Check, sign: Sign, evidence: Evidence) -> Finding:
    row = replace(check, **check.variants.get(sign.variant, {}))
    return Finding(
        check.name,
        Level(row.level),
        row.text,
        row.evidence.format(log=evidence, steps=sign.steps, **sign.values),
        row.advice,
        sign.steps,
        {name: value for name, value in sign.values.items() if not isinstance(value, str)},
    )


def _leave_out(findings: dict[str, Finding]) -> None:
    """Drop what another finding of its level or worse explains, and what began when the weights
    were NaN.
    """
    broken = [findings[name].steps[0] for name in NOT_A_NUMBER if name in findings]
    for check in load_checks():
        if check.name not in findings:
            continue
        finding = findings[check.name]
        worse = LEVELS[: LEVELS.index(finding.level) + 1]
        causes = {other.name for other in findings.values() if other.level in worse}
        if causes & collapses():
            causes.add("collapse")
        begun_after = bool(broken) and finding.steps[0] >= min(broken)
        if causes & set(check.explained_by) or (begun_after and check.name not in NOT_A_NUMBER):
            del findings[check.name]


LEVELS = list(Level)
NOT_A_NUMBER = ("non_finite", "non_finite_gradient")


def _is_excused(check: Check, evidence: Evidence) -> bool:
    if check.unless == "risen":
        return evidence.risen
    return check.unless == "kept" and not evidence.lost


def _has(evidence: Evidence, name: str) -> bool:
    log = evidence.log
    if name == "rows":
        return bool(evidence.stops)
    if name == "start":
        return evidence.start is not None and evidence.held_out
    if name == "trend":
        return evidence.trend is not None
    if name == "weights":
        return log.weights is not None
    if name == "nats":
        return not log.kl_is_scaled
    if name == "generation":
        return log.has("generation_share") or log.has("generation_time", "step_time")
    return bool(evidence.signal(name)) or (name == "loss" and log.has(name))


MISSING = {
    "rows": f"{SOME_ROWS} logged steps with a reward",
    "start": "an evaluation before training and three after",
    "trend": "18 logged steps with a reward, or six evaluations",
    "weights": "the type of the weights",
    "nats": "verl's release and batch sizes, because actor/kl_loss of 0.6 and 0.7 is not in nats",
    "generation": "times of generation and steps",
}
