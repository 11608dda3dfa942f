"""``grposweep doctor``: run every check on a sweep's files, print the findings, and repair them under the sweep's lease."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from grporecipe.errors import ExitCode, UserError
from grporecipe.files import (
    age_seconds,
    append_line,
    is_draft,
    objects,
    read_bytes,
    read_json,
    read_lines,
    read_text,
    set_aside,
    text_sha256,
    write_text,
)
from grporecipe.terminal import count, say
from grposweep.launchers import RunningJobs
from grposweep.registries import is_external
from grposweep.search.space import read_space
from grposweep.storage import paths
from grposweep.storage.folders import SweepFolder, TrialFolder, find_sweep
from grposweep.storage.lease import Lease, is_held
from grposweep.storage.records import AttemptEvent, AttemptEventKind, TrialRecord, as_mapping, read_metrics
from grposweep.storage.results import NO_NUMBER, TrialResult, TrialStatus, read_runs, run_cost
from grposweep.sweep.resume import folders_by_number


@dataclass(frozen=True)
class Finding:
    """A problem: ``what`` is wrong; ``remedy`` describes the automatic repair, or the manual one if there is none."""

    what: str
    remedy: str
    repair: Callable[[], object] | None = None

    def __str__(self) -> str:
        """Return problem and remedy as they are shown."""
        return f"{self.what}: {self.remedy}"


def scrap_path(path: Path) -> Path:
    """Return where the unreadable parts of a file are kept."""
    return path.with_name(f"{path.name}.damaged")


def check_json(path: Path, name: str, remedy: str) -> Finding | None:
    """Check a file that should hold one JSON object; a damaged one is set aside. A missing one is no problem."""
    if not os.path.lexists(path) or read_json(path) is not None:
        return None
    return Finding(f"{name} is damaged", f"set it aside as {scrap_path(path).name}; {remedy}", partial(set_aside, path))


def drop_torn_lines(path: Path) -> None:
    """Move unreadable lines into a separate file next to it."""
    lines = _lines(path)
    with scrap_path(path).open("ab") as file:
        file.writelines(line + b"\n" for line in lines if not _is_object(line))
    write_text(path, "".join(line.decode() + "\n" for line in lines if _is_object(line)))


def _lines(path: Path) -> list[bytes]:
    try:
        return [line for line in read_bytes(path).split(b"\n") if line]
    except FileNotFoundError:
        return []


def _is_object(line: bytes) -> bool:
    return next(objects([line]), None) is not None


OLD_SECONDS = 60.0  # a running writer's draft exists for milliseconds


def check_leftovers(folder: SweepFolder) -> Iterator[Finding]:
    """Check for drafts of dead writers; only while no controller is running."""
    root = folder.path  # not in folders that trainers write
    for place in (root, root / paths.PREPARE_FOLDER, *sorted((root / paths.TRIALS).glob("*/"))):
        for path in sorted(place.glob(".*")):
            if path.is_file() and is_draft(path.name) and _is_old(path):
                yield Finding(f"{path.relative_to(root)} is the draft of a writer that died", "delete it", path.unlink)


def _is_old(path: Path) -> bool:
    """Return whether a draft was left behind; not if its writer, such as our own lease, has just finished it."""
    try:
        return age_seconds(path) > OLD_SECONDS
    except FileNotFoundError:
        return False


REMEDIES = {
    paths.RESULT: "the trial continues, or runs again",
    paths.CONTROL: "the trial then has no request",
    paths.HEARTBEAT: "the next attempt writes a new one",
    paths.PLAN: "it is written again with the trial's folder",
    paths.PROVENANCE: "where the trial came from is lost",
}


def check_files(trial: TrialFolder) -> Iterator[Finding]:
    """Check files that hold one object each."""
    name = trial.path.name
    if not (trial.path / paths.CONFIG).exists():
        yield Finding(f"{name} has no config.yaml", "the sweep's command writes it")
    elif (record := TrialRecord.read(trial.path)) is None or record != trial.record:
        what, copy = f"{name}/trial.json does not state the trial's point", trial.record
        remedy = "read it from overrides.yaml" if copy is None else "write it again from provenance.json"
        yield Finding(what, remedy, None if copy is None else partial(copy.write, trial.path))
    elif record.config_sha256 not in ("", text_sha256(_config_text(trial))):
        what = f"{name}/config.yaml differs from the hash in trial.json"
        yield Finding(what, "restore it: the folder's name and results are another experiment's")
    if trial.result.failure == NO_NUMBER:
        what = f"{name}/{paths.RESULT} has no number as objective of a finished trial"
        remedy = f"set it aside as {scrap_path(Path(paths.RESULT)).name}; {REMEDIES[paths.RESULT]}"
        yield Finding(what, remedy, partial(set_aside, trial.path / paths.RESULT))
    for file, remedy in REMEDIES.items():
        if finding := check_json(trial.path / file, f"{name}/{file}", remedy):
            yield finding


def _config_text(trial: TrialFolder) -> str:
    try:
        return read_text(trial.path / paths.CONFIG, errors="replace")
    except (FileNotFoundError, ValueError):
        return ""


def check_attempts(trial: TrialFolder) -> Iterator[Finding]:
    """Check that attempts.jsonl is readable and in order."""
    yield from _check_torn(trial, paths.ATTEMPTS)
    for what in _disorder(trial.attempts()):
        yield Finding(f"{trial.path.name}/attempts.jsonl: {what}", "another program wrote it, so nothing is changed")


def _disorder(events: list[AttemptEvent]) -> Iterator[str]:
    """Check that attempts count upwards and that each is announced, started and ended once (launchers may restart them)."""
    numbers, announced, ended = {-1}, set(), set()
    for line in events:
        attempt, event = line.attempt, line.event
        if event == AttemptEventKind.INTENT and attempt <= max(numbers):
            yield f"attempt {attempt} was announced after attempt {max(numbers)}"
        elif event in (AttemptEventKind.STARTED, AttemptEventKind.ENDED) and attempt not in announced:
            yield f"attempt {attempt} {'was started' if event == AttemptEventKind.STARTED else 'ended'} and was never announced"
        if event == AttemptEventKind.ENDED and attempt in ended:
            yield f"attempt {attempt} ended twice"
        numbers.add(attempt)
        announced |= {attempt} if event == AttemptEventKind.INTENT else set()
        ended |= {attempt} if event == AttemptEventKind.ENDED else set()


def check_runs(trial: TrialFolder) -> Iterator[Finding]:
    """Check that runs.jsonl is readable, and has the run time that result.json counts."""
    yield from _check_torn(trial, paths.RUNS)
    result, runs = trial.result, read_runs(trial.path)
    cost = run_cost(trial.path)
    is_lost = result.attempt not in {run.attempt for run in runs} or cost[0] < (result.seconds or 0) - UNNOTED_SECONDS
    if result.seconds is not None and is_lost:
        ended = (trial.path / paths.RESULT).stat().st_mtime
        what = f"{trial.path.name}/runs.jsonl lacks runs of {result.seconds - cost[0]:.0f} s that result.json counts"
        yield Finding(what, "write them from result.json", partial(_restore_runs, trial, result, cost, ended))


UNNOTED_SECONDS = 60.0  # a run that died is counted up to its last heartbeat


def _restore_runs(trial: TrialFolder, result: TrialResult, cost: tuple[float, float], end: float) -> None:
    """Append one run that ended at ``end`` and stands for those that are lost; ``cost`` is that of the others."""
    lost = max((result.seconds or 0) - cost[0], 0.0)
    devices = ((result.gpu_seconds or 0) - cost[1]) / lost if lost else 0
    start = {"event": "start", "attempt": result.attempt, "time": end - lost, "devices": devices, "restarts": 0}
    append_line(trial.path / paths.RUNS, start)
    append_line(trial.path / paths.RUNS, {"event": "end", "attempt": result.attempt, "time": end, "seconds": lost})


def check_metrics(trial: TrialFolder, steps_are_logged: bool) -> Iterator[Finding]:
    """Check that metrics.jsonl is readable, has no step twice, and reaches the end of a finished trial.

    ``steps_are_logged``: every optimizer step has a line, which a program of the user may not write.
    """
    yield from _check_torn(trial, paths.METRICS)
    counts = Counter(_step(line) for line in read_lines(trial.path / paths.METRICS) if "step" in line)
    if twice := sorted({str(step) for (_, step), lines in counts.items() if lines > 1}):
        what = f"{trial.path.name}/metrics.jsonl has step {', '.join(twice[:5])} more than once"
        yield Finding(what, "keep the last line of each", partial(_keep_last, trial.path / paths.METRICS))
    last, result = max((row.step for row in read_metrics(trial.path)), default=0), trial.result
    if result.status is TrialStatus.FINISHED and last < (result.step or 0) and (steps_are_logged or not last):
        what = f"{trial.path.name}/metrics.jsonl ends at step {last}, and the trial finished {result.step} steps"
        yield Finding(what, "restore it: the rest of its curve is lost")


def _step(line: dict[str, Any]) -> tuple[str, str]:
    return str(line.get("kind")), str(line["step"])


def _keep_last(path: Path) -> None:
    """Keep the last of several lines for one step, in the place of the first. The original file is kept under another name."""
    lines = {_step(line) if "step" in line else place: line for place, line in enumerate(read_lines(path))}
    scrap_path(path).write_bytes(read_bytes(path))
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines.values()))


def _check_torn(trial: TrialFolder, file: str) -> Iterator[Finding]:
    path = trial.path / file
    try:
        torn = [line for line in _lines(path) if not _is_object(line)]
    except ValueError as error:
        what, remedy = f"{trial.path.name}/{file}: {error}", f"set it aside as {scrap_path(path).name}"
        yield Finding(what, remedy, partial(set_aside, path))
        return
    if torn:
        what = f"{trial.path.name}/{file} has {len(torn)} torn line{'s' * (len(torn) > 1)}"
        yield Finding(what, f"move them to {scrap_path(path).name}", partial(drop_torn_lines, path))


def check_description(folder: SweepFolder) -> None:
    """Raise UserError if sweep.yaml does not state the search, without which nothing can be checked."""
    settings: dict[str, Any] = folder.settings() or {}
    try:
        search = settings["search"]
        if search["direction"] not in ("maximize", "minimize"):
            raise ValueError(search["direction"])
        str(search["metric"])
        read_space(settings["space"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{folder.path / paths.SWEEP} does not state what was searched ({type(error).__name__}: {error}). "
            "Restore it, or move it away and run the sweep's command: it writes a new one."
        ) from error


def check_doubles(folder: SweepFolder) -> Iterator[Finding]:
    """Check that no number has two folders."""
    for number, (_, *others) in folders_by_number(folder).items():
        for path in (other.path for other in others):
            what, unused = f"{path.name} is a second folder of trial {number}", path.with_name(f"unused-{path.name}")
            if (path / paths.ATTEMPTS).exists():
                yield Finding(what, "look at both and move one away: it has been attempted")
            else:
                yield Finding(what, f"rename it to {unused.name}", partial(path.rename, unused))


@dataclass(frozen=True)
class CheckRun:
    """One pass over all files; ``quiet``: no controller is running."""

    folder: SweepFolder
    quiet: bool

    def findings(self, lease: bool = True) -> Iterator[Finding]:
        """Return all problems now; ``lease``: include the lease, which may be ours by now."""
        folder = self.folder
        if finding := check_json(folder.path / paths.PREPARED, paths.PREPARED, "the sweep's command prepares again"):
            yield finding
        if self.quiet:
            if lease and folder.lease.exists():  # taking it over repairs it
                what, remedy = "lease.json was left by a controller that died", "take it over and give it back"
                yield Finding(what, remedy, lambda: None)
            yield from check_leftovers(folder)
            yield from check_doubles(folder)
        jobs = RunningJobs(folder.path)
        baseline = as_mapping((folder.settings() or {}).get("baseline"))
        steps_are_logged = not is_external(str(as_mapping(baseline.get("trainer")).get("kind")))
        for trial in folder.trials():
            if trial.path.is_symlink():
                what = f"{trial.path.name} is a symbolic link to {trial.path.resolve()}"
                yield Finding(what, "put the folder itself in its place: a sweep writes only into its own folder")
            if self.quiet or trial.is_done:
                yield from check_files(trial)
            if self.quiet:
                yield from _check_quiet(trial, jobs, steps_are_logged)


def _check_quiet(trial: TrialFolder, jobs: RunningJobs, steps_are_logged: bool) -> Iterator[Finding]:
    """Check what is stable only while the trial's attempt does not run."""
    begun = trial.open_attempt()
    runs = jobs.runs(trial.path, begun.number, begun.job_id) if begun is not None else False
    if runs is not False:
        return
    yield from check_attempts(trial)
    yield from check_runs(trial)
    yield from check_metrics(trial, steps_are_logged)
    if begun is not None:
        what = f"attempt {begun.number} of {trial.path.name} is open, and nothing runs"
        note = partial(trial.note_attempt, begun.number, AttemptEventKind.ENDED, code=-9, killed=True, kind="vanished")
        yield Finding(what, "note that it ended", note)


REPAIR_PASSES = 3  # one repair may show what another problem hid


def run_checks(named: str, outputs: Path, repair: bool, out: TextIO) -> int:
    """Check a sweep, given by name or path, and repair it on request; return the exit code.

    Raises UserError if there is no such sweep, or if a controller works on what should be repaired.
    """
    folder = find_sweep(named, outputs)
    check_description(folder)
    checks = CheckRun(folder, quiet=not is_held(folder.lease))
    left = list(checks.findings())
    if not checks.quiet:
        say("a controller is running: only files that it is not changing now were checked", out)
    if repair and left:
        with Lease(folder.lease):
            left = _repair(checks, left, out)
    for finding in left:
        say(str(finding), out)
    say(_summary(folder, left, repair), out)
    return ExitCode.FAILED if left else ExitCode.FINISHED


def _repair(checks: CheckRun, findings: list[Finding], out: TextIO) -> list[Finding]:
    """Repair everything that can be repaired, and return what is left."""
    for _ in range(REPAIR_PASSES):
        repairable = [finding for finding in findings if finding.repair is not None]
        for finding in repairable:
            assert finding.repair is not None  # for mypy
            finding.repair()
            say(f"repaired: {finding}", out)
        findings = list(checks.findings(lease=False))
        if not repairable:
            break
    return findings


def _summary(folder: SweepFolder, left: list[Finding], repair: bool) -> str:
    ends = [trial.result.status for trial in folder.trials()]
    finished, failed, stopped = map(ends.count, (TrialStatus.FINISHED, TrialStatus.FAILED, TrialStatus.PRUNED))
    left_over = len(ends) - finished - failed - stopped
    early = f"{stopped} stopped early, " if stopped else ""
    counts = f"{len(ends)} trials, {finished} finished, {early}{failed} failed, {left_over} unfinished"
    if not left:
        return f"{folder.path.name} is sound: {counts}"
    repairable = sum(finding.repair is not None for finding in left)
    which = "it" if repairable == 1 else f"{repairable} of them"
    hint = f"; --repair repairs {which}" if repairable and not repair else ""
    return f"{folder.path.name} has {count(len(left), 'problem')}{hint} ({counts})"
