"""What becomes of a trial whose attempt ended badly: its failure's class, and by that class's policy what comes next."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grposweep.healed import is_healed, write_healed
from grposweep.launch.base import End
from grposweep.programs import is_program
from grposweep.search.judge import Verdict
from grposweep.sweep.failures import Failure, Step, classify, heal, next_step, read_evidence
from grposweep.sweep.folder import Asked, TrialFolder

AGAIN = (Step.RETRY, Step.ELSEWHERE, Step.HEAL)


@dataclass(frozen=True)
class Ruling:
    """A failed attempt's class, what to do with its trial, and the failure as result.json holds it.

    The record holds all of the ruling: a controller that dies before it notes the end leaves it to the next one.
    """

    failure: Failure
    step: Step
    record: Mapping[str, Any]


def rule_on(folder: TrialFolder, verdict: Verdict, end: End, moved: bool | None = None) -> Ruling:
    """The ruling on the last attempt; ``moved``: whether its heartbeat did, shortly before the end.

    A launcher that says ``again`` took the attempt away, which is no failure of the trial's; it counts these itself.
    """
    lines = folder.attempts()
    last: Mapping[str, Any] = next((line for line in reversed(lines) if line.get("event") == "intent"), {})
    failure = classify(read_evidence(folder.path, end, moved, last.get("logs")))
    past = [Failure(line["failure"]) for line in lines if line.get("failure") and not line.get("again")]
    record = _record(folder, end, failure)
    if end.again:
        step = Step.RETRY
    elif failure in (Failure.PREEMPTED, Failure.TIME_LIMIT):
        step = Step.FAIL  # the launcher has given it up
    else:
        step = next_step([*past, failure], verdict.experiment.cluster.requeue_limit)
        if step is Step.HEAL and not _heal(folder, verdict, failure, last.get("attempt", 0)):
            step = Step.FAIL
    taken = {"again": True} if end.again else {}
    where = {"nodes": end.nodes} if end.nodes else {}
    return Ruling(failure, step, {**record, "then": step.value, **taken, **where})


def _record(folder: TrialFolder, end: End, failure: Failure) -> dict[str, Any]:
    """What the attempt said of its own failure, or what its launcher and its last lines say.

    What the launcher knows counts more: a rank whose neighbour ran out of memory only sees a connection close.
    """
    result = folder.result or {}
    said = result.get("failure") if result.get("status") in ("failed", "retried") else None
    if said and not end.kind:
        return {**said, "class": failure.value}
    kind = end.kind or (f"signal {-end.code}" if end.code < 0 else f"exit code {end.code}")
    message = end.message or f"the attempt ended with {kind}"
    return {"kind": kind, "class": failure.value, "message": message, "last_lines": folder.last_lines()}


def _heal(folder: TrialFolder, verdict: Verdict, failure: Failure, attempt: int) -> bool:
    """Write down smaller micro-batches for the attempts to come; False where there are none that change no number."""
    changes = heal(verdict.setting, verdict.experiment.rules.ignore)
    if changes is None or is_healed(folder.path, attempt) or is_program(verdict.experiment.trainer.kind):
        return False
    write_healed(folder.path, changes, failure.words, attempt)
    return True


def write_pruned(folder: TrialFolder, asked: Asked) -> None:
    """result.json of a trial that was stopped early: all that its last attempt left, and the reason.

    A collapsed training is ``pruned`` as well, not ``failed``: its attempt ended in order, nothing is to be mended, and only
    pruned trials teach a sampler which points are bad. Its failure's class says what it was.
    """
    before = folder.result or {}
    if before.get("status") not in ("stopped", "pruned"):
        attempt = max((line["attempt"] for line in folder.attempts()), default=0)
        before = {"attempt": attempt, "objective": None, "step": folder.heartbeat().get("step", 0)}
    failure: dict[str, Any] | None = None
    if asked.guard:
        kind = Failure.NON_FINITE if asked.guard == "non_finite" else Failure.COLLAPSE
        failure = {"kind": kind.value, "class": kind.value, "message": asked.reason, "last_lines": []}
    said = {"status": "pruned", "reason": asked.reason, "guard": asked.guard or None, "failure": failure}
    folder.write_result({**{name: value for name, value in before.items() if name != "v"}, **said})


def write_end(folder: TrialFolder, attempt: int, status: str, failure: Mapping[str, Any]) -> None:
    """result.json of a failed attempt: ``failed`` for good, ``retried`` where another one follows."""
    before = folder.result or {}
    step = before.get("step", folder.heartbeat().get("step", 0))
    number = before.get("attempt", attempt)  # a job that Slurm restarted has used several
    folder.write_result(
        {"attempt": number, "status": status, "objective": None, "step": step, "failure": dict(failure)}
    )
