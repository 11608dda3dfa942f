"""From a controller's state to what the display and the leaderboard show."""

import time

from optuna.trial import FrozenTrial, TrialState

from grposweep.files import as_number
from grposweep.labels import label_text, short, short_names
from grposweep.report.live import Active, Snapshot
from grposweep.report.tables import InvalidRow, Row
from grposweep.search.space import Point
from grposweep.search.validity import SpaceValidity
from grposweep.storage.records import SweepProgress, read_metrics
from grposweep.sweep.attempts import RunningAttempt
from grposweep.sweep.controller import Controller
from grposweep.sweep.early_stopping import whole_completions
from grposweep.sweep.further import with_further
from grposweep.sweep.on_seeds import with_seeds

STATUS = {TrialState.COMPLETE: "finished", TrialState.FAIL: "failed", TrialState.PRUNED: "stopped early"}
LATEST = 20  # finished trials whose times say how long the next ones take


def snapshot(controller: Controller, invalid: int, notice: str = "") -> Snapshot:
    """The sweep at this moment."""
    started = controller.started
    finished = sum(trial.state == TrialState.COMPLETE for trial in started)
    failed = sum(trial.state == TrialState.FAIL for trial in started)
    stopped = sum(trial.state == TrialState.PRUNED for trial in started)
    best = controller.study.best
    text = "" if best is None else f"{best.value:.4f} (trial {best.number}: {short(best.params)})"
    running = [_active(item, controller.launcher.waiting(item.job_id)) for item in controller.running.values()]
    target = controller.queue.planned
    left = _seconds_left(controller, running, target - finished - failed - stopped)
    paused = len(controller.early_stopping.paused)
    cost = spent(controller)
    return Snapshot(target, finished, failed, invalid, text, left, running, cost, notice, stopped, paused)


def outlook(controller: Controller, invalid: int) -> SweepProgress:
    """What whoever looks at the folder cannot know from the trials; ``invalid`` points of the finite dials."""
    proposals = controller.queue
    waits = {number: controller.launcher.waiting(item.job_id) for number, item in sorted(controller.running.items())}
    return SweepProgress(
        target=proposals.planned,
        at_once=controller.launcher.slots,
        sampler=proposals.sampler,
        budget_gpu_hours=controller.search.budget_gpu_hours,
        points=len(proposals.valid_points) + invalid,
        valid=len(proposals.valid_points),
        waiting={str(number): why for number, why in waits.items() if why},
        notice=controller.trouble,
    )


def spent(controller: Controller) -> str:
    """GPU hours so far, and of how many."""
    budget = controller.search.budget_gpu_hours
    return f"{controller.spending.hours():.3g}{'' if budget is None else f' of {budget:g}'} GPU hours"


def saved(controller: Controller) -> float | None:
    """The share of completions that early stopping saved, of all that the ended trials would have generated."""
    ended = [controller.trial_folder(trial) for trial in controller.started if trial.state in STATUS]
    generated = [(folder, folder.result.completions) for folder in ended]
    known = [(whole_completions(folder.path, count, 0), count) for folder, count in generated if count is not None]
    whole = sum(total for total, _ in known if total)
    return 1 - sum(min(count, total) for total, count in known if total) / whole if whole else None


def rows(controller: Controller) -> list[Row]:
    """Every started trial of the search for the leaderboard, with what replicates on fresh seeds made of it."""
    study = controller.study
    found = [row(controller, trial) for trial in study.searched]
    return with_further(with_seeds(found, study.ranking), study)


def row(controller: Controller, trial: FrozenTrial) -> Row:
    """One started trial."""
    folder = controller.trial_folder(trial)
    result = folder.result
    seconds, device_seconds = controller.spending.cost(trial)
    return Row(
        number=trial.number,
        status="paused" if trial.number in controller.early_stopping.paused else STATUS.get(trial.state, "unfinished"),
        dials=dials(trial.params),
        objective=trial.value if trial.state == TrialState.COMPLETE else None,
        reached=trial.value if trial.state == TrialState.PRUNED else None,
        error=result.objective_se,
        start=result.start,
        start_error=result.start_se,
        seconds=seconds or None,
        gpu_hours=device_seconds / 3600,
        note=folder.failure.message or result.reason or "",
    )


def dials(point: Point) -> dict[str, str]:
    """A point's labels under the last words of its dials, whole names where two would share one."""
    names = short_names(point)
    return {names[name]: label_text(label) for name, label in point.items()}


def invalid_rows(census: SpaceValidity) -> list[InvalidRow]:
    """The rules that prune points, each with its first example and that example's verified fixes."""
    return [_invalid_row(census, code, count) for code, count in census.by_rule().items()]


def _invalid_row(census: SpaceValidity, code: str, count: int) -> InvalidRow:
    verdict = census.first(code)
    problem, fixes = next((p, fixes) for p, fixes in verdict.fixes() if p.code == code)
    example = short(census.validator.space.finite_part(verdict.point)) if verdict.point else ""
    return InvalidRow(code, count, example, problem.message, [str(fix) for fix in fixes] or [problem.broken.instead])


def _active(running: RunningAttempt, waits: str) -> Active:
    beat = running.folder.heartbeat()
    reward = None
    for row in read_metrics(running.folder.path):
        reward = as_number(row.line.get("reward", reward))
    return Active(running.folder.number, short(running.point), beat.step or 0, beat.total or 0, reward, waits)


def _seconds_left(controller: Controller, running: list[Active], left: int) -> float | None:
    """Remaining trials at the latest finished ones' mean time (or the running ones' pace), over what runs at once."""
    finished = [trial for trial in controller.started if trial.state == TrialState.COMPLETE]
    results = [controller.trial_folder(trial).result for trial in finished[-LATEST:]]
    times = [seconds for result in results if (seconds := result.seconds) is not None]
    now = time.time()
    if times:
        each = sum(times) / len(times)
    else:
        paces = [
            (now - item.since) * active.total / active.step
            for item, active in zip(controller.running.values(), running, strict=True)
            if active.step and active.total
        ]
        if not paces:
            return None
        each = sum(paces) / len(paces)
    spent = sum(min(now - item.since, each) for item in controller.running.values())
    slots = max(min(controller.launcher.slots, left), 1)
    return float(max(each * left - spent, 0.0) / slots)
