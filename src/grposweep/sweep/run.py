"""A sweep from its space to its leaderboard; a single run is a sweep of one point."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, cast

from rich.console import Console

from grposweep.config.checks import check_words
from grposweep.config.points import Points
from grposweep.config.read import prepared_key, sweep_identity
from grposweep.config.schema import Experiment
from grposweep.errors import BadInput
from grposweep.launch.local import build_local
from grposweep.report.live import Display
from grposweep.report.tables import build_console, invalid_table, leaderboard
from grposweep.search.sampler import choose_sampler, continuous
from grposweep.search.space import Space
from grposweep.search.study import RECORDED_INVALID, Direction, SweepStudy
from grposweep.sweep.controller import Controller, recorded_points
from grposweep.sweep.disk import disk_report, estimate_bytes
from grposweep.sweep.enqueue import read_enqueued
from grposweep.sweep.folder import SweepFolder
from grposweep.sweep.judge import Judge, Verdict, check_dials, reasons, summarise
from grposweep.sweep.lease import Lease
from grposweep.sweep.opening import default_name, open_folder, write_invalid
from grposweep.sweep.prepare import prepare
from grposweep.sweep.provenance import collect_provenance
from grposweep.sweep.summary import invalid_rows, rows, snapshot

POLL_SECONDS = 0.1
SHOW_SECONDS = 0.5
EXIT_FINISHED, EXIT_NOTHING, EXIT_INTERRUPTED = 0, 1, 130


@dataclass
class Interrupts:
    """How often somebody asked us to stop."""

    count: int = 0

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        self.count += 1


@contextmanager
def counting_interrupts() -> Iterator[Interrupts]:
    """Ctrl-C and friendly termination are counted instead of raised, so that nothing is torn apart half-way."""
    interrupts = Interrupts()
    before = {number: signal.signal(number, interrupts) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_sweep(space: Space, points: Points, overrides: list[str], hint: str) -> int:
    """Run, resume or extend the sweep of a space; returns the exit code.

    ``overrides`` are shared by all points; ``hint`` opens the default name. Raises BadInput before anything starts.
    """
    console = build_console()
    base = points.base
    check_words(base)
    judge = Judge(space, points)
    verdicts = _judged(console, space, points, judge)
    sampler = choose_sampler(base.search.sampler, space)
    if sampler == "grid" and not space.is_finite:
        dials = ", ".join(continuous(space))
        raise BadInput(f"search=grid: {dials} has infinitely many values. List some (lr=1e-4,3e-4), or set search=tpe.")
    enqueued = read_enqueued(base.search.enqueue, space, judge)
    identity = sweep_identity(space.describe(), base)
    provenance = collect_provenance()
    name = base.name or default_name(hint, space, identity)
    with ExitStack() as stack:
        interrupts = stack.enter_context(counting_interrupts())
        folder, note = open_folder(Path(base.outputs) / name, identity, space, base, overrides, provenance)
        lease = stack.enter_context(Lease(folder.path / "lease.json"))
        console.print(f"sweep [bold]{name}[/] in {folder.path}{note}", soft_wrap=True)
        study = SweepStudy(folder.journal, space, cast(Direction, base.search.direction))  # check_words has seen it
        launcher = build_local(base, base.search.parallel)
        stack.callback(launcher.close)
        controller = Controller(
            folder, study, judge, launcher, lease, base.search, sampler, overrides, provenance,
            enqueued=enqueued, keep=base.trainer.keep, repeat=base.force,
        )  # fmt: skip
        if space.dials and base.force:
            raise BadInput("force=true: only a single run can be repeated. Give the sweep another name=... instead.")
        if not prepare(folder, _preparable(verdicts), launcher, console, interrupts):
            return EXIT_INTERRUPTED
        judge.learn(folder.prepared())
        verdicts = _judged(console, space, points, judge)
        _record_invalid(console, folder, study, verdicts, sampler)
        _say_scale(console, controller, base)
        _work(controller, console, interrupts, len(verdicts) - len(controller.valid_points))
        return _close(controller, console, interrupts)


def _judged(console: Console, space: Space, points: Points, judge: Judge) -> list[Verdict]:
    """Verdicts on the finite part of the space.

    Raises BadInput where no point is valid: a single run's problems in words, a sweep's as a table.
    """
    check_dials(space, points)
    verdicts = judge.finite()
    if any(verdict.is_valid for verdict in verdicts):
        return verdicts
    findings = summarise(verdicts)
    if not space.dials:
        raise BadInput("\n".join(f"{f.code} {f.message}. Set {', or '.join(f.fixes)}." for f in findings))
    console.print(invalid_table(invalid_rows(findings), len(verdicts), len(verdicts)))
    raise BadInput(
        f"None of the {len(verdicts)} points of this space is valid, so there is nothing to search. "
        f"Change a dial or the base configuration as the table above says."
    )


def _preparable(verdicts: list[Verdict]) -> dict[str, Experiment]:
    """One experiment for each model and task among the valid points that really train."""
    trained = [
        verdict.experiment for verdict in verdicts if verdict.is_valid and verdict.experiment.trainer.kind != "fake"
    ]
    return {prepared_key(experiment): experiment for experiment in trained}


def _record_invalid(
    console: Console, folder: SweepFolder, study: SweepStudy, verdicts: list[Verdict], sampler: str
) -> None:
    """Print the invalid points by rule, keep all of them in a file, and a grid's in the study."""
    invalid = [verdict for verdict in verdicts if not verdict.is_valid]
    if not invalid:
        return
    console.print(invalid_table(invalid_rows(summarise(invalid)), len(invalid), len(verdicts)))
    write_invalid(folder, invalid)
    known = recorded_points(study)
    if sampler == "grid" and not known:
        for verdict in invalid[:RECORDED_INVALID]:
            study.add_invalid(verdict.point, [f"{p['code']} {p['message']}" for p in reasons(verdict)])


def _say_scale(console: Console, controller: Controller, base: Experiment) -> None:
    """What is about to happen: how many trials, how many at once, how much disk; warnings of the rules, once each."""
    done = sum(trial.state.is_finished() for trial in controller.started)
    at_once = min(base.search.parallel, controller.launcher.slots)
    recorded = f", {done} of them recorded already" if done else ""
    what = "one run" if not controller.study.space.dials else f"{controller.target} trials ({controller.sampler})"
    console.print(
        f"{what}{recorded}, {at_once} at once, {_count(base.cluster.processes, 'process')} each", highlight=False
    )
    warnings = {
        (problem.code, problem.message): problem
        for verdict in controller.valid_points
        for problem in verdict.problems
        if problem.severity == "warning"
    }
    for (code, message), problem in list(warnings.items())[:5]:
        console.print(f"warning {code} {message}. {problem.broken.instead}", style="yellow", markup=False)
    if base.rules.ignore:
        console.print(f"rules switched off: {', '.join(base.rules.ignore)}", style="yellow")
    parameters = max(
        [entry.get("model", {}).get("parameters", 0) for entry in controller.folder.prepared().values()]
        + [base.model.shape.parameters]
    )
    left = max(controller.target - done, 0)
    if left:
        needed = estimate_bytes(base, parameters, left, at_once)
        console.print(disk_report(needed, controller.folder.path), highlight=False)
    busy = at_once * base.cluster.processes * base.cluster.threads
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if left and busy > cores:
        console.print(f"{busy} busy threads on {cores} cores: trials will slow each other down", style="yellow")


def _work(controller: Controller, console: Console, interrupts: Interrupts, invalid: int) -> None:
    """Tick until nothing is left; one request to stop ends at rollout boundaries, a second ends now."""
    said: set[int] = {trial.number for trial in controller.started if trial.state.is_finished()}
    seen, shown, notice = 0, 0.0, ""
    with Display(console) as display:
        while True:
            if interrupts.count > seen:
                seen = interrupts.count
                notice = _interrupt(controller, seen)
                display.say(notice)
            done = controller.tick()
            for trial in controller.started:
                if trial.state.is_finished() and trial.number not in said:
                    said.add(trial.number)
                    display.say(_line(controller, trial))
            if done:
                return
            if time.monotonic() - shown > SHOW_SECONDS:
                shown = time.monotonic()
                display.show(snapshot(controller, invalid, notice))
            time.sleep(POLL_SECONDS)


def _interrupt(controller: Controller, count: int) -> str:
    """Act on a request to stop; what to tell the person."""
    if count == 1:
        controller.stop()
        return "stopping at the next rollout boundary; Ctrl-C again ends the trials now (both can be resumed)"
    controller.kill()
    return "ending the trials now"


def _line(controller: Controller, trial: Any) -> str:
    """One lasting line for a trial that ended."""
    row = next(row for row in rows(controller) if row.number == trial.number)
    point = " ".join(f"{name}={label}" for name, label in row.dials.items())
    if row.objective is None:
        return f"trial {row.number} failed: {row.note} ({controller.trial_folder(trial).path / 'logs'}) {point}"
    started = "" if row.start is None else f" (start {row.start:.4f})"
    return f"trial {row.number} {controller.search.metric} {row.objective:.4f}{started} {point}"


def _close(controller: Controller, console: Console, interrupts: Interrupts) -> int:
    """The leaderboard, the folder, and the exit code."""
    table = rows(controller)
    best = controller.best()
    if table:
        console.print(leaderboard(table, controller.search.metric, controller.search.direction))
    if best is not None:
        folder = controller.trial_folder(best).path
        model = f", model in {folder / 'model'}" if (folder / "model").is_dir() else ""
        console.print(f"best: trial {best.number}{model}", soft_wrap=True, highlight=False)
    failed = [row for row in table if row.status == "failed"]
    if failed:
        console.print(f"{len(failed)} failed, first: {failed[0].note}", style="yellow", markup=False)
    if controller.exhausted:
        console.print("no further valid point is left to try", highlight=False)
    console.print(f"results in {controller.folder.path}", soft_wrap=True, highlight=False)
    if interrupts.count:
        console.print("interrupted; the same command goes on from here", highlight=False)
        return EXIT_INTERRUPTED
    return EXIT_FINISHED if best is not None else EXIT_NOTHING


def _count(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number} {noun}es" if noun.endswith("s") else f"{number} {noun}s"
