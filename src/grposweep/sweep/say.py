"""What a sweep says to the person in front of it: its scale before, a line for each trial, the leaderboard after."""

import math
import os
from collections import Counter
from collections.abc import Sequence

from optuna.trial import FrozenTrial, TrialState
from rich.console import Console

from grposweep.labels import count
from grposweep.report.tables import Row, leaderboard
from grposweep.schema import Experiment
from grposweep.search.importance import find_importances
from grposweep.search.replication import is_replicate
from grposweep.search.study import SweepStudy
from grposweep.sweep.controller import Controller
from grposweep.sweep.disk import disk_report, estimate_bytes
from grposweep.sweep.effects import show_effects
from grposweep.sweep.further import words_of_front
from grposweep.sweep.on_seeds import words_on_seeds
from grposweep.sweep.summary import row as row_of
from grposweep.sweep.summary import rows, saved, spent

WARNED_POINTS = 100  # looked through for warnings


def say_scale(console: Console, controller: Controller, base: Experiment) -> None:
    """What is about to happen: how many trials, how many at once, how much disk; warnings of the rules, once each."""
    done = sum(trial.state.is_finished() for trial in controller.started)
    at_once = min(controller.launcher.slots, max(controller.queue.target, 1))
    recorded = f", {done} of them recorded already" if done else ""
    proposals = controller.queue
    what = f"{proposals.target} trials ({proposals.sampler})" if controller.study.space.parameters else "one run"
    if replicates := proposals.planned - proposals.target:
        what += f", then up to {replicates} on fresh seeds"
    console.print(
        f"{what}{recorded}, {at_once} at once, {count(base.cluster.processes, 'process')} each", highlight=False
    )
    if controller.spending.budget.hours is not None and done < proposals.planned:
        console.print(controller.spending.promise(proposals.planned), highlight=False)
    warnings = {
        (problem.code, problem.message): problem
        for point in controller.queue.valid_points[:WARNED_POINTS]
        for problem in controller.validator.validate(point).problems
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
    left = max(proposals.planned - done, 0)
    if left:
        needed = estimate_bytes(base, parameters, left, at_once)
        console.print(disk_report(needed, controller.folder.path), highlight=False)
    busy = at_once * base.cluster.processes * base.cluster.threads
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if left and busy > cores and not controller.launcher.outlives:
        console.print(f"{busy} busy threads on {cores} cores: trials will slow each other down", style="yellow")


def trial_line(controller: Controller, trial: FrozenTrial) -> str:
    """One lasting line for a trial that ended."""
    row = row_of(controller, trial)
    point = " ".join(f"{name}={label}" for name, label in row.dials.items())
    if trial.state == TrialState.PRUNED:
        reached = "" if trial.value is None else f" at {controller.search.metric} {trial.value:.4f}"
        return f"trial {row.number} stopped early{reached}: {row.note} {point}"
    if row.objective is None:
        return f"trial {row.number} failed: {row.note} ({controller.trial_folder(trial).path / 'logs'}) {point}"
    if is_replicate(trial):
        point = f"is trial {trial.user_attrs['of']} on seed {trial.user_attrs['seed']}"
    started = "" if row.start is None else f" (start {row.start:.4f})"
    return f"trial {row.number} {controller.search.metric} {row.objective:.4f}{started} {point}"


def words_of_importances(study: SweepStudy) -> str:
    """Which dials decided, in one line; empty where too few trials have finished to tell."""
    finished = [trial for trial in study.searched if trial.state == TrialState.COMPLETE and trial.value is not None]
    dials = {dial.name: dial for dial in study.space.parameters}
    points, values = [dict(trial.params) for trial in finished], [trial.value or 0.0 for trial in finished]
    shares = find_importances(dials, points, values, maximize=study.sign > 0)
    return "what decided: " + ", ".join(f"{name} {share:.0%}" for name, share in shares.items()) if shares else ""


def say_results(controller: Controller, console: Console) -> None:
    """The leaderboard, what the winner gained, what failed, and the folder."""
    table = rows(controller)
    compares = controller.queue.sampler == "one_factor"
    if compares:
        console.print(show_effects(controller.folder, controller.study, controller.search.metric))
    elif table:
        console.print(leaderboard(table, controller.search.metric, controller.search.direction))
    best = controller.study.best
    if best is not None:
        console.print(_winner(next(row for row in table if row.number == best.number)), highlight=False)
        if text := words_of_front(controller.study):
            console.print(text, highlight=False)
        for line in [] if compares else words_on_seeds(controller.study.ranking):
            console.print(line, highlight=False)
        model = controller.trial_folder(best).path / "model"
        if model.is_dir():
            console.print(f"its model is in {model}", soft_wrap=True, highlight=False)
    if text := words_of_importances(controller.study):
        console.print(text, highlight=False)
    failed = [row for row in table if row.status == "failed"]
    if failed:
        console.print(f"{len(failed)} failed, first: {failed[0].note}", style="yellow", markup=False)
    for text in filter(None, (early(controller, table), words_of_paused(table))):
        console.print(text, highlight=False, soft_wrap=True)
    console.print(f"spent: {spent(controller)}", highlight=False)
    if controller.stopped_itself:
        _say_halted(controller, console)
    if controller.spending.overspent:
        _say_overspent(controller, console)
    if left_out := controller.queue.left_out:
        trial = next(iter(left_out.values()))
        text = (
            f"{count(len(left_out), 'point')} left out: trial {trial} showed that a GPU's memory is too small for them"
        )
        console.print(text, style="yellow", highlight=False)
    if controller.queue.exhausted:
        console.print("no further valid point is left to try", highlight=False)
    console.print(f"results in {controller.folder.path}", soft_wrap=True, highlight=False)


def early(controller: Controller, table: Sequence[Row]) -> str:
    """How many trials were stopped early, and what that saved; empty where none was."""
    counts = Counter(row.status for row in table)
    if not counts["stopped early"]:
        return ""
    share = saved(controller)
    gain = "" if share is None else f" (saved {share:.0%} of the completions)"
    collapsed = sum(
        controller.trial_folder(t).result.failure is not None
        for t in controller.started
        if t.state == TrialState.PRUNED
    )
    broke = (
        f", {collapsed} of them because {'its' if collapsed == 1 else 'their'} training had collapsed"
        if collapsed
        else ""
    )
    return f"{counts['finished']} finished, {counts['stopped early']} stopped early{gain}{broke}"


def words_of_paused(table: Sequence[Row]) -> str:
    """How many trials an interrupt finds paused, and what that means; empty where none is."""
    paused = sum(row.status == "paused" for row in table)
    what = "behind the best so far, and kept to go on if that changes"
    return f"{count(paused, 'trial')} paused: {what}" if paused else ""


def _say_halted(controller: Controller, console: Console) -> None:
    """That the sweep stopped itself, why, and that nothing is lost."""
    why = controller.outcomes.halted or controller.unwritable
    left = controller.queue.planned - sum(trial.state.is_finished() for trial in controller.started)
    text = f"stopped, with {count(left, 'trial')} to go: {why}. Mend that; the same command goes on from here"
    console.print(text, style="red", highlight=False, markup=False)


def _say_overspent(controller: Controller, console: Console) -> None:
    """That the budget ended the sweep, where it did, and how to go on."""
    ended = sum(trial.state.is_finished() for trial in controller.started)
    left = controller.queue.planned - ended
    if left:
        budget, wanted = (
            f"search.budget_gpu_hours={controller.search.budget_gpu_hours:g}",
            controller.spending.budget.wanted,
        )
        rest = (controller.search.budget_gpu_hours or 0.0) - controller.spending.hours()
        state = (
            "is spent"
            if wanted is None
            else f"has {rest:.2g} left, less than the {wanted:.2g} that the next trial takes,"
        )
        text = f"{budget} {state} with {count(left, 'trial')} to go; the same command with a higher one goes on"
        console.print(text, style="yellow", highlight=False)


def _winner(row: Row) -> str:
    """The best trial against the same model before training, on the same held-out prompts."""
    text = f"best: trial {row.number}"
    if row.objective is None or row.start is None:
        return text
    gain = row.objective - row.start
    text += f", {row.objective:.4f} against {row.start:.4f} before training: {gain:+.4f}"
    error = math.hypot(row.error or 0.0, row.start_error or 0.0)
    return text + (f" ({abs(gain) / error:.1f} standard errors)" if error else "")
