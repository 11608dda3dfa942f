"""Try failed trials again, in place: a trial keeps its number, its folder and its attempts.

A trial that failed by code or configuration is tried again once its files, its configuration or its
environment changed. ``grposweep retry`` repeats the sweep's command and names trials to it in the
environment. So a trial is opened by a controller that is ready to run it. The study, in which a
failed trial is final, is then rebuilt from the folders (`resume.open_study`).
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from grporecipe.errors import UserError
from grporecipe.files import Config, read_lines, read_text, text_or
from grporecipe.terminal import count, say
from grposweep.config.compose import load_experiment, render_experiment
from grposweep.report.view import open_sweep
from grposweep.schema import Experiment
from grposweep.search.validity import ValidationResult, Validator
from grposweep.storage import paths
from grposweep.storage.folders import SweepFolder, TrialFolder
from grposweep.storage.lease import Lease
from grposweep.storage.provenance import difference
from grposweep.storage.records import AttemptEventKind, read_provenance
from grposweep.storage.results import Failure, TrialStatus
from grposweep.sweep._resume import renew_inputs

# classes that a correction can cure
BY_CODE = (Failure.REWARD, Failure.BAD_CONFIGURATION, Failure.CRASH)
# the variable with the folder names of trials to try again
NAMED = "GRPOSWEEP_RETRY"
# Sections and keys that decide what is tried and shown, not how a trial runs.
NO_CURE = ("search", "name", "force", "verbose", "outputs", "rules")


def reopen_failed(folder: SweepFolder, validator: Validator, provenance: Config) -> list[str]:
    """Open the failed trials that are to be tried again; return a line for each, with the
    reason.
    """
    lines = list[str]()
    # removed: attempts inherit the environment
    named = os.environ.pop(NAMED, "").split()
    for trial in folder.trials():
        if (
            trial.result.status is not TrialStatus.FAILED
            or not trial.is_done
            or (record := trial.record) is None
        ):
            continue
        try:
            verdict = validator.validate(dict(record.point), record.attributes.get("seed"))
        except UserError:
            # a point of another space
            continue
        before = read_provenance(trial.path)
        cured = _cure(trial, verdict, before, provenance) if trial.failure.name in BY_CODE else None
        if cured or trial.path.name in named:
            # with other files it starts from the beginning
            renew_inputs(trial, provenance)
            if _is_same(trial, verdict):
                # the controller writes it again before the attempt
                (trial.path / paths.CONFIG).unlink(missing_ok=True)
            last = max((event.attempt for event in trial.attempts()), default=0)
            trial.close_attempt()
            trial.note_attempt(last, AttemptEventKind.REOPENED)
            replace(trial.result, status=TrialStatus.RETRIED).write(trial.path)
            lines.append(f"trial {trial.number} is tried again: {cured or 'grposweep retry'}")
    return lines


def _cure(trial: TrialFolder, verdict: ValidationResult, before: Config, now: Config) -> str | None:
    """Return what has changed since a trial was written and may make it succeed, or None."""
    names = "packages", "files"
    recorded_files = {name: before.get(name) for name in names}
    change = difference(recorded_files, {name: now.get(name) for name in names})
    if change:
        return change
    if before.get("environment") != now.get("environment"):
        return "logins or variables of the environment have changed"
    config = trial.path / paths.CONFIG
    if config.is_file() and read_text(config, errors="replace") == render_experiment(
        verdict.experiment
    ):
        # reading the experiment takes ten times as long
        return None
    recorded = _relevant(load_experiment(config))
    present = _relevant(verdict.experiment)
    if _is_same(trial, verdict) and recorded != present:
        return "its configuration has changed"
    return None


def _relevant(experiment: Experiment) -> Experiment:
    return replace(experiment, **{name: getattr(Experiment(), name) for name in NO_CURE})


def _is_same(trial: TrialFolder, verdict: ValidationResult) -> bool:
    """Return whether the point is still the trial's experiment: on other processes it is
    another.
    """
    record = trial.record
    return record is not None and record.attributes.get("experiment") == verdict.config.identity


def retry_trials(named: str | None, trials: Collection[str], outputs: Path) -> int:
    """Resume a sweep, which tries failed trials again (all, if none is named); return its exit
    code.

    A trial whose command is refused stays as it is.

    Raises UserError for a trial that has not failed, if a controller is at work, or if the command
    is not recorded.
    """
    view = open_sweep(named, outputs)
    folder = SweepFolder(view.path)
    folders = [TrialFolder(view.trial(name).path) for name in trials] or [
        trial for trial in folder.trials() if trial.result.status is TrialStatus.FAILED
    ]
    if not folders:
        raise UserError(
            f"{view.name} has no failed trial. 'grposweep rerun TRIAL' repeats any trial as a "
            "sweep of its own."
        )
    for trial in folders:
        if trial.result.status is not TrialStatus.FAILED:
            state = trial.result.status or "no result yet"
            raise UserError(
                f"trial {trial.number} has not failed ({state}). Name a failed one, or repeat it "
                f"as a sweep of its own: grposweep rerun {view.name} {trial.number}."
            )
    command, start = _command(folder)
    with Lease(folder.lease):
        # no controller is at work
        pass
    say(f"{count(len(folders), 'trial')} of {view.name} to try again: {shlex.join(command)}")
    environment = {**os.environ, NAMED: " ".join(trial.path.name for trial in folders)}
    return subprocess.run(command, cwd=start, env=environment, check=False).returncode


def _command(folder: SweepFolder) -> tuple[list[str], Path]:
    """Return the last command that ran a sweep, and where."""
    *_, recorded = [
        {},
        *read_lines(folder.path / paths.COMMANDS, command=str, working_directory=str),
    ]
    arguments = shlex.split(recorded.get("command", ""))
    start = Path(recorded.get("working_directory", ""))
    there = Path(text_or(recorded.get("sweep")) or folder.path)
    if len(arguments) > 1 and not (there.is_dir() and there.samefile(folder.path)):
        raise UserError(
            f"{folder.path} was moved or copied: its command runs {there}. Give the command where "
            f"its files are now, and then grposweep retry: {shlex.join(arguments)} "
            f"outputs={shlex.quote(str(folder.path.parent))} name={shlex.quote(folder.path.name)}"
        )
    if (
        len(arguments) < 2
        or not start.is_dir()
        or not (arguments[1] == "-m" or (start / arguments[1]).is_file())
    ):
        raise UserError(
            f"{folder.path} does not record a command that can be run again. "
            "Run the sweep's own command, and then grposweep retry."
        )
    return [sys.executable, *arguments[1:]], start
