"""Run a sweep from its space to its leaderboard. A single run is a sweep of one point.

`run_sweep` is a sequence of phases: validate, open, prepare, build, control. The loop ticks the
controller, refreshes the live display and counts interrupts. At the end it prints the summary and
runs the user's command (``search.on_end``). All that is shown is rendered by ``report`` from the
sweep's folder.
"""

import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from rich.console import Console
from rich.text import Text

from grporecipe.errors import ExitCode, UserError
from grporecipe.files import Config, Json
from grporecipe.model.planning import total_completions
from grporecipe.rules.check import RECIPE_RULES, Problem
from grposweep.command.asked import find_inputs
from grposweep.config.identity import sweep_identity
from grposweep.config.search_budget import Budget
from grposweep.config.trial_plan import known_part
from grposweep.launchers import build_launcher, launcher_class
from grposweep.launchers.base import Launcher
from grposweep.process import run_command
from grposweep.report.run_output import (
    LiveDisplay,
    RunEnd,
    print_results,
    trial_line,
    write_effects,
)
from grposweep.report.space_summary import (
    SpaceSummary,
    print_invalid_points,
    print_space_summary,
    print_what_differs,
)
from grposweep.report.tables import build_console
from grposweep.report.trial_view import State
from grposweep.report.view import SweepReader
from grposweep.schema import Search
from grposweep.schema.registries import BASE, is_external
from grposweep.search.early_stopping.rungs import describe_budget
from grposweep.search.mirror import JournalMirror, Mirror, RdbMirror
from grposweep.search.sampler import lists_points
from grposweep.search.sampling import describe_resolution
from grposweep.search.space import Direction, Point
from grposweep.storage import paths
from grposweep.storage.folders import SweepFolder, remember
from grposweep.storage.inputs import Inputs
from grposweep.storage.lease import Lease
from grposweep.storage.provenance import collect_provenance, note_command
from grposweep.storage.records import SweepProgress
from grposweep.sweep._controller import Controller
from grposweep.sweep._gpus import advise_mps, share_gpus
from grposweep.sweep._interrupts import SignalCounter, counting_interrupts
from grposweep.sweep._log import controller_log
from grposweep.sweep._resume import (
    agree_on_inputs,
    default_name,
    describe_sweep,
    leaving_nothing,
    open_folder,
    renew_untrained,
)
from grposweep.sweep._shared_server import SharedServer
from grposweep.sweep._start import build_controller, build_study, prepare_sweep, record_invalid
from grposweep.sweep._task_check import newer_trl
from grposweep.sweep._warm_start import (
    describe_source,
    describe_warm_start,
    find_sources,
    open_warm_start,
    propose_warm_start,
)
from grposweep.sweep.retry import reopen_failed
from grposweep.sweep.validate import ValidatedSpace, choose_evaluations_of, validate_space

logger = logging.getLogger(__name__)
# the rule on known defects of a command's release
DEFECTS = "GV120"
# valid points whose warnings are printed
CHECKED_POINTS = 100
# after which the command of search.on_end is ended
PATIENCE_SECONDS = 600.0


def name_status(controller: Controller) -> str:
    """``finished``; ``stopped``: by itself, something has to be corrected; ``budget``: it is spent;
    ``failed``: no result.
    """
    if controller.stopped_itself:
        return "stopped"
    if controller.study.best is None:
        return "failed"
    return "budget" if controller.is_out_of_budget else "finished"


POLL_SECONDS = 0.1
SHOW_SECONDS = 0.5


def run_trials(
    controller: Controller,
    console: Console,
    interrupts: SignalCounter,
    invalid: int,
    mirrors: Sequence[Mirror],
    reader: SweepReader,
) -> dict[str, int]:
    """Tick until nothing is left. The first interrupt stops trials at rollout boundaries, the
    second ends them now.

    Return the reasons of the failures that were printed, each with the number of its first trial.
    """
    reasons: dict[str, int] = {}
    printed: set[int] = {trial.number for trial in controller.started if trial.state.is_finished()}
    interrupted, shown, notice, written = 0, 0.0, "", SweepProgress()
    with LiveDisplay(console) as display:
        while True:
            if interrupts.count and controller.launcher.outlives:
                return reasons
            if interrupts.count > interrupted:
                interrupted = interrupts.count
                notice = _interrupt(controller, interrupted)
                display.say(notice)
            done = controller.tick()
            for mirror in mirrors:
                mirror.show(controller.study.trials)
            while controller.outcomes.news:
                display.say(controller.outcomes.news.pop(0))
            for trial in controller.started:
                if trial.state.is_finished() and trial.number not in printed:
                    printed.add(trial.number)
                    ended = reader.trial(controller.folder.of(trial))
                    alike = None
                    if ended.state is State.FAILED:
                        first = reasons.setdefault(ended.failure_words, ended.number)
                        alike = first if first != ended.number else None
                    display.say(trial_line(ended, controller.search.metric, alike))
                    spread = ended.sampling
                    is_first = len(printed) == 1 < controller.queue.planned
                    if is_first and spread.error and spread.means:
                        line = describe_resolution(spread.error, len(spread.means))
                        display.say(f"trial {ended.number}: by its spread {line}")
            if done:
                _write_progress(controller, invalid, written)
                return reasons
            if time.monotonic() - shown > SHOW_SECONDS:
                shown = time.monotonic()
                written = _write_progress(controller, invalid, written)
                if display.is_live:
                    problem = (
                        notice
                        or controller.trouble
                        or next((m.problem for m in mirrors if m.problem), "")
                    )
                    display.show(reader.read(written), problem)
            time.sleep(POLL_SECONDS)


def _write_progress(controller: Controller, invalid: int, written: SweepProgress) -> SweepProgress:
    """Write outlook.json if its content has changed, and return the content."""
    now = _progress(controller, invalid)
    if now != written:
        # a full disk is reported by what writes a trial's files
        with contextlib.suppress(OSError):
            now.write(controller.folder.path)
    return now


def _progress(controller: Controller, invalid: int) -> SweepProgress:
    """Return the facts that readers of the folder cannot derive from the trials. ``invalid``:
    points of the finite parameters.
    """
    queue = controller.queue
    search = controller.search
    valid = None if queue.is_sampled else len(queue.valid_points)
    waits: dict[int, Any] = {
        number: controller.launcher.waiting(item.job_id)
        for number, item in sorted(controller.running.items())
    }
    waits |= controller.waiting
    return SweepProgress(
        target=queue.planned,
        at_once=controller.launcher.slots,
        sampler=queue.sampler,
        budget_hours=controller.spending.limit,
        points=None if valid is None else valid + invalid,
        valid=valid,
        seeds=search.seeds,
        leaders=search.leaders,
        waiting={str(number): str(reason) for number, reason in waits.items() if reason},
        notice=controller.trouble,
        rests=controller.rests,
        share=controller.early_stopping.stopping.effort,
    )


def _interrupt(controller: Controller, times: int) -> str:
    """Act on a request to stop, and return the message for the user."""
    if times == 1:
        controller.stop()
        return (
            "stopping at the next rollout boundary; Ctrl-C again ends the trials now (both "
            "can be resumed)"
        )
    controller.kill()
    return "ending the trials now"


@dataclass(frozen=True)
class _Validated:
    """What is known of a sweep before anything of it exists."""

    space: ValidatedSpace
    identity: str
    folder: SweepFolder
    # Shared by all points.
    overrides: list[str]
    # The user's files that trials depend on.
    inputs: Inputs
    provenance: Json


@dataclass(frozen=True)
class _Opened(_Validated):
    """A sweep whose folder this process owns."""

    lease: Lease
    console: Console
    interrupts: SignalCounter


@dataclass(frozen=True)
class _Prepared(_Opened):
    """A sweep whose models and data are counted, and which trains where its launcher says."""

    launcher: Launcher


def run_sweep(
    space: ValidatedSpace,
    overrides: list[str],
    hint: str,
    origin: Config | None = None,
    keep: Callable[[Path], object] | None = None,
    study: str = "",
) -> int:
    """Run, resume or extend a validated sweep; returns the exit code.

    ``overrides`` are shared by all points; ``hint`` opens the default name, or the sweep's file
    (``study``) does; ``origin`` goes into the provenance. ``keep`` puts what the trials start from
    into the sweep's folder. Raises UserError before anything starts.
    """
    validated = _validate(space, overrides, hint, study, origin or {})
    with leaving_nothing(validated.folder), ExitStack() as stack:
        opened = _open(validated, keep, stack)
        prepared = _prepare(opened, stack)
        if prepared is None:
            return ExitCode.INTERRUPTED
        controller = _build(prepared, stack)
        return _control(prepared, controller, stack)


def _validate(
    space: ValidatedSpace, overrides: list[str], hint: str, study: str, origin: Config
) -> _Validated:
    """Find the sweep's folder, the evaluations that its effort needs, and the user's files."""
    base = space.base
    points = space.validator.points
    check_names(Path.cwd(), Path(base.outputs).resolve())
    identity = sweep_identity(space.space.identity(), points.base)
    name = base.name or default_name(hint, space.space, identity, study)
    folder = SweepFolder(Path(base.outputs) / name)
    evaluations = choose_evaluations_of(folder, space, overrides)
    if evaluations:
        overrides = [*overrides, *evaluations]
        space = validate_space(space.space, points.fixed(evaluations))

    inputs = find_inputs(space.distinct("model", "task", "trainer"))
    provenance = {**collect_provenance(inputs), **origin}
    if base.search.warm_start and not folder.has(paths.WARM_START):
        sources = find_sources(folder, base, space.space)
        provenance["warm_start"] = list(map(describe_source, sources))
    scheduler = launcher_class(base.cluster.kind).scheduler
    # A resume waits for a scheduler that does not answer.
    if scheduler is not None and not folder.path.exists():
        scheduler.check_available()
    return _Validated(space, identity, folder, overrides, inputs, provenance)


def _open(
    validated: _Validated, keep: Callable[[Path], object] | None, stack: ExitStack
) -> _Opened:
    """Take the lease of the sweep's folder, and write the sweep and the user's files into it."""
    console = build_console()
    base = validated.space.base
    space, identity, provenance = validated.space.space, validated.identity, validated.provenance
    interrupts = stack.enter_context(counting_interrupts())
    folder, note = open_folder(validated.folder, identity, space, base, provenance)
    lease = stack.enter_context(Lease(folder.lease))
    describe_sweep(folder, note is None, identity, space, base, validated.overrides, provenance)
    if keep is not None:
        keep(folder.path)
    agreed = agree_on_inputs(folder, base.search.changed_files, validated.inputs)
    provenance |= {"files": agreed.digests, "copies": agreed.copies or ""}
    renew_untrained(folder, provenance)
    stack.enter_context(controller_log(folder.path, console, base.verbose))
    logger.info(
        "controller %d on %s takes the lease%s",
        os.getpid(),
        socket.gethostname(),
        note or "; a new sweep",
    )
    remember(Path(base.outputs))

    name = Text.assemble("sweep ", (folder.path.name, "bold"), f" in {folder.path}{note or ''}")
    console.print(name, soft_wrap=True)
    warnings = [newer_trl(validated.space.distinct("trainer", "cluster"))]
    if note is not None:
        warnings = [*SweepReader(folder).read().damage, *warnings]
    for line in filter(None, warnings):
        console.print(line, style="yellow", soft_wrap=True)
    parts = {**vars(validated), "folder": folder}
    return _Opened(**parts, lease=lease, console=console, interrupts=interrupts)


def _prepare(opened: _Opened, stack: ExitStack) -> _Prepared | None:
    """Prepare models and data where the trials will run; None if the user interrupted it."""
    space, folder, console = opened.space, opened.folder, opened.console
    say = partial(console.print, soft_wrap=True)
    shared = share_gpus(space, console)
    advice = advise_mps(shared.cluster)
    if advice:
        say(advice)
    launcher = build_launcher(shared, folder.path, say)
    stack.callback(launcher.close)
    for experiment in space.distinct("cluster", "generation", "trainer"):
        launcher.admit(experiment)

    if not launcher.is_dry:
        models = space.preparable()
        if not prepare_sweep(folder, models, launcher, console, opened.interrupts):
            return None
    counted = folder.prepared()
    if counted:
        space = space.learn(counted)
    return _Prepared(**{**vars(opened), "space": space}, launcher=launcher)


def _build(prepared: _Prepared, stack: ExitStack) -> Controller:
    """Build the controller. Say which trials are tried again, and which points are invalid."""
    space, launcher, folder = prepared.space, prepared.launcher, prepared.folder
    console = prepared.console
    provenance = prepared.provenance
    experiments = space.distinct("model", "generation", "trainer", "task")
    server = SharedServer.of(folder.path, experiments, folder.prepared(), launcher)
    if not launcher.is_dry:
        for line in reopen_failed(folder, space.validator, provenance):
            console.print(line, soft_wrap=True)
            logger.info("%s", line)

    study = build_study(folder, space)
    record_invalid(folder, study, space)
    print_invalid_points(console, space.validity)
    print_what_differs(console, space.validity)
    warm = open_warm_start(folder, space, prepared.inputs, provenance)
    line = ""
    if space.base.search.warm_start:
        line = describe_warm_start(warm)
    elif not (study.trials or lists_points(space.sampler)):
        line = propose_warm_start(folder, space.base, space.space)
    if line:
        console.print(line, soft_wrap=True)
    controller = build_controller(
        folder, study, space, warm, launcher, prepared.lease, prepared.overrides, provenance
    )
    if server is not None:
        controller.server = server
        stack.callback(lambda: server.close(is_used=bool(controller.running)))
    if not launcher.is_dry:
        note_command(folder.path, provenance)
    return controller


def check_names(*folders: Path) -> None:
    """Raise UserError for a folder whose name is not UTF-8. A sweep's files name it, and a text
    file cannot.
    """
    for folder in folders:
        try:
            str(folder).encode()
        except UnicodeEncodeError as error:
            shown = os.fsencode(folder).decode("utf-8", "backslashreplace")
            raise UserError(
                f"{shown} has a name that is not UTF-8, so the files of a sweep cannot state it. "
                "Rename the folder, or start in another one."
            ) from error


def _control(prepared: _Prepared, controller: Controller, stack: ExitStack) -> int:
    """Run a controller to its end. ``stack`` holds the lease and all that runs."""
    base, launcher, folder = prepared.space.base, prepared.launcher, prepared.folder
    console = prepared.console
    interrupts = prepared.interrupts
    mirrors = _mirrors(controller, base.search)
    warnings: list[Problem] = []
    for point in controller.queue.valid_points[:CHECKED_POINTS]:
        warnings += controller.validator.validate(point).problems
    print_space_summary(
        console, _space_summary(controller), base, warnings, folder.prepared(), folder.path
    )
    if left_out := _describe_left_out(controller):
        console.print(left_out, style="yellow", soft_wrap=True)
    notes = list(controller.validator.fields.notes)
    if is_external(base.trainer) and DEFECTS not in base.rules.ignore:
        swept = {
            parameter.name.partition(".args.")[2] for parameter in controller.study.space.parameters
        }
        for defect in RECIPE_RULES[DEFECTS].judge(BASE.load().of(base).recipe):
            # a swept key has other values than the base's; lint has the notes as well
            if swept.isdisjoint(defect.fields) and defect.severity != "note":
                notes.append(f"{DEFECTS} {defect.what}: {defect.why}. {defect.instead}")
    for line in notes:
        console.print(f"warning {line}", style="yellow", soft_wrap=True)
    command = [sys.executable, *run_command(), *sys.argv[1:]]
    if launcher.is_dry:
        return _write_only(controller, console, command)
    if launcher.submit_controller is not None:
        # The job takes the lease.
        stack.close()
        console.print(launcher.submit_controller(command), soft_wrap=True)
        return ExitCode.FINISHED

    ended_before = controller.ended
    reader = SweepReader(folder)
    invalid = prepared.space.validity.invalid
    try:
        reasons = run_trials(controller, console, interrupts, invalid, mirrors, reader)
    except UserError as error:
        # A job was refused; the others continue.
        running = controller.running.values()
        left = [item.job_id for item in running if item.folder.open_attempt() is not None]
        if left and launcher.outlives:
            raise UserError(f"{error}\n{launcher.detach_message(left)}") from error
        raise
    for mirror in mirrors:
        if not mirror.close():
            problem = f"{mirror.problem}, at the next run of this command"
            console.print(problem, style="yellow")

    end = name_status(controller)
    code = ExitCode.FINISHED
    if interrupts.count:
        end = "interrupted"
        code = ExitCode.INTERRUPTED
    elif controller.study.best is None or controller.stopped_itself:
        code = ExitCode.FAILED
    logger.info("the controller ends: %s, exit code %d", end, code)
    if interrupts.count and launcher.outlives and controller.running:
        console.print(_detach_message(controller), soft_wrap=True)
        return code
    view = reader.read(_progress(controller, invalid))
    reader.complete_summary()
    write_effects(view)
    print_results(console, view, _run_end(controller, reasons))
    if interrupts.count:
        console.print("interrupted; run the same command to continue")
        return code
    # The user's command may read, copy or continue with the sweep.
    stack.close()
    if controller.ended > ended_before:
        _run_on_end(controller, console)
    return code


def _run_on_end(controller: Controller, console: Console) -> None:
    """Run the user's command with the end of the sweep in its environment. Its failure prints one
    line.
    """
    command = controller.search.on_end
    if command is None:
        return
    best, name, objective = controller.study.best, "", ""
    if best is not None:
        name = controller.folder.of(best).path.name
        objective = repr(best.value)
    variables = {
        "GRPOSWEEP_SWEEP": str(controller.folder.path),
        "GRPOSWEEP_STATUS": name_status(controller),
        "GRPOSWEEP_METRIC": controller.search.metric,
        "GRPOSWEEP_BEST_TRIAL": name,
        "GRPOSWEEP_OBJECTIVE": objective,
    }
    try:
        code = subprocess.run(
            ["sh", "-c", command],
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE_SECONDS,
            check=False,
        ).returncode
        problem = f" with exit code {code}: {command}" if code else ""
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        problem = f": {error}"
    if problem:
        console.print(f"search.on_end failed{problem}", style="yellow", soft_wrap=True)


def _describe_left_out(controller: Controller) -> str:
    """Return what the number of trials leaves out; empty if nothing."""
    queue = controller.queue
    most = controller.search.trials
    begun = len(controller.study.searched)
    points = len(queue.valid_points)
    if most is None:
        return ""
    if not controller.study.space.parameters:
        return (
            f"search.trials={most}: this is a single run. To repeat it on fresh seeds, set "
            "search.seeds=5."
        )
    if begun > most:
        return f"search.trials={most}: {begun} trials have begun, so no further one starts"
    if lists_points(queue.sampler) and points > most:
        return f"search.trials={most}: only so many of {points} points are trained"
    return ""


def _space_summary(controller: Controller) -> SpaceSummary:
    queue = controller.queue
    sampler = ""
    points: Sequence[Point] = [{}]
    if controller.study.space.parameters:
        sampler = queue.sampler
        points = queue.valid_points[:CHECKED_POINTS]
    return SpaceSummary(
        trials=queue.target,
        replicates=queue.planned - queue.target,
        recorded=controller.ended,
        at_once=min(controller.launcher.slots, max(queue.target, 1)),
        sampler=sampler,
        plan=_plan(controller, points),
        is_local=not controller.launcher.outlives,
        is_new=not controller.launcher.is_dry and not controller.study.started,
        effort=controller.early_stopping.stopping.effort,
        settings=[controller.validator.validate(point).setting for point in points],
    )


def _plan(controller: Controller, points: Sequence[Point]) -> str:
    """Return what ``search.budget`` is for in words; empty without one. Raises UserError if it is
    less than one training.
    """
    if controller.search.budget is None:
        return ""
    budget = Budget.parse(controller.search.budget)
    settings = [known_part(controller.validator.validate(point).setting) for point in points]
    totals = list(filter(None, map(total_completions, settings)))
    named = f"search.budget={controller.search.budget}"
    if controller.early_stopping.budgeted() is None:
        return (
            f"{named}: once these GPU hours are spent, nothing starts and running trials "
            "stop at a rollout boundary"
        )
    if budget.unit == "h" or (not budget.unit and not totals):
        return f"{named}: how many trials start is known after the first evaluations"
    trainings = budget.amount if budget.unit else budget.amount / fmean(totals)
    if trainings < 1:
        raise UserError(
            f"{named}: without a unit it is an amount of completions, and one training has "
            f"{fmean(totals):.0f}, so no trial could finish. For whole trainings set {named}x."
        )
    return (
        f"{named}: "
        f"{describe_budget(trainings, controller.validator.points.base.schedule.evaluations)}"
    )


def _run_end(controller: Controller, reasons: Mapping[str, int]) -> RunEnd:
    left_out = controller.queue.left_out
    is_planned = controller.early_stopping.budgeted() is not None
    return RunEnd(
        halted=controller.outcomes.halted or controller.unwritable,
        is_spent=controller.is_spent,
        left_out=len(left_out),
        left_out_by=next(iter(left_out.values()), 0),
        exhausted=controller.queue.exhausted,
        effort=controller.early_stopping.stopping.effort,
        budget=(is_planned and controller.search.budget) or "",
        reasons=reasons,
    )


def _mirrors(controller: Controller, search: Search) -> list[Mirror]:
    """Return the study's copies: its journal, and the team's database if one is set.

    Raises UserError if that cannot be used.
    """
    direction = cast(Direction, search.direction)
    mirrors: list[Mirror] = [JournalMirror(controller.folder.path / paths.JOURNAL, direction)]
    if search.storage is not None:
        mirrors.append(RdbMirror(search.storage, controller.folder.path.name, direction))
    return mirrors


def _write_only(controller: Controller, console: Console, command: Sequence[str]) -> int:
    """Write everything that a submission needs. The launcher prints the commands."""
    controller.lease.check()
    controller.fill()
    submit = controller.launcher.submit_controller
    if submit is not None:
        console.print(submit(command), soft_wrap=True)
    console.print(_detach_message(controller), soft_wrap=True)
    return ExitCode.FINISHED


def _detach_message(controller: Controller) -> str:
    """Return a message on the attempts that the controller leaves, and the path of the results."""
    message = controller.launcher.detach_message(
        [running.job_id for running in controller.running.values()]
    )
    return f"{message}\nresults in {controller.folder.path}"
