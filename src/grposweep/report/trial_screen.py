"""Everything about one trial: point, objective, cost, curve, problems, and differences from the
best and the baseline.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain

from rich.console import Console, Group, RenderableType
from rich.text import Text

from grporecipe.errors import ExitCode, UserError
from grporecipe.files import Config, read_json
from grporecipe.frameworks.trl.keys import known, parse_version
from grporecipe.model.releases import KeyTable
from grporecipe.terminal import count, label_text, short
from grposweep.report._completions import completions_screen
from grposweep.report._leaderboard import format_effect, format_objective
from grposweep.report._trained_with import trained_text
from grposweep.report.compare import differences
from grposweep.report.tables import (
    FOLD,
    Fitted,
    Row,
    build_grid,
    draw_curve,
    folded_table,
    format_duration,
)
from grposweep.report.trial_view import State, TrialView, axis_of, formatted
from grposweep.report.view import SweepView
from grposweep.storage import paths
from grposweep.storage.records import AttemptEvent, AttemptEventKind, as_mapping
from grposweep.storage.results import failure_label

LOG_LINES = 8


def trial_screen(view: SweepView, trial: TrialView) -> Group:
    """Return the whole screen."""
    parts = (
        _facts(view, trial),
        _curve(view, trial),
        completions_screen(trial),
        _problems(view, trial),
        _trained(trial),
    )
    return Group(*chain.from_iterable(parts), *_compared(view, trial))


def print_trial(console: Console, view: SweepView, trial: TrialView) -> None:
    """Print the screen, and the command that repeats the trial without line breaks of ours."""
    console.print(trial_screen(view, trial))
    if trial.command:
        console.print("\nrepeat it", style="bold")
        console.print(trial.command, soft_wrap=True)


def _facts(view: SweepView, trial: TrialView) -> Iterator[RenderableType]:
    more = "" if trial.role == "search" else f", role {trial.role}"
    if view.is_fake:
        more += ", fake trainer"
    yield Text.assemble(
        (f"trial {trial.number}", "bold"), f" of {view.name}: {trial.state.label}{more}"
    )
    yield build_grid(_fact_rows(view, trial), columns=({"style": "dim"}, FOLD))


def _fact_rows(view: SweepView, trial: TrialView) -> Iterator[Row]:
    yield "point", short(trial.point)
    if trial.number in view.places:
        rank, point = view.places[trial.number]
        if point.counted == [trial]:
            yield view.metric, format_objective(trial)
        else:
            yield view.metric, point.text
            yield "this trial", format_objective(trial)
        if trial.at_best:
            yield "", trial.at_best
        yield "rank", f"{rank} of {count(len(view.leaderboard), 'point')}"
    for effect in view.effects:
        if effect.trial == trial.number:
            verdict = f"{format_effect(effect)}, {effect.verdict}"
            yield "effect", f"{verdict} (95 % with all other changes)"
    if trial.trained:
        yield "trained with", trained_text(trial.trained)
    yield "steps", f"{trial.step:,}" + formatted(" of {:,}", trial.total or None)
    spent = format_duration(trial.seconds) or "nothing yet"
    yield "cost", f"{spent}, {trial.gpu_hours:.3g} {view.hours_unit}"
    for number, text in _attempts(trial):
        yield f"attempt {number}", text
    yield "folder", str(trial.path)


def _attempts(trial: TrialView) -> Iterator[tuple[int, str]]:
    """Yield each attempt's number, with its job id and how it ended."""
    texts: dict[int, list[str]] = {}
    for event in trial.attempts:
        events = texts.setdefault(event.attempt, [])
        if event.event == AttemptEventKind.STARTED:
            events.append(event.job_id or "")
        elif event.event == AttemptEventKind.ENDED:
            events.append(_end(event))
    for last in trial.attempts[-1:]:
        if (
            last.event == AttemptEventKind.STARTED
            and trial.state is State.STOPPED
            and trial.result.attempt != last.attempt
        ):
            texts[last.attempt].append(
                "its process ended without a result: kill -9, no memory left, or a reboot"
            )
    for number, events in texts.items():
        yield number, ", ".join(events) or "announced"


def _end(event: AttemptEvent) -> str:
    if event.failure is not None:
        return f"ended: {failure_label(event.failure)}, then {event.step or 'nothing'}"
    texts: Mapping[object, str] = {
        ExitCode.FINISHED: "ended well",
        ExitCode.STOPPED: "stopped when asked",
    }
    return texts.get(event.code, f"ended with code {event.code}")


def _curve(view: SweepView, trial: TrialView) -> Iterator[RenderableType]:
    """Yield the objective's metric over completions; before it has two values, the training
    reward.
    """
    for metric in (view.metric, "reward"):
        points = trial.curve(metric)
        if len(points) > 1:
            series = [(point.completions, point.value) for point in points]
            yield Text(f"\n{metric}", "bold")
            yield Fitted(partial(draw_curve, series, axis=axis_of(points)))
            return


def _problems(view: SweepView, trial: TrialView) -> Iterator[RenderableType]:
    """Yield why it failed or was stopped, with the end of its log, and the rules' warnings about
    its configuration.
    """
    if trial.reason:
        what = failure_label(trial.failure_class) or "stopped early"
        yield Text(f"\n{what}: {trial.reason}", "red")
        for line in trial.failure.last_lines[-LOG_LINES:]:
            yield Text(f"  {line}", "dim")
    for warning in (*filter(None, [trial.unmoved]), *_warnings(view, trial)):
        yield Text(f"\n{warning}", "yellow")


def _warnings(view: SweepView, trial: TrialView) -> list[str]:
    """Return the rules' findings on its configuration; none if that cannot be read here."""
    from grporecipe.rules.check import check
    from grporecipe.rules.fixes import render_problem

    # OmegaConf: 0.2 s that status should not pay
    from grposweep.config.compose import load_experiment
    from grposweep.config.identity import ResolvedConfig
    from grposweep.schema.registries import is_external

    try:
        experiment = load_experiment(trial.path / paths.CONFIG)
        if is_external(experiment.trainer):
            # the rules judged the recipe of its own program
            return []
        setting = ResolvedConfig.of(experiment, view.prepared).setting
    except Exception:  # noqa: BLE001 - a damaged configuration, or one of another version, makes OmegaConf raise what it likes
        return []
    return [
        f"{problem.severity} {problem.code} {render_problem(setting, problem)}"
        for problem in check(setting)
        if problem.code not in experiment.rules.ignore
    ]


def _trained(trial: TrialView) -> Iterator[RenderableType]:
    """Yield what the trainer of the user's command got: values that differ from TRL's defaults, and
    those of the point.
    """
    record = trial.trained
    entered = (read_json(trial.path / paths.CHANGED) or {}).get("keys", {})
    given = as_mapping(record.get("given"))
    later = as_mapping(record.get("assigned"))
    values = {
        name: value
        for name, value in as_mapping(record.get("values")).items()
        if name in given or name in entered
    }
    values.pop("output_dir", None)
    if not values:
        return
    try:
        defaults = known(parse_version(str(as_mapping(record.get("versions")).get("trl"))))
    except UserError:
        # not stated, or of a branch
        defaults = KeyTable()
    rows = []
    for name, value in values.items():
        default = label_text(defaults[name].default) if name in defaults else ""
        line = "the point" if name in entered else str(later.get(name, record.get("line")))
        rows.append((name, label_text(value), default, line))
    yield Text("")
    yield folded_table(("what its trainer got", "value", "TRL's default", "set by"), rows)


def _compared(view: SweepView, trial: TrialView) -> Iterator[RenderableType]:
    best = view.best
    if best is not None and best.number != trial.number:
        yield from _table(trial, best.config, f"trial {best.number}, the best")
    # the command's own values, as above, are its baseline
    if not trial.trained:
        yield from _table(trial, view.baseline, "the baseline")


def _table(trial: TrialView, other: Config, name: str) -> Iterator[RenderableType]:
    if not other or not trial.config:
        return
    differing = differences(trial.config, other)
    if not differing:
        yield Text(f"\nits configuration is that of {name}")
        return
    titles = ("key", f"trial {trial.number}", name)
    rows = [(key, label_text(here), label_text(there)) for key, here, there in differing]
    yield Text("")
    yield folded_table(titles, rows, title=f"{count(len(differing), 'difference')} from {name}")
