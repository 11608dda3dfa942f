"""One screen about a sweep: how far it is, the best so far, what runs and waits, what was pruned and why, what failed."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from grposweep.labels import count, short
from grposweep.report.cost import ended, forecast, seconds_left, standing, target
from grposweep.report.effects import effect_text
from grposweep.report.ranking import Standing
from grposweep.report.tables import clock
from grposweep.report.trial_view import State, TrialView
from grposweep.report.view import SweepView
from grposweep.storage.records import failure_label

SHOWN = (State.FINISHED, State.RUNNING, State.QUEUED, State.PAUSED, State.STOPPED, State.PRUNED, State.FAILED)
WORRYING_SECONDS = 120.0  # without a sign of life
MOST = 8  # trials that run, on one screen; half as many of any other kind


def status_screen(view: SweepView) -> Group:
    """The whole screen, 80 columns wide."""
    parts = (_progress(view), _best(view), _front(view), _effects(view), _cost(view), _running(view), *_others(view))
    return Group(_line(f"{view.name}:", standing(view), "bold"), *(part for part in parts if part is not None))


def status_json(view: SweepView) -> dict[str, Any]:
    """The same for scripts: counts, best, cost in GPU hours, seconds left, every trial under way."""
    return {
        "v": 1,
        "sweep": str(view.path),
        "standing": standing(view),
        "controller": view.controller or None,
        "metric": view.metric,
        "direction": view.direction,
        "target": target(view),
        "states": {state.value: view.count(state) for state in State},
        "best": _best_json(view.standings[0]) if view.standings else None,
        "front": view.front or None,
        "effects": _effects_json(view) or None,
        "gpu_hours": view.gpu_hours,
        "budget_gpu_hours": view.outlook.budget_gpu_hours,
        "seconds_left": seconds_left(view),
        "gpu_hours_expected": None if (expected := forecast(view)) is None else round(expected.total, 6),
        "under_way": [_under_way(view, trial) for trial in view.trials if not trial.state.is_over],
        "pruned_by_rule": {rule.code: rule.count for rule in view.invalid},
        "stopped_early": [{**_identity(t), "step": t.step, "reason": t.reason} for t in _in(view, State.PRUNED)],
        "failures": dict(view.failures()),
        "notice": view.outlook.notice or None,
    }


def _best_json(best: Standing) -> dict[str, Any]:
    interval = {"half_interval_95": best.half, "interval_over": best.source or None}
    return {**_identity(best.first), "objective": best.value, **interval, "seeds": len(best.values)}


def _effects_json(view: SweepView) -> list[dict[str, Any]]:
    """Each change of one factor: its difference to the base configuration, half of its interval (null: one seed)."""
    effects = view.comparison.effects if view.comparison else ()
    return [
        {"trial": e.trial, "dial": e.parameter, "value": e.label, "verdict": e.verdict}
        | {"effect": None if e.effect is None else e.effect.mean}
        | {"half_interval_95": None if e.effect is None or e.effect.count < 2 else e.effect.margin}
        for e in effects
    ]


def _identity(trial: TrialView) -> dict[str, Any]:
    return {"number": trial.number, "folder": trial.name, "point": dict(trial.point)}


def _under_way(view: SweepView, trial: TrialView) -> dict[str, Any]:
    waits = view.outlook.waiting.get(str(trial.number))
    progress = {"step": trial.step, "total": trial.total, "reward": trial.last_value("reward")}
    return {
        **_identity(trial), "state": trial.state.value, **progress, "gpu_hours": trial.gpu_hours, "waits": waits,
    }  # fmt: skip


def _progress(view: SweepView) -> RenderableType:
    row = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=max(target(view), 1), completed=ended(view), width=40)
    row.add_row(f"{'ended':8}", bar, f"{ended(view):,} of {count(target(view), 'trial')}")
    states = ", ".join(f"{view.count(state):,} {state}" for state in SHOWN if view.count(state))
    return Group(row, _line("trials", states or "none has been started yet"))


def _best(view: SweepView) -> RenderableType:
    if not view.standings:
        return _line("best", "no trial has finished yet")
    best = view.standings[0]
    where = _line("", f"trial {best.first.number}: {short(best.first.point)}")
    return Group(_line("best", best.text, "bold green"), where)


def _front(view: SweepView) -> RenderableType | None:
    """Each trial of the Pareto front with what it is worth in all objectives."""
    if not view.front:
        return None
    trials = [view.trial(number) for number in view.front]
    said = [f"trial {trial.number}: {worths(view, trial)} ({short(trial.point)})" for trial in trials]
    return _section(
        "front", f"{count(len(said), 'trial')} that no other equals or beats in all objectives", said, "green"
    )


def worths(view: SweepView, trial: TrialView) -> str:
    """A finished trial's values in all objectives."""
    values = zip([view.metric, *view.further], [trial.objective, *(trial.further(view.further) or ())], strict=False)
    return ", ".join(f"{name} {value:.4g}" for name, value in values)


def _effects(view: SweepView) -> RenderableType | None:
    """Each change of one factor with its effect."""
    if view.comparison is None or not view.comparison.effects:
        return None
    said = [f"{short({e.parameter: e.label})}: {effect_text(e)} {e.verdict}" for e in view.comparison.effects]
    title = f"on {view.metric} against the base configuration, ± 95 % all together"
    return Group(_line("effects", title, "bold"), *(Text(f"  {text}") for text in said))


def worth(trial: TrialView) -> str:
    """A trial's objective with its standard error, and where training began."""
    error = "" if trial.error is None else f" ± {trial.error:.4f}"
    start = "" if trial.start is None else f" (start {trial.start:.4f})"
    return f"{trial.objective:.4f}{error}{start}"


def _cost(view: SweepView) -> RenderableType:
    budget = view.outlook.budget_gpu_hours
    spent = f"{view.gpu_hours:.3g}{'' if budget is None else f' of {budget:g}'} GPU hours"
    left = seconds_left(view)
    if left and view.controller:
        spent += f", about {clock(left)} left"
    elif left:
        spent += f", about {clock(left)} to go once its command runs again"
    expected = forecast(view)
    if left and expected is not None:
        basis = count(expected.trials, "finished trial")
        spent += f"; {expected.total:.3g} in all, {expected.each:.2g} a trial, by {basis}"
    return _line("spent", spent)


def _running(view: SweepView) -> RenderableType | None:
    running = _in(view, State.RUNNING)
    if not running:
        return None
    head = Text(f"{'running':8} {'step':>13} {'reward':>7} {'GPU h':>7} {'time':>9}", "dim")
    return Group(head, *(_running_line(trial) for trial in running[:MOST]), *_more(len(running) - MOST))


def _running_line(trial: TrialView) -> Text:
    reward, step = trial.last_value("reward"), f"{trial.step:,}/{trial.total:,}" if trial.total else f"{trial.step:,}"
    shown = "" if reward is None else f"{reward:.3f}"
    silent = f"silent for {clock(trial.silent)}! " if trial.silent > WORRYING_SECONDS else ""
    head = f"  {trial.number:<6} {step:>13} {shown:>7} {trial.gpu_hours:>7.3g} {clock(trial.seconds):>9}  "
    return Text.assemble(head, (silent, "yellow"), (short(trial.point), "dim"), overflow="ellipsis", no_wrap=True)


def _others(view: SweepView) -> Iterator[RenderableType]:
    """What does not run: waiting, paused, stopped, pruned by rule, stopped early, failed; and what the controller says."""
    waits = view.outlook.waiting
    yield from _trials("queued", _in(view, State.QUEUED), lambda t: waits.get(str(t.number), "no attempt has begun"))
    yield from _trials("paused", _in(view, State.PAUSED), lambda t: f"at step {t.step}")
    yield from _trials("stopped", _in(view, State.STOPPED), lambda t: f"at step {t.step}; goes on with the sweep")
    if view.invalid:
        of = f" of {view.outlook.points:,}" if view.outlook.points else ""
        total = sum(rule.count for rule in view.invalid)
        said = [f"{rule.code} {count(rule.count, 'point')}: {rule.message}" for rule in view.invalid]
        yield _section("pruned", f"{total:,}{of} points by {count(len(said), 'rule')}, before they cost anything", said)
    pruned = _in(view, State.PRUNED)
    if pruned:
        said = [f"trial {trial.number} at step {trial.step}: {trial.reason}" for trial in pruned]
        yield _section("pruned", f"{count(len(pruned), 'trial')} stopped early", said)
    failed = _in(view, State.FAILED)
    if failed:
        yield _section("failed", count(len(failed), "trial"), list(_by_class(view.failures(), failed)), "red")
    if view.outlook.notice:
        yield _line("notice", view.outlook.notice, "yellow")


def _by_class(classes: Mapping[str, int], failed: Iterable[TrialView]) -> Iterator[str]:
    first = {trial.failure_class: trial for trial in reversed(list(failed))}
    for name, number in classes.items():
        yield f"{number:,} {failure_label(name)}, first trial {first[name].number}: {first[name].reason}"


def _trials(title: str, trials: list[TrialView], say: Callable[[TrialView], str]) -> Iterator[RenderableType]:
    if trials:
        said = [f"trial {trial.number}: {say(trial)}  {short(trial.point)}" for trial in trials]
        yield _section(title, count(len(trials), "trial"), said)


def _section(title: str, summary: str, said: list[str], style: str = "yellow") -> RenderableType:
    lines = [Text(f"  {' '.join(text.split())}", overflow="ellipsis", no_wrap=True) for text in said[: MOST // 2]]
    return Group(_line(title, summary, style), *lines, *_more(len(said) - MOST // 2))


def _line(title: str, text: str, style: str = "") -> Text:
    return Text.assemble((f"{title:8}", style or "dim"), " ", text, overflow="ellipsis", no_wrap=True)


def _more(number: int) -> list[Text]:
    return [Text(f"  and {number:,} more", "dim")] if number > 0 else []


def _in(view: SweepView, state: State) -> list[TrialView]:
    return [trial for trial in view.trials if trial.state is state]
