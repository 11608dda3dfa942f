"""``grposweep doctor``: run every check on a sweep's files, print the findings, and repair them under the sweep's lease."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from grporecipe.errors import ExitCode
from grporecipe.terminal import say
from grposweep.launchers import RunningJobs
from grposweep.storage import paths
from grposweep.storage.folders import SweepFolder, TrialFolder, find_sweep
from grposweep.storage.lease import Lease, is_held
from grposweep.storage.results import TrialStatus
from grposweep.sweep.doctor_checks import (
    Finding,
    check_attempts,
    check_description,
    check_doubles,
    check_files,
    check_json,
    check_lease,
    check_leftovers,
    check_metrics,
    end_attempt,
)

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


def _repair(checks: "CheckRun", found: list[Finding], out: TextIO) -> list[Finding]:
    """Repair everything that can be repaired, and return what is left."""
    for _ in range(REPAIR_PASSES):
        repairable = [finding for finding in found if finding.repair is not None]
        for finding in repairable:
            assert finding.repair is not None  # for mypy
            finding.repair()
            say(f"repaired: {finding}", out)
        found = list(checks.findings(lease=False))
        if not repairable:
            break
    return found


@dataclass(frozen=True)
class CheckRun:
    """One pass over all files; ``quiet``: no controller is running."""

    folder: SweepFolder
    quiet: bool

    def findings(self, lease: bool = True) -> Iterator[Finding]:
        """Return all problems now; ``lease``: include the lease, which may be ours by now."""
        folder = self.folder
        if found := check_json(folder.path / paths.PREPARED, paths.PREPARED, "the sweep's command prepares again"):
            yield found
        if self.quiet:
            yield from check_lease(folder) if lease else ()
            yield from check_leftovers(folder)
            yield from check_doubles(folder)
        jobs = RunningJobs(folder.path)
        for trial in folder.trials():
            if self.quiet or trial.is_done:
                yield from check_files(trial)
            if self.quiet:
                yield from _check_quiet(trial, jobs)


def _check_quiet(trial: TrialFolder, jobs: RunningJobs) -> Iterator[Finding]:
    """Check what is stable only while the trial's attempt does not run."""
    begun = trial.open_attempt()
    runs = jobs.runs(trial.path, begun.number, begun.job_id) if begun is not None else False
    if runs is not False:
        return
    yield from check_attempts(trial)
    yield from check_metrics(trial)
    if begun is not None:
        yield end_attempt(trial, begun)


def _summary(folder: SweepFolder, left: list[Finding], repair: bool) -> str:
    ends = [trial.result.status for trial in folder.trials()]
    finished, failed, stopped = map(ends.count, (TrialStatus.FINISHED, TrialStatus.FAILED, TrialStatus.PRUNED))
    left_over = len(ends) - finished - failed - stopped
    early = f"{stopped} stopped early, " if stopped else ""
    counts = f"{len(ends)} trials, {finished} finished, {early}{failed} failed, {left_over} unfinished"
    if not left:
        return f"{folder.path.name} is sound: {counts}"
    repairable = sum(finding.repair is not None for finding in left)
    hint = (
        "; --repair repairs it" if repairable == 1 else f"; --repair repairs {repairable} of them" if repairable else ""
    )
    problems = "1 problem" if len(left) == 1 else f"{len(left)} problems"
    return f"{folder.path.name} has {problems}{'' if repair else hint} ({counts})"
