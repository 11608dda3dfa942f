"""Status of one sweep (screen and JSON) with its expected end and cost."""

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.text import Text

from grporecipe.files import Json, finite_or_none
from grporecipe.terminal import count, short
from grposweep.report._advice import tie_sentences
from grposweep.report._completions import warning, winner_warning
from grposweep.report._leaderboard import format_effect
from grposweep.report.tables import build_grid, format_duration
from grposweep.report.trial_view import State, TrialView, formatted, group_failures
from grposweep.report.view import SweepReader, SweepView
from grposweep.storage import paths
from grposweep.storage.checkpoints import find_resume
from grposweep.storage.records import AttemptEventKind, as_mapping
from grposweep.storage.results import failure_label

SHOWN = (
    State.FINISHED,
    State.RUNNING,
    State.QUEUED,
    State.PAUSED,
    State.STOPPED,
    State.PRUNED,
    State.FAILED,
)
# since the heartbeat moved
WORRYING_SECONDS = 120.0
WATCH_SECONDS = 2.0
# running trials on one screen; half as many in any other state
MOST = 8


def status_screen(view: SweepView) -> Group:
    """Return the whole screen, 80 columns wide."""
    return Group(
        _line(f"{view.name}:", view.progress_text, "bold"),
        *_start_of(view),
        _progress(view),
        _best(view),
        *_effects(view),
        _cost(view),
        *_running(view),
        *_others(view),
    )


def _start_of(view: SweepView) -> Iterator[RenderableType]:
    """Yield the checkpoint from which a continuation's trials started."""
    recorded = view.provenance.get("fork_of")
    if recorded is None:
        return
    from grposweep.storage.forks import ForkState

    state = ForkState.parse(recorded)
    if state is not None:
        yield _line("from", str(state))


def watch_status(reader: SweepReader, console: Console) -> None:
    """Show the screen live until the sweep is done."""
    from rich.live import Live

    view = reader.read()
    with Live(status_screen(view), console=console, auto_refresh=False) as live:
        while view.controller or view.ended < view.planned:
            time.sleep(WATCH_SECONDS)
            view = reader.read()
            live.update(status_screen(view), refresh=True)


def status_json(view: SweepView) -> Json:
    """Return the same for scripts: counts, best, cost in GPU hours, seconds left, every open
    trial.
    """
    return {
        "sweep": str(view.path),
        "standing": view.progress_text,
        "controller": view.controller or None,
        "metric": view.metric,
        "direction": view.direction,
        "target": view.planned,
        "states": {state.value: view.count(state) for state in State},
        "best": _best_json(view),
        "effects": _effects_json(view) or None,
        "gpu_hours": view.gpu_hours,
        "budget_hours": view.progress.budget_hours,
        "seconds_left": seconds_left(view),
        "under_way": [_under_way(view, trial) for trial in view.trials if not trial.state.is_over],
        "pruned_by_rule": {rule.code: rule.count for rule in view.invalid},
        "stopped_early": [
            {**_identity(t), "step": t.step, "reason": t.reason} for t in view.select(State.PRUNED)
        ],
        "failures": {name: len(trials) for name, trials in view.failures().items()},
        "damage": view.damage,
        "notice": view.progress.notice or None,
    }


def _best_json(view: SweepView) -> Json | None:
    best = view.best_point
    if best is None:
        return None
    gain = best.gain
    doubts = filter(None, (warning(best.first), *tie_sentences(view)))
    return {
        **_identity(best.first),
        "objective": best.value,
        "half_interval_95": best.half,
        "interval_over": best.source or None,
        "seeds": len(best.values),
        "fresh": best.is_fresh,
        "warning": " ".join(doubts) or None,
        "start": gain and gain.start,
        "gain": gain and gain.difference,
        "gain_half_interval_95": gain and gain.half,
    }


def _effects_json(view: SweepView) -> list[Json]:
    """Return each change of one factor with its difference from the baseline and half of the
    interval (null: one seed).
    """
    changes = []
    for change in view.effects:
        effect = change.effect
        changes.append(
            {
                "trial": change.trial,
                "parameter": change.parameter,
                "value": change.label,
                "verdict": change.verdict,
                "effect": effect and effect.mean,
                "half_interval_95": effect and finite_or_none(effect.margin),
            }
        )
    return changes


def _identity(trial: TrialView) -> Json:
    return {"number": trial.number, "folder": trial.name, "point": dict(trial.point)}


def _under_way(view: SweepView, trial: TrialView) -> Json:
    return {
        **_identity(trial),
        "state": trial.state.value,
        "step": trial.step,
        "total": trial.total,
        "reward": trial.last_reward,
        "gpu_hours": trial.gpu_hours,
        "waits": view.progress.waiting.get(str(trial.number)),
        "warning": trial.unmoved or None,
    }


def _progress(view: SweepView) -> RenderableType:
    bar = ProgressBar(total=max(view.planned, 1), completed=view.ended, width=40)
    row = (f"{'ended':8}", bar, f"{view.ended:,} of {count(view.planned, 'trial')}")
    counts = [f"{view.count(state):,} {state.label}" for state in SHOWN if view.count(state)]
    states = ", ".join(counts) or "none has been started yet"
    if view.is_dry:
        states = f"{len(view.trials):,} written, none launched"
    return Group(build_grid([row], gap=1), _line("trials", states))


def _best(view: SweepView) -> RenderableType:
    best = view.best_point
    if best is None:
        return _line("best", f"no trial has finished{view.yet}")
    where = _line("", best.first.title)
    doubts = (Text(line, "yellow") for line in winner_warning(best.first))
    # the command is in the report
    notes = filter(None, (best.first.at_best, *tie_sentences(view)[:1]))
    return Group(_line("best", best.text, "bold green"), where, *_indented(notes, 9), *doubts)


def _effects(view: SweepView) -> Iterator[RenderableType]:
    """Yield each change of one factor with its effect."""
    if view.effects:
        title = f"on {view.metric} against the base configuration, ± 95 % all together"
        yield _line("effects", title, "bold")
    for effect in view.effects:
        name = short({effect.parameter: effect.label})
        yield Text(f"  {name}: {format_effect(effect)} {effect.verdict}")


def _cost(view: SweepView) -> RenderableType:
    spent = view.spent_text
    left = seconds_left(view)
    if left and view.controller:
        spent += f", about {format_duration(left)} left"
    elif left:
        spent += f", about {format_duration(left)} to go once its command runs again"
    return _line("spent", spent)


def _running(view: SweepView) -> Iterator[RenderableType]:
    running = view.select(State.RUNNING)
    if running:
        titles = f"{'running':8} {'step':>13} {'reward':>7} {view.hours_unit[:5]:>7} {'time':>9}"
        yield Text(titles, "dim")
    for trial in running[:MOST]:
        yield _running_line(trial)
        if trial.unmoved:
            yield Text(f"    {trial.unmoved}", "yellow")
    yield from _more(len(running) - MOST)


def _running_line(trial: TrialView) -> Text:
    reward = trial.last_reward
    shown = formatted("{:.3f}", reward)
    step = f"{trial.step:,}"
    if trial.total:
        step += f"/{trial.total:,}"
    seconds = format_duration(trial.seconds)
    line = Text(overflow="ellipsis", no_wrap=True)
    line.append(f"  {trial.number:<6} {step:>13} {shown:>7} {trial.gpu_hours:>7.3g} {seconds:>9}  ")
    if trial.silent > WORRYING_SECONDS:
        line.append(f"silent for {format_duration(trial.silent)}! ", "yellow")
    return line.append(short(trial.point), "dim")


def _others(view: SweepView) -> Iterator[RenderableType]:
    """Yield the trials that do not run, by state, the invalid points, damaged files, and the
    controller's notice.
    """
    waits = view.progress.waiting
    yield from _trials(view, State.QUEUED, lambda t: waits.get(str(t.number)) or _last_end(t))
    yield from _trials(view, State.PAUSED, lambda t: f"at step {t.step}: {t.reason}")
    yield from _trials(view, State.STOPPED, partial(_resumption, view))
    if view.invalid:
        of = formatted(" of {:,}", view.progress.points or None)
        rows = [
            f"{rule.code} {count(rule.count, 'point')}: {rule.message}" for rule in view.invalid
        ]
        summary = f"{view.invalid_count:,}{of} points by {count(len(rows), 'rule')}, at no cost"
        yield _section("invalid", summary, rows)
    early = view.select(State.PRUNED)
    if early:
        rows = [f"trial {trial.number} at step {trial.step}: {trial.reason}" for trial in early]
        yield _section("stopped", f"{count(len(early), 'trial')} stopped early", rows)
    failed = view.select(State.FAILED)
    if failed:
        causes = [" ".join(text.split()) for text in group_failures(failed)]
        yield _whole("failed", count(len(failed), "trial"), causes, "red")
    if view.damage:
        yield _whole("damaged", count(len(view.damage), "file"), view.damage, "yellow")
    if view.progress.notice:
        yield _line("notice", view.progress.notice, "yellow")


def _last_end(trial: TrialView) -> str:
    """Return how the last attempt of a queued trial ended."""
    for event in reversed(trial.attempts):
        if event.event == AttemptEventKind.ENDED:
            cause = f" ({failure_label(event.failure)})" if event.failure else ""
            return f"attempt {event.attempt} ended{cause}, and the trial runs again"
    return f"attempt {trial.attempts[-1].attempt} starts" if trial.attempts else "not begun"


def _resumption(view: SweepView, trial: TrialView) -> str:
    """Return where a stopped trial is, and how it resumes. An external program and a continuation
    have their own checkpoints.
    """
    from grposweep.schema.registries import OWN_TRAINERS

    if view.trainer.get("kind") not in OWN_TRAINERS or view.trainer.get("fork"):
        return f"at step {trial.step}; resumes with the sweep"
    ranks = as_mapping(view.baseline.get("cluster")).get("processes") or 1
    step, why = find_resume(trial.path / paths.CHECKPOINTS, int(ranks))
    how = f"resumes with the sweep from step {step}"
    if not step:
        how = "starts over with the sweep"
        why = why or "it has no checkpoint"
    if why:
        how += f", because {why}"
    return f"at step {trial.step}; {how}"


def _trials(
    view: SweepView, state: State, say: Callable[[TrialView], str]
) -> Iterator[RenderableType]:
    trials = view.select(state)
    if trials:
        lines = [f"trial {trial.number}: {say(trial)}  {short(trial.point)}" for trial in trials]
        yield _section(state.value, count(len(trials), "trial"), lines)


def _section(title: str, summary: str, texts: list[str]) -> RenderableType:
    """Return the first lines below a title, each cut at the edge of the screen."""
    lines = [
        Text(f"  {' '.join(text.split())}", overflow="ellipsis", no_wrap=True)
        for text in texts[: MOST // 2]
    ]
    return Group(_line(title, summary, "yellow"), *lines, *_more(len(texts) - MOST // 2))


def _whole(title: str, summary: str, texts: list[str], style: str) -> RenderableType:
    """Return the first texts below a title, each as a whole."""
    shown = _indented(texts[:MOST], 2)
    return Group(_line(title, summary, style), *shown, *_more(len(texts) - MOST))


def _indented(texts: Iterable[str], columns: int) -> Iterator[RenderableType]:
    """Yield texts whose further lines are indented as the first."""
    for text in texts:
        yield Padding(Text(text), (0, 0, 0, columns))


def _line(title: str, text: str, style: str = "") -> Text:
    return Text.assemble(
        (f"{title:8}", style or "dim"), " ", text, overflow="ellipsis", no_wrap=True
    )


def _more(number: int) -> list[Text]:
    return [Text(f"  and {number:,} more", "dim")] if number > 0 else []


# ended trials whose mean time is expected of the next ones
LATEST = 20


def seconds_left(view: SweepView) -> float | None:
    """Return the expected seconds to the end over parallel slots; None if unknown.

    Open trials times mean time, or with early stopping what is left of the share of all trials'
    time that may be spent. The mean is that of the latest ended trials. Before one has ended, it is
    the pace of the running ones.
    """
    left = view.planned - view.ended
    if not left:
        return 0.0
    ended = view.select(State.FINISHED, State.PRUNED)
    running = view.select(State.RUNNING)
    times = [trial.seconds for trial in ended[-LATEST:]]
    if not times:
        paced = [trial for trial in running if trial.step and trial.total]
        times = [trial.seconds * trial.total / trial.step for trial in paced]
    if not times:
        return None
    each = sum(times) / len(times)
    slots = max(min(view.progress.at_once or len(running), left), 1)
    if view.progress.share < 1:
        whole = each * view.planned * view.progress.share
        return max(whole - sum(trial.seconds for trial in view.trials), 0.0) / slots
    behind = sum(min(trial.seconds, each) for trial in running)
    return max(each * left - behind, 0.0) / slots
