"""Whether one trial's files can be read, and tell one story."""

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from grposweep.files import read_lines, text_sha256, write_json, write_text
from grposweep.sweep.doctor.finding import Finding, check_json, drop_torn_lines, scrap_path, torn_lines
from grposweep.sweep.folder import Begun, TrialFolder

CURES = {
    "result.json": "the trial goes on, or runs again",
    "control.json": "nothing is asked of the trial then",
    "heartbeat": "the next attempt writes a new one",
    "plan.json": "it is written again with the trial's folder",
    "provenance.json": "where the trial came from is lost",
}


def check_files(trial: TrialFolder, known: FrozenTrial | None) -> Iterator[Finding]:
    """Files that hold one object each; ``known`` is the trial by the study."""
    name = trial.path.name
    if not (trial.path / "config.yaml").exists():
        yield Finding(f"{name} has no config.yaml", "the sweep's command writes it")
    elif (record := trial.record) is None:
        yield _lost_record(trial, known)
    elif record.config_sha256 not in ("", _config_sha256(trial)):
        what = f"{name}/config.yaml is not what trial.json says was written"
        yield Finding(what, "restore it: the folder's name and results are another experiment's")
    for file, cure in CURES.items():
        if found := check_json(trial.path / file, f"{name}/{file}", cure):
            yield found


def _config_sha256(trial: TrialFolder) -> str:
    return text_sha256((trial.path / "config.yaml").read_text(encoding="utf-8", errors="replace"))


def _lost_record(trial: TrialFolder, known: FrozenTrial | None) -> Finding:
    what = f"{trial.path.name}/trial.json does not tell the trial's point"
    if known is None or str(known.user_attrs.get("experiment"))[:6] != trial.head:
        return Finding(what, "the study does not either; overrides.yaml does, to a person")
    content = {
        "number": known.number,
        "point": known.params,
        "attributes": known.user_attrs,
        "config_sha256": _config_sha256(trial),
    }
    return Finding(what, "write it again from the study", partial(write_json, trial.path / "trial.json", content))


def check_attempts(trial: TrialFolder) -> Iterator[Finding]:
    """attempts.jsonl: readable, and in order."""
    yield from _check_torn(trial, "attempts.jsonl")
    for what in _disorder(trial.attempts()):
        yield Finding(f"{trial.path.name}/attempts.jsonl: {what}", "somebody else wrote it: nothing is changed")


def _disorder(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Attempts count upwards; each is announced before it is started, and ends once (restarts are Slurm's own)."""
    seen, announced, ended = {-1}, set(), set()
    for line in lines:
        attempt, event = line.get("attempt"), line.get("event")
        if not isinstance(attempt, int):
            continue
        if event == "intent" and attempt <= max(seen):
            yield f"attempt {attempt} was announced after attempt {max(seen)}"
        elif event in ("started", "ended") and attempt not in announced:
            yield f"attempt {attempt} {'was started' if event == 'started' else 'ended'} and was never announced"
        if event == "ended" and attempt in ended:
            yield f"attempt {attempt} ended twice"
        seen.add(attempt)
        announced |= {attempt} if event == "intent" else set()
        ended |= {attempt} if event == "ended" else set()


def end_attempt(trial: TrialFolder, begun: Begun) -> Finding:
    """An attempt that is open, though nothing runs."""
    note = partial(trial.note_attempt, begun.number, "ended", code=-9, killed=True, kind="vanished")
    return Finding(f"attempt {begun.number} of {trial.path.name} is open, and nothing runs", "note that it ended", note)


def check_metrics(trial: TrialFolder) -> Iterator[Finding]:
    """metrics.jsonl: readable, and no step twice."""
    yield from _check_torn(trial, "metrics.jsonl")
    counts = Counter(_step(line) for line in read_lines(trial.path / "metrics.jsonl") if "step" in line)
    if twice := sorted({str(step) for (_, step), count in counts.items() if count > 1}):
        what = f"{trial.path.name}/metrics.jsonl has step {', '.join(twice[:5])} more than once"
        yield Finding(what, "keep the last line of each", partial(_keep_last, trial.path / "metrics.jsonl"))


def _step(line: dict[str, Any]) -> tuple[str, str]:
    return str(line.get("kind")), str(line["step"])


def _keep_last(path: Path) -> None:
    """Of several lines for one step the last one, in the place of the first; all of them stay in a file beside it."""
    lines = {_step(line) if "step" in line else place: line for place, line in enumerate(read_lines(path))}
    scrap_path(path).write_bytes(path.read_bytes())
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines.values()))


def _check_torn(trial: TrialFolder, file: str) -> Iterator[Finding]:
    path = trial.path / file
    if torn := torn_lines(path):
        what = f"{trial.path.name}/{file} has {len(torn)} torn line{'s' * (len(torn) > 1)}"
        yield Finding(what, f"move them to {scrap_path(path).name}", partial(drop_torn_lines, path))
