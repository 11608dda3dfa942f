"""A sweep from its space to its leaderboard; a single run is a sweep of one point."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from grposweep.config.checks import check_tracker, check_words
from grposweep.config.points import Points
from grposweep.config.read import sweep_identity
from grposweep.config.schema import Search
from grposweep.launch.build import build_launcher, build_preparer, is_dry
from grposweep.launch.controller_job import hands_over, submit_controller
from grposweep.launch.local import build_processes
from grposweep.report.tables import build_console
from grposweep.search.journal import Direction
from grposweep.search.mirror import Mirror
from grposweep.search.space import Space
from grposweep.sweep.at_end import run_on_end
from grposweep.sweep.build import build_controller
from grposweep.sweep.controller import Controller
from grposweep.sweep.judged import Judged, judge_space
from grposweep.sweep.lease import Lease
from grposweep.sweep.opening import default_name, describe_sweep, open_folder
from grposweep.sweep.prepare import prepare
from grposweep.sweep.provenance import collect_provenance
from grposweep.sweep.say import detached, say_results, say_scale
from grposweep.sweep.warm_start import NAME as WARM_START
from grposweep.sweep.warm_start import check_sources
from grposweep.sweep.work import Interrupts, counting_interrupts, work

EXIT_FINISHED, EXIT_NOTHING, EXIT_INTERRUPTED = 0, 1, 130


def run_sweep(
    space: Space, points: Points, overrides: list[str], hint: str, origin: Mapping[str, Any] | None = None
) -> int:
    """Run, resume or extend the sweep of a space; returns the exit code.

    ``overrides`` are shared by all points; ``hint`` opens the default name; ``origin`` goes into the provenance.
    Raises BadInput before anything starts.
    """
    console, base = build_console(), points.base
    check_words(base)
    check_tracker(base)
    judged = judge_space(console, space, points)
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
        if not is_dry(base) and not prepare(folder, judged.preparable(), preparer, console, interrupts):
            return EXIT_INTERRUPTED
        if prepared := folder.prepared():
            judged = judged.learn(prepared, console)
        controller = build_controller(console, folder, judged, launcher, lease, overrides, provenance)
        return _play(console, controller, judged, interrupts, stack)


def _play(console: Console, controller: Controller, judged: Judged, interrupts: Interrupts, stack: ExitStack) -> int:
    """From a controller that is ready to its last word; ``stack`` holds the lease and whatever runs."""
    base, folder = judged.base, controller.folder
    mirror = _mirror(controller, base.search)
    say_scale(console, controller, base)
    if hands_over(base.cluster):
        stack.close()  # the job takes the lease
        console.print(submit_controller(base.cluster, folder.path), highlight=False, soft_wrap=True)
        return EXIT_FINISHED
    if is_dry(base):
        return _write_only(controller, console)
    ended_before = controller.ended
    work(controller, console, interrupts, judged.census.invalid, mirror)
    if mirror is not None and not mirror.close():
        console.print(f"{mirror.problem}, at the next run of this command", style="yellow", markup=False)
    if interrupts.count and controller.launcher.outlives and controller.running:
        console.print(detached(controller), highlight=False, soft_wrap=True)
        return EXIT_INTERRUPTED
    say_results(controller, console)
    if interrupts.count:
        console.print("interrupted; the same command goes on from here", highlight=False)
        return EXIT_INTERRUPTED
    stack.close()  # the user's command may read, copy or go on with the sweep
    if controller.ended > ended_before and (problem := run_on_end(controller)):
        console.print(problem, style="yellow", markup=False, highlight=False, soft_wrap=True)
    return EXIT_NOTHING if controller.study.best is None or controller.stopped_itself else EXIT_FINISHED


def _mirror(controller: Controller, search: Search) -> Mirror | None:
    """The team's database, where there is one. Raises BadInput where it can be none."""
    if search.storage is None:
        return None
    return Mirror(search.storage, controller.folder.path.name, cast(Direction, search.direction))


def _write_only(controller: Controller, console: Console) -> int:
    """cluster=dry_run: everything that a submission needs is on disk, and its commands are on the screen."""
    controller.lease.check()
    controller.fill()
    written = f"{len(controller.running)} trials are written in {controller.folder.path} and none is submitted"
    console.print(f"{written}; the same command with cluster=slurm submits them", soft_wrap=True, highlight=False)
    console.print(f"results in {controller.folder.path}", soft_wrap=True, highlight=False)
    return EXIT_FINISHED
