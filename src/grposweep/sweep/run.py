"""A sweep from its space to its leaderboard; a single run is a sweep of one point."""

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from grposweep.config.checks import check_tracker, check_words
from grposweep.config.points import Points
from grposweep.config.read import prepared_key, sweep_identity
from grposweep.config.schema import Experiment
from grposweep.errors import BadInput
from grposweep.fixes import render_problem
from grposweep.launch.build import build_launcher, build_preparer, is_dry
from grposweep.launch.controller_job import hands_over, submit_controller
from grposweep.launch.local import build_processes
from grposweep.report.tables import build_console, invalid_table
from grposweep.rules import errors
from grposweep.search.census import take_census
from grposweep.search.journal import Direction
from grposweep.search.judge import Judge, Verdicts
from grposweep.search.mirror import Mirror
from grposweep.search.one_factor import judge_one_by_one
from grposweep.search.replicates import build_replication
from grposweep.search.sampler import LISTED, choose_sampler, continuous
from grposweep.search.space import Space, freeze
from grposweep.search.stopping import build_stopping, choose_stopping
from grposweep.search.study import RECORDED_INVALID, SweepStudy
from grposweep.sweep.at_end import run_on_end
from grposweep.sweep.controller import Controller
from grposweep.sweep.enqueue import read_enqueued
from grposweep.sweep.folder import SweepFolder
from grposweep.sweep.further import further_of
from grposweep.sweep.lease import Lease
from grposweep.sweep.memory import too_large
from grposweep.sweep.opening import default_name, describe_sweep, open_folder, write_invalid
from grposweep.sweep.overseer import Overseer
from grposweep.sweep.prepare import prepare
from grposweep.sweep.proposals import Proposals
from grposweep.sweep.provenance import collect_provenance
from grposweep.sweep.rebuild import open_study
from grposweep.sweep.say import detached, say_results, say_scale
from grposweep.sweep.settler import Settler
from grposweep.sweep.summary import invalid_rows
from grposweep.sweep.warm_start import NAME as WARM_START
from grposweep.sweep.warm_start import check_sources, open_warm_start, words_of_warm_start
from grposweep.sweep.work import counting_interrupts, work

EXIT_FINISHED, EXIT_NOTHING, EXIT_INTERRUPTED = 0, 1, 130


def run_sweep(
    space: Space, points: Points, overrides: list[str], hint: str, origin: Mapping[str, Any] | None = None
) -> int:
    """Run, resume or extend the sweep of a space; returns the exit code.

    ``overrides`` are shared by all points; ``hint`` opens the default name; ``origin`` goes into the provenance.
    Raises BadInput before anything starts.
    """
    console = build_console()
    base = points.base
    check_words(base)
    check_tracker(base)
    sampler = _sampler(base, space)
    judge = Judge(space, points)
    judge.check_dials()
    census = _judged(console, judge, sampler)
    enqueued = read_enqueued(base.search.enqueue, space, judge)
    identity, provenance = sweep_identity(space.describe(), base), {**collect_provenance(base), **(origin or {})}
    path = Path(base.outputs) / (base.name or default_name(hint, space, identity))
    if base.search.warm_start and not (path / WARM_START).exists():
        provenance["warm_start"] = check_sources(base, space)
    with ExitStack() as stack:
        interrupts = stack.enter_context(counting_interrupts())
        folder, note = open_folder(path, identity, space, base, provenance)
        lease = stack.enter_context(Lease(folder.path / "lease.json"))
        if note is None:
            describe_sweep(folder, identity, space, base, overrides, provenance)
        console.print(f"sweep [bold]{path.name}[/] in {folder.path}{note or ''}", soft_wrap=True)
        processes = build_processes(base)
        stack.callback(processes.close)
        preparer = build_preparer(base.cluster, folder.path, processes)
        launcher = build_launcher(base, folder.path, processes, console)
        stack.callback(launcher.close)
        if not is_dry(base) and not prepare(folder, _preparable(judge, census), preparer, console, interrupts):
            return EXIT_INTERRUPTED
        if prepared := folder.prepared():
            judge.learn(prepared)
            census = _judged(console, judge, sampler)
        direction = cast(Direction, base.search.direction)  # check_words has seen it
        study, repairs = open_study(folder, space, direction, base.search.metric)
        for repair in repairs:
            console.print(repair, style="yellow", markup=False, soft_wrap=True)
        _record_invalid(console, folder, study, census, sampler)
        warm = open_warm_start(folder, base, judge)
        if base.search.further:
            study.weigh(further_of(folder, base.search.further))
        else:  # what earlier sweeps were worth in further objectives is not taken over
            study.learn([(seen.point, seen.value) for seen in warm.observations])
        if warm.first:
            console.print(words_of_warm_start(warm), highlight=False)
        study.replication = build_replication(base.search.sampler, base.seed, base.search.seeds, base.search.leaders)
        proposals = Proposals(
            study, judge, base.search, sampler, list(census.valid_points()), [*enqueued, *warm.first], base.force
        )
        proposals.too_large = partial(too_large, folder)
        settler = Settler(folder, study, judge, base.search, base.trainer.keep)
        settler.keep_best()  # an earlier controller may have died between an end and this
        stopping = build_stopping(choose_stopping(base.search.stopping, sampler, 1 + len(base.search.further)))
        overseer = Overseer(folder, study, base.search, stopping)
        proposals.foreseen = overseer.foreseen
        controller = Controller(
            folder, proposals, settler, launcher, lease, overrides, provenance, overseer, is_dry=is_dry(base)
        )
        mirror = None if base.search.storage is None else Mirror(base.search.storage, path.name, direction)
        say_scale(console, controller, base)
        if hands_over(base.cluster):
            stack.close()  # the job takes the lease
            console.print(submit_controller(base.cluster, folder.path), highlight=False, soft_wrap=True)
            return EXIT_FINISHED
        if is_dry(base):
            return _write_only(controller, console)
        ended_before = controller.ended
        work(controller, console, interrupts, census.invalid, mirror)
        if mirror is not None and not mirror.close():
            console.print(f"{mirror.problem}, at the next run of this command", style="yellow", markup=False)
        if interrupts.count and launcher.outlives and controller.running:
            console.print(detached(controller), highlight=False, soft_wrap=True)
            return EXIT_INTERRUPTED
        say_results(controller, console)
        if interrupts.count:
            console.print("interrupted; the same command goes on from here", highlight=False)
            return EXIT_INTERRUPTED
        stack.close()  # the user's command may read, copy or go on with the sweep
        if controller.ended > ended_before and (problem := run_on_end(controller)):
            console.print(problem, style="yellow", markup=False, highlight=False, soft_wrap=True)
        return EXIT_NOTHING if study.best is None or controller.stopped_itself else EXIT_FINISHED


def _sampler(base: Experiment, space: Space) -> str:
    """The sampler's name, ``auto`` resolved.

    Raises BadInput where it does not go with the space, or ``force`` not with a sweep.
    """
    if space.dials and base.force:
        raise BadInput("force=true: only a single run can be repeated. Give the sweep another name=... instead.")
    if base.search.seeds and any(dial.name == "seed" for dial in space.dials):
        raise BadInput(
            "seed is a dial and search.seeds is set: both would set the seed. Take seed out of the space, or set search.seeds=0."
        )
    sampler = choose_sampler(base.search.sampler, space, 1 + len(base.search.further))
    if sampler == "one_factor" and not base.search.seeds:
        raise BadInput("search.seeds=0: an effect without a spread tells nothing. Set search.seeds=5, say.")
    if sampler in LISTED and not space.is_finite:
        dials = ", ".join(continuous(space))
        raise BadInput(
            f"search={sampler}: {dials} has infinitely many values. List some (lr=1e-4,3e-4), or set search=tpe."
        )
    return sampler


def _judged(console: Console, judge: Judge, sampler: str) -> Verdicts:
    """The verdicts on the whole space.

    Raises BadInput where no point is valid: a single run's problems in words, a sweep's as a table.
    """
    census: Verdicts = judge_one_by_one(judge) if sampler == "one_factor" else take_census(judge)
    if census.valid:
        return census
    if not judge.space.dials:
        verdict = judge.verdict({})
        raise BadInput("\n".join(f"{p.code} {render_problem(verdict.setting, p)}" for p in errors(verdict.problems)))
    console.print(invalid_table(invalid_rows(census), census.invalid, census.total))
    raise BadInput(
        f"None of the {census.total} points of this space is valid, so there is nothing to search. "
        f"Change a dial or the base configuration as the table above says."
    )


def _preparable(judge: Judge, census: Verdicts) -> dict[str, Experiment]:
    """One experiment for each model and task among the valid points that really train."""
    dials = [dial.name for dial in judge.space.dials if dial.name.split(".")[0] in ("model", "task", "trainer")]
    distinct = {
        freeze({name: point[name] for name in dials if name in point}): point for point in census.valid_points()
    }
    experiments = [judge.verdict(point).experiment for point in distinct.values()]
    return {prepared_key(item): item for item in experiments if item.trainer.kind == "trl"}


def _record_invalid(console: Console, folder: SweepFolder, study: SweepStudy, census: Verdicts, sampler: str) -> None:
    """Print the invalid points by rule, keep them in a file, and a grid's in the study."""
    if not census.invalid:
        return
    console.print(invalid_table(invalid_rows(census), census.invalid, census.total))
    never = [f"{d}={label}" for d, labels in census.valid_by_label().items() for label, n in labels.items() if not n[0]]
    if never:
        console.print(f"never valid with the other dials as they are: {', '.join(never)}", highlight=False)
    write_invalid(folder, map(census.judge.verdict, census.invalid_points()), census.invalid)
    if sampler in LISTED:
        known = {freeze(trial.params) for trial in study.trials if trial.user_attrs.get("invalid")}
        for point in islice(census.invalid_points(), RECORDED_INVALID):
            if freeze(point) in known:
                continue
            problems = errors(census.judge.verdict(point).problems)
            study.add_invalid(point, [f"{problem.code} {problem.message}" for problem in problems])


def _write_only(controller: Controller, console: Console) -> int:
    """cluster=dry_run: everything that a submission needs is on disk, and its commands are on the screen."""
    controller.lease.check()
    controller.fill()
    written = f"{len(controller.running)} trials are written in {controller.folder.path} and none is submitted"
    console.print(f"{written}; the same command with cluster=slurm submits them", soft_wrap=True, highlight=False)
    console.print(f"results in {controller.folder.path}", soft_wrap=True, highlight=False)
    return EXIT_FINISHED
