"""Name the damaged files of a sweep. Every reader skips what is damaged, and nothing is
repaired.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from grporecipe.files import objects, parse_json, read_bytes, read_text, text_sha256
from grposweep.storage import paths
from grposweep.storage.folders import SweepFolder, TrialFolder
from grposweep.storage.records import AttemptEvent, AttemptEventKind, TrialRecord, read_metrics
from grposweep.storage.results import TrialStatus, read_runs, run_cost

# A file of one object, and what follows if it is skipped.
OBJECTS = {
    paths.RESULT: "the trial is trained again",
    paths.CONTROL: "the trial has no request",
    paths.HEARTBEAT: "its progress is unknown until the next attempt",
    paths.PLAN: "the trial's plan is unknown",
    paths.PROVENANCE: "where the trial came from is unknown",
    paths.OOM_FIX: "the trial is trained with its own batch",
}
# as git writes them
CONFLICT = rb"(?m)^(?:<{7}|={7}|>{7})(?= |\r?$)"
# a run that died is counted up to its last heartbeat
UNNOTED_SECONDS = 60.0


def sweep_damage(sweep: SweepFolder) -> Iterator[str]:
    """Yield a line for each problem of the sweep's own files, and for trials with two folders or a
    link as their folder.
    """
    what = object_damage(sweep.path / paths.PREPARED)
    if what:
        yield f"{paths.PREPARED} {what}, so it is skipped; the sweep's command prepares again"
    trials = list(sweep.trials())
    folders = Counter(trial.number for trial in trials)
    for number in sorted(number for number, found in folders.items() if found > 1):
        yield (
            f"trial {number} has {folders[number]} folders, so one of them is skipped; look "
            "at both and move one away"
        )
    for trial in trials:
        if trial.path.is_symlink():
            yield (
                f"{trial.path.name} is a symbolic link, so the trial may not train; put the "
                "folder itself in its place"
            )


def trial_damage(trial: TrialFolder, logs_steps: bool) -> Iterator[str]:
    """Yield a line for each damaged file of a trial: its name, what is damaged, and what follows.

    The logs of an open attempt are not read, because its trainer may be writing them.
    ``logs_steps``: its trainer logs every optimizer step, which a program of the user's own may not
    do.
    """
    name = trial.path.name
    for file, follows in OBJECTS.items():
        what = object_damage(trial.path / file)
        if what:
            yield f"{name}/{file} {what}, so it is skipped; {follows}"
    yield from _record_damage(trial)
    if trial.open_attempt() is not None:
        return
    for file in (paths.ATTEMPTS, paths.RUNS, paths.METRICS):
        what = lines_damage(trial.path / file)
        if what:
            yield f"{name}/{file} {what}"
    for what in disorder(trial.attempts()):
        yield f"{name}/{paths.ATTEMPTS} states that {what}; another program wrote it"
    yield from _missing_runs(trial)
    yield from _curve_damage(trial, logs_steps)


def object_damage(path: Path) -> str:
    """Return what is damaged in a file of one JSON object; empty for a sound or a missing one."""
    try:
        text = read_bytes(path)
        conflict = re.search(CONFLICT, text)
        if conflict:
            return f"has conflict marks of git in line {_line(text, conflict.start())}"
        is_object = isinstance(parse_json(text), dict)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        return f"cannot be read ({error})"
    return "" if is_object else "holds no JSON object"


def lines_damage(path: Path) -> str:
    """Return what is damaged in a file of JSON lines, and what follows; empty for a sound or a
    missing one.
    """
    try:
        text = read_bytes(path)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        return f"cannot be read ({error}), so it is skipped"
    conflict = re.search(CONFLICT, text)
    if conflict:
        line = _line(text, conflict.start())
        return (
            f"has conflict marks of git in line {line}, so that line is skipped, and others "
            "may stand there twice"
        )
    torn = []
    for number, content in enumerate(text.split(b"\n"), 1):
        if content and not list(objects([content])):
            torn.append(number)
    if torn:
        plural = "s" * (len(torn) > 1)
        lines = f"{len(torn)} torn line{plural} (line {_first(torn)})"
        return f"has {lines}, skipped by every reader"
    return ""


def _line(text: bytes, offset: int) -> int:
    return text.count(b"\n", 0, offset) + 1


def _first(numbers: list[int]) -> str:
    more = ", ..." if len(numbers) > 5 else ""
    return ", ".join(map(str, numbers[:5])) + more


def _record_damage(trial: TrialFolder) -> Iterator[str]:
    """Yield a line if trial.json or config.yaml does not belong to the trial's folder."""
    name = trial.path.name
    record = trial.record
    if not trial.attempts():
        # A controller may be writing it.
        return
    if record is None:
        yield (
            f"{name}/{paths.TRIAL} does not state the trial's point, so the trial is skipped; "
            "overrides.yaml has the point"
        )
        return
    if TrialRecord.find(trial.path) != record:
        yield (
            f"{name}/{paths.TRIAL} does not state the trial's point, so it is skipped; "
            f"{paths.PROVENANCE} states it"
        )
    try:
        digest = text_sha256(read_text(trial.path / paths.CONFIG, errors="replace"))
    except (OSError, ValueError):
        yield (
            f"{name} has no {paths.CONFIG} that can be read; the sweep's command writes it if "
            "the trial has not ended"
        )
        return
    if record.config_sha256 not in ("", digest):
        yield (
            f"{name}/{paths.CONFIG} was changed after the trial was written; restore it: the "
            "results are those of the old one"
        )


def disorder(events: list[AttemptEvent]) -> Iterator[str]:
    """Check that attempts count upwards and that each is announced, started and ended once
    (launchers may restart them).
    """
    announced: set[int] = set()
    ended: set[int] = set()
    latest = -1
    for event in events:
        number = event.attempt
        if event.event == AttemptEventKind.INTENT:
            if number <= latest:
                yield f"attempt {number} was announced after attempt {latest}"
            announced.add(number)
        elif (
            event.event in (AttemptEventKind.STARTED, AttemptEventKind.ENDED)
            and number not in announced
        ):
            yield f"attempt {number} {event.event} and was never announced"
        if event.event == AttemptEventKind.ENDED:
            if number in ended:
                yield f"attempt {number} ended twice"
            ended.add(number)
        latest = max(latest, number)


def _missing_runs(trial: TrialFolder) -> Iterator[str]:
    """Yield a line if runs.jsonl lacks run time that result.json counts."""
    result = trial.result
    if result.seconds is None:
        return
    lost = result.seconds - run_cost(trial.path)[0]
    noted = {run.attempt for run in read_runs(trial.path)}
    if lost > UNNOTED_SECONDS or result.attempt not in noted:
        yield (
            f"{trial.path.name}/{paths.RUNS} lacks runs of {max(lost, 0):.0f} s; they are "
            "missing in the cost of the trial"
        )


def _curve_damage(trial: TrialFolder, logs_steps: bool) -> Iterator[str]:
    """Yield a line for steps that metrics.jsonl has twice, and for a curve that ends before its
    trial.
    """
    last = 0
    steps: Counter[tuple[int, str]] = Counter()
    for row in read_metrics(trial.path):
        last = max(last, row.step)
        steps[row.step, str(row.line.get("kind"))] += 1
    twice = sorted({step for (step, _), found in steps.items() if found > 1})
    where = f"{trial.path.name}/{paths.METRICS}"
    if twice:
        yield (
            f"{where} has step {_first(twice)} more than once, so its curve shows "
            f"{_first(twice)} twice"
        )
    result = trial.result
    is_cut = last < (result.step or 0) and (logs_steps or not last)
    if result.status is TrialStatus.FINISHED and is_cut:
        yield (
            f"{where} ends at step {last} of {result.step}, so the rest of the trial's curve "
            "is missing"
        )
