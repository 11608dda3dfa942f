"""A sweep on disk: which file is where, and what a trial's files say about it (the layout is a contract)."""

import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grposweep.errors import UserError
from grposweep.files import append_line, as_number, read_json, read_lines, write_json, yaml_loader
from grposweep.redaction import redact
from grposweep.storage.exit_code import ExitCode
from grposweep.storage.runs import read_runs


@dataclass(frozen=True)
class OpenAttempt:
    """An attempt that was announced and has not been seen to end; no ``job_id``: its controller died submitting it."""

    number: int
    job_id: str | None
    time: float


@dataclass(frozen=True)
class TrialRecord:
    """A trial as the study holds it: its point and the study's attributes of it; and a hash of its ``config.yaml``."""

    point: dict[str, Any]
    attributes: dict[str, Any]
    config_sha256: str = ""


@dataclass(frozen=True)
class Asked:
    """What a controller has asked an attempt to do at its next rollout boundary; ``guard`` names the one that asked."""

    action: str = "run"
    reason: str = ""
    guard: str = ""

    @property
    def is_last(self) -> bool:
        """Whether it was decided for the trial, and not for this attempt only."""
        return self.action in ("pause", "prune")


def worth(result: Mapping[str, Any]) -> float | None:
    """The objective in a finished trial's result.json; None where it is not finished, or that is no number."""
    value = as_number(result.get("objective")) if result.get("status") == "finished" else None
    return value if value is not None and math.isfinite(value) else None


def extra_objectives(result: Mapping[str, Any], names: Iterable[str]) -> tuple[float, ...] | None:
    """These objectives beside the first in a finished trial's result.json; None where one is missing."""
    said = result.get("further")
    values = [as_number(said.get(name)) if isinstance(said, dict) else None for name in names]
    found = tuple(value for value in values if value is not None and math.isfinite(value))
    return found if len(found) == len(values) else None


@dataclass(frozen=True)
class TrialFolder:
    """One trial's folder: ``trials/0007-3f9a1c``, its number and the head of its experiment id."""

    path: Path

    @property
    def number(self) -> int:
        """The trial's number in the study."""
        return int(self.path.name.split("-")[0])

    @property
    def head(self) -> str:
        """The head of its experiment id."""
        return self.path.name.split("-", 1)[1]

    @property
    def result(self) -> dict[str, Any] | None:
        """What the last attempt reported; None while there is nothing final."""
        return read_json(self.path / "result.json")

    @property
    def is_done(self) -> bool:
        """Whether the trial has ended for good; a stopped one goes on when the sweep does."""
        return (self.result or {}).get("status") in ("finished", "failed", "pruned") and not self.awaits_ruling

    @property
    def is_pruned(self) -> bool:
        """Whether the trial was stopped early, for good."""
        return (self.result or {}).get("status") == "pruned"

    @property
    def awaits_ruling(self) -> bool:
        """Whether its last attempt failed while no controller watched: nobody has classified that failure yet."""
        result = self.result or {}
        return result.get("status") == "failed" and "class" not in (result.get("failure") or {})

    @property
    def has_ruling(self) -> bool:
        """Whether the last result is what a controller made of it, or needs no ruling: its attempt is over."""
        status = (self.result or {}).get("status")
        return status in ("finished", "failed", "retried", "pruned") and not self.awaits_ruling

    @property
    def objective(self) -> float | None:
        """What a finished trial is worth; None where it is not finished, or its objective is no number."""
        return worth(self.result or {})

    def further(self, names: Iterable[str]) -> tuple[float, ...] | None:
        """What a finished trial is worth in these objectives beside the first; None where one is missing."""
        return extra_objectives(self.result or {}, names)

    @property
    def failure(self) -> dict[str, Any]:
        """What a failed trial's result says of it: kind, message, last_lines; empty for any other."""
        failure = (self.result or {}).get("failure")
        return failure if isinstance(failure, dict) else {}

    @property
    def record(self) -> TrialRecord | None:
        """What the study must say of the trial; None where trial.json is missing, damaged or another trial's."""
        try:
            found = read_json(self.path / "trial.json") or {}
            record = TrialRecord(dict(found["point"]), dict(found["attributes"]), str(found.get("config_sha256", "")))
        except (ValueError, KeyError, TypeError):
            return None
        return record if str(record.attributes.get("experiment"))[:6] == self.head else None

    def attempts(self) -> list[dict[str, Any]]:
        """The lines of attempts.jsonl: intents, starts and ends, in order."""
        return list(read_lines(self.path / "attempts.jsonl", attempt=int))

    def next_attempt(self) -> int:
        """The number of the next attempt, from 0; a job that Slurm restarted has used several."""
        used = [line["attempt"] for line in self.attempts()] + [run.attempt for run in read_runs(self.path)]
        return max(used, default=-1) + 1

    def open_attempt(self) -> OpenAttempt | None:
        """The last attempt, where nobody has noted its end."""
        found: OpenAttempt | None = None
        for line in self.attempts():
            match line.get("event"):
                case "intent":
                    found = OpenAttempt(line["attempt"], None, as_number(line.get("time")) or 0.0)
                case "started":
                    job_id = line.get("job_id")
                    known = job_id if isinstance(job_id, str) else None
                    found = OpenAttempt(line["attempt"], known, as_number(line.get("time")) or 0.0)
                case "ended":
                    found = None
        return found

    def nodes_to_avoid(self) -> str:
        """Where the last attempt ran, if its failure is to be tried elsewhere; empty otherwise."""
        ended = [line for line in self.attempts() if line.get("event") == "ended"]
        return str(ended[-1].get("nodes", "")) if ended and ended[-1].get("step") == "elsewhere" else ""

    def note_attempt(self, attempt: int, event: str, **content: Any) -> None:
        """Append one event of an attempt: intent (before acting), started, hangs (before it is cancelled), ended."""
        append_line(self.path / "attempts.jsonl", {"attempt": attempt, "event": event, **content})

    def hung(self, attempt: int) -> bool:
        """Whether a controller found that this attempt had to be ended for want of a sign of life."""
        return any(line["attempt"] == attempt and line.get("event") == "hangs" for line in self.attempts())

    def close_attempt(self) -> None:
        """Note the end of an attempt that left its result when no controller watched, or one that died writing it down.

        None may run any more where the trial was to end with it.
        """
        begun, result = self.open_attempt(), self.result or {}
        is_over = self.is_done or self.asked.is_last
        if begun is None or (not is_over and result.get("attempt", -1) < begun.number):
            return  # none, or one that has left nothing yet
        names = {"class": "failure", "then": "step", "again": "again", "nodes": "nodes"}
        said = {ours: self.failure[theirs] for theirs, ours in names.items() if theirs in self.failure}
        code = {"finished": ExitCode.FINISHED, "stopped": ExitCode.STOPPED, "pruned": ExitCode.STOPPED}.get(
            str(result.get("status")), ExitCode.FAILED
        )
        self.note_attempt(begun.number, "ended", code=code, killed=False, unseen=True, **said)

    def evaluations(self, metric: str) -> dict[int, float]:
        """The metric at each evaluation, by optimizer step."""
        lines = read_lines(self.path / "metrics.jsonl", step=int)
        return {
            line["step"]: value
            for line in lines
            if line.get("kind") == "eval" and line["step"] >= 0
            if (value := as_number(line.get(metric))) is not None  # null stands for NaN
        }

    def heartbeat(self) -> dict[str, Any]:
        """Where the attempt is: ``step`` and ``total``; empty before its first step."""
        return read_json(self.path / "heartbeat") or {}

    @property
    def asked(self) -> Asked:
        """What control.json asks; ``pause`` and ``prune`` hold whatever becomes of the attempt that was to read them."""
        found = read_json(self.path / "control.json") or {}
        words = [found.get(name) for name in ("action", "reason", "guard")]
        action, reason, guard = (word if isinstance(word, str) else "" for word in words)
        return Asked(action or "run", reason, guard)

    def control(self, action: str, reason: str = "", guard: str = "") -> None:
        """Tell the attempt what to do at its next rollout boundary: run, pause, prune, stop."""
        said = {name: text for name, text in (("reason", reason), ("guard", guard)) if text}
        write_json(self.path / "control.json", {"action": action, "until_step": None, **said})

    def write_result(self, content: dict[str, Any]) -> None:
        """Record an end that the attempt could not record itself."""
        write_json(self.path / "result.json", content)

    def last_lines(self, count: int = 12) -> list[str]:
        """The end of the first rank's log, or of its job's where no rank got so far."""
        for name in ("rank-0.log", "job.log"):
            try:
                text = (self.path / "logs" / name).read_text(encoding="utf-8", errors="replace")
            except FileNotFoundError:
                continue
            if text.strip():
                return redact("\n".join(text.splitlines()[-count:])).split("\n")
        return []

    def delete_model(self) -> None:
        """Give a loser's disk space back."""
        shutil.rmtree(self.path / "model", ignore_errors=True)

    def delete_checkpoints(self) -> None:
        """Those of a trial that will not go on."""
        shutil.rmtree(self.path / "checkpoints", ignore_errors=True)


@dataclass(frozen=True)
class SweepFolder:
    """One sweep's folder under outputs/."""

    path: Path

    @property
    def journal(self) -> Path:
        """The Optuna journal."""
        return self.path / "study.journal"

    def settings(self) -> dict[str, Any] | None:
        """What ``sweep.yaml`` says; None for a folder that holds no sweep.

        Raises UserError for one that nobody can read: without it nobody knows whether this is the same sweep.
        """
        import yaml  # PyYAML comes with omegaconf; not needed for --help

        path = self.path / "sweep.yaml"
        try:
            content = yaml.load(path.read_text(encoding="utf-8"), yaml_loader())
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError, yaml.YAMLError) as error:
            why = " ".join(str(error).split())[:200]
            raise UserError(f"{path} is damaged ({why}). Restore it, or give the sweep another name=...") from error
        return dict(content) if isinstance(content, dict) else {}

    def prepared(self) -> dict[str, Any]:
        """What preparation counted, by model and task; empty before it."""
        entries = (read_json(self.path / "prepared.json") or {}).get("entries")
        return (
            {key: entry for key, entry in entries.items() if isinstance(entry, dict)}
            if isinstance(entries, dict)
            else {}
        )

    def trial(self, number: int, experiment: str) -> TrialFolder:
        """The folder of a trial, whether it exists or not."""
        return TrialFolder(self.path / "trials" / f"{number:04d}-{experiment[:6]}")

    def trials(self) -> Iterator[TrialFolder]:
        """The trial folders that exist, by number."""
        for path in sorted((self.path / "trials").glob("[0-9]*-*")):
            if path.name.split("-")[0].isdecimal() and path.is_dir():
                yield TrialFolder(path)
