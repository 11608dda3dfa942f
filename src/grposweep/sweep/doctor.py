"""``grposweep doctor``: run every check on a sweep's files, print the findings, and repair them under the sweep's lease."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from optuna.trial import FrozenTrial, TrialState

from grporecipe.errors import ExitCode
from grporecipe.terminal import say
from grposweep.launchers import RunningJobs
from grposweep.storage import paths
from grposweep.storage.folders import TrialFolder, find_sweep
from grposweep.storage.lease import Lease, is_held
from grposweep.sweep.doctor_checks import (
    Finding,
    Sweep,
    check_attempts,
    check_files,
    check_journal,
    check_json,
    check_lease,
    check_leftovers,
    check_metrics,
    check_study,
    end_attempt,
    read_sweep,
)

REPAIR_PASSES = 3  # one repair may show what another problem hid


def run_checks(named: str, outputs: Path, repair: bool, out: TextIO) -> int:
    """Check a sweep, given by name or path, and repair it on request; return the exit code.

    Raises UserError if there is no such sweep, or if a controller works on what should be repaired.
    """
    sweep = read_sweep(find_sweep(named, outputs))
    checks = CheckRun(sweep, quiet=not is_held(sweep.folder.lease))
    left = list(checks.findings())
    if not checks.quiet:
        say("a controller is running: only files that it is not changing now were checked", out)
    if repair and left:
        with Lease(sweep.folder.lease):
            left = _repair(checks, left, out)
    for finding in left:
        say(str(finding), out)
    say(_summary(sweep, left, repair), out)
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

    sweep: Sweep
    quiet: bool

    def findings(self, lease: bool = True) -> Iterator[Finding]:
        """Return all problems now; ``lease``: include the lease, which may be ours by now."""
        folder = self.sweep.folder
        if found := check_json(folder.path / paths.PREPARED, paths.PREPARED, "the sweep's command prepares again"):
            yield found
        if self.quiet:
            yield from check_lease(folder) if lease else ()
            yield from check_leftovers(folder)
            yield from check_journal(self.sweep)
        trials = self.sweep.trials()
        if folder.journal.exists():  # check_journal reports a missing one
            yield from check_study(self.sweep, trials, self.quiet)
        yield from self._trials(trials)

    def _trials(self, trials: list[FrozenTrial]) -> Iterator[Finding]:
        jobs = RunningJobs(self.sweep.folder.path)
        for trial in self.sweep.folder.trials():
            known = trials[trial.number] if trial.number < len(trials) else None
            if self.quiet or (known is not None and known.state.is_finished()):
                yield from check_files(trial, known)
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


def _summary(sweep: Sweep, left: list[Finding], repair: bool) -> str:
    started = [trial for trial in sweep.trials() if not trial.user_attrs.get("invalid")]
    finished = sum(trial.state == TrialState.COMPLETE for trial in started)
    failed = sum(trial.state == TrialState.FAIL for trial in started)
    stopped = sum(trial.state == TrialState.PRUNED for trial in started)
    left_over = len(started) - finished - failed - stopped
    early = f"{stopped} stopped early, " if stopped else ""
    counts = f"{len(started)} trials, {finished} finished, {early}{failed} failed, {left_over} unfinished"
    if not left:
        return f"{sweep.folder.path.name} is sound: {counts}"
    repairable = sum(finding.repair is not None for finding in left)
    hint = (
        "; --repair repairs it" if repairable == 1 else f"; --repair repairs {repairable} of them" if repairable else ""
    )
    problems = "1 problem" if len(left) == 1 else f"{len(left)} problems"
    return f"{sweep.folder.path.name} has {problems}{'' if repair else hint} ({counts})"
