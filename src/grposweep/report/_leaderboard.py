"""Tables about the trials of a sweep: the leaderboard, effects of single factors, and what
decides.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from rich.table import Table

from grporecipe.files import Config
from grporecipe.terminal import count, label_text, short_names
from grposweep.report._completions import warning
from grposweep.report._ranking import Importance
from grposweep.report.tables import FOLD, NUMBER, RIGHT, Styled, build_table, format_duration
from grposweep.report.trial_view import State, TrialView, formatted
from grposweep.report.view import SweepView
from grposweep.search.analysis import Comparison, Contrast, Effect
from grposweep.search.replication import Estimate, on_fresh_seeds
from grposweep.search.space import Choice, Interval

STATUS = {
    State.FINISHED: "failed",
    State.FAILED: "failed",
    State.PRUNED: "stopped early",
    State.PAUSED: "paused",
}
# the column of the contents that a trial read
FILES = ("files", NUMBER)


def format_objective(trial: TrialView) -> str:
    """Format a finished trial's objective with its 95 % interval over prompts and the value before
    training.
    """
    return _value(trial) + formatted(" (start {:.4f})", trial.start)


def _value(trial: TrialView) -> str:
    return f"{trial.objective:.4f}" + formatted(" ± {:.4f}", trial.half)


def format_estimate(estimate: Estimate | None) -> str:
    """Format a mean with the number of its seeds."""
    return f"{estimate.mean:.4f} ({estimate.count})" if estimate else ""


def format_effect(effect: Effect) -> str:
    """Format a difference with half of its interval; a single seed has no interval."""
    if effect.effect is None:
        return ""
    half = f" ± {effect.effect.margin:.4f}" if effect.effect.count > 1 else ""
    return f"{effect.effect.mean:+.4f}{half}"


def outcome(trial: TrialView) -> str:
    """Return how a trial ended, in the words of the end-of-run summary."""
    return "finished" if trial.objective is not None else STATUS.get(trial.state, "unfinished")


def leaderboard(view: SweepView, limit: int = 10) -> Table:
    """Return the finished trials, best first, then those without an objective; at most ``limit`` of
    each.
    """
    finished = view.finished
    # of the trials that have run on fresh seeds
    places = view.replication.places if view.replication else {}
    finished.sort(key=lambda trial: places.get(trial.number, (len(places), ""))[0])
    others = view.unfinished
    starts = {formatted("; before training {:.4f}", trial.start) for trial in view.searched} - {""}
    title = f"{view.metric}, {view.direction}d"
    if len(starts) == 1:
        title += starts.pop()
    columns = list(_columns(view, finished))
    titles = [column[:2] for column in columns]
    rows = []
    for trial in [*finished[:limit], *others[:limit]]:
        style = "dim" if trial.objective is None else ""
        if trial in finished[:1]:
            style = "bold"
        rows.append(Styled([cell(trial) for _, _, cell in columns], style))
    lines = []
    for trial in finished[:limit]:
        text = warning(trial)
        if text:
            lines.append(f"* trial {trial.number}: {text}")
    if finished and any(trial.state in (State.PRUNED, State.PAUSED) for trial in others):
        lines.append(
            "trials that are paused or were stopped early come after the finished ones, without "
            "a rank"
        )
    if FILES in titles:
        lines.append(
            "files: trials with another number read other contents of reward or data files; do "
            "not compare them"
        )
    hidden = [*finished[limit:], *others[limit:]]
    if hidden:
        failed = sum(trial.state is State.FAILED for trial in hidden)
        text = f"and {len(hidden)} more"
        if failed:
            text += f", {failed} of them failed"
        lines.append(text)
    return build_table(titles, rows, "\n".join(lines), padding=(0, 1), title=title)


def _columns(
    view: SweepView, finished: Sequence[TrialView]
) -> Iterator[tuple[str, Config, Callable[[TrialView], str]]]:
    """Yield each column of the leaderboard: its title, its options, and what it shows of a
    trial.
    """
    ranks = {trial.number: str(rank) for rank, trial in enumerate(finished, 1)}
    seeds = {trial.number: _on_fresh_seeds(view, trial.number) for trial in finished}
    yield "", NUMBER, lambda trial: ranks.get(trial.number, "")
    yield "trial", NUMBER, lambda trial: str(trial.number)
    interval = " ± 95 %" if any(trial.error is not None for trial in finished) else ""
    yield f"{view.metric}{interval}", RIGHT, _result
    if any(seeds.values()):
        yield "on fresh seeds ± 95 %", FOLD, lambda trial: seeds.get(trial.number, "")
    read = contents_read(view)
    if len(set(read.values())) > 1:
        yield *FILES, partial(_known, read)
    labels: dict[str, dict[int, str]] = {}
    for trial in view.searched:
        for name, text in short_names(trial.point).items():
            labels.setdefault(text, {})[trial.number] = label_text(trial.point[name])
    yield from ((name, FOLD, partial(_known, texts)) for name, texts in labels.items())
    yield "time", NUMBER, lambda trial: format_duration(trial.seconds or None)
    # several devices per trial
    if any(trial.gpu_seconds > trial.seconds + 1 for trial in view.searched):
        yield f"{view.hours_unit[:3]} h", NUMBER, lambda trial: f"{trial.gpu_hours:.2f}"


def contents_read(view: SweepView) -> dict[int, str]:
    """Return for each trial the number of the contents of the user's files that it read, in the
    order of the trials.
    """
    order = list(dict.fromkeys(trial.files for trial in view.trials))
    labels = {trial.number: str(1 + order.index(trial.files)) for trial in view.trials}
    read = dict(labels)
    for trial in view.trials:
        leader = trial.attributes.get("of")
        if trial.is_replicate and leader in labels and labels[trial.number] != read[leader]:
            labels[leader] = f"{read[leader]}, fresh seeds {read[trial.number]}"
    return labels


def _known(cells: Mapping[int, str], trial: TrialView) -> str:
    return cells.get(trial.number, "")


def _result(trial: TrialView) -> str:
    """Return a trial's objective with its 95 % interval over prompts, or how it ended and what it
    had reached.
    """
    if trial.objective is None:
        return outcome(trial) + formatted(" at {:.4f}", trial.reached)
    return f"{_value(trial)}*" if warning(trial) else _value(trial)


def _on_fresh_seeds(view: SweepView, number: int) -> str:
    """Return a trial's mean on fresh seeds with what followed from it; empty if it has run on
    none.
    """
    ranking = view.replication
    if ranking is None or number not in ranking.places:
        return ""
    fate = ranking.places[number][1]
    for candidate in ranking.alive:
        estimate = on_fresh_seeds(candidate) if candidate.number == number else None
        if estimate:
            return f"{estimate} ({estimate.count}) {fate}"
    return fate


def effects_table(view: SweepView, comparison: Comparison) -> Table:
    """Return the baseline, every value of every parameter with its effect, and the values that are
    invalid, with the reason.
    """
    columns = (
        ("trial", RIGHT),
        "parameter",
        "value",
        (f"{view.metric} (seeds)", FOLD),
        ("effect ± 95 %, all together", FOLD),
        ("verdict", FOLD),
    )
    title = "one factor at a time, against the base configuration on the same seeds"
    baseline = ("", "as configured", "", format_estimate(comparison.estimate), "", "")
    rows = [Styled(baseline, "bold")]
    for effect in comparison.effects:
        style = "dim" if effect.verdict in ("unfinished", "unknown") else ""
        cells = (
            str(effect.trial),
            effect.parameter,
            label_text(effect.label),
            format_estimate(effect.estimate),
            format_effect(effect),
            effect.verdict,
        )
        rows.append(Styled(cells, style))
    reasons: dict[str, str] = {}
    for point, problem in view.invalid_points:
        code = str(problem.get("code"))
        reasons.setdefault(code, f"{code}: {problem.get('message')}")
        for parameter, label in point.items():
            rows.append(Styled(("", parameter, label_text(label), "", code, "invalid"), "dim"))
    return build_table(columns, rows, "\n".join(reasons.values()), padding=(0, 1), title=title)


def contrasts_table(importance: Importance, metric: str) -> Table:
    """Return the contrasts of single parameters."""
    title = f"effects of single parameters on {metric}, {basis_text(importance)}"
    columns = (
        "parameter",
        ("better", FOLD),
        ("trials", RIGHT),
        ("difference ± 95 %", RIGHT),
        ("", FOLD),
    )
    rows = []
    names = short_names(contrast.parameter for contrast in importance.contrasts)
    for contrast in importance.contrasts:
        style = "" if contrast.is_significant else "dim"
        whole = contrast.trials + contrast.others
        name = names[contrast.parameter]
        part = format_part(contrast.better)
        cells = (name, part, f"{contrast.trials} of {whole}", *format_contrast(contrast))
        rows.append(Styled(cells, style))
    caption = "each against its other values; the other parameters vary"
    return build_table(columns, rows, caption, padding=(0, 1), title=title)


def basis_text(importance: Importance) -> str:
    """Return how many trials count, and how many of them have not finished."""
    text = count(importance.trials, "trial")
    if importance.unfinished:
        text += f", {importance.unfinished} of them paused or stopped early"
        text += " (with what finished ones gained from there)"
    return text


def format_part(part: Choice | Interval) -> str:
    """Format a value of a choice, or the half of a range."""
    if isinstance(part, Choice):
        return label_text(part.labels[0])
    return f"{label_text(part.low)} to {label_text(part.high)}"


def format_contrast(contrast: Contrast) -> tuple[str, str]:
    """Return the difference with half of its interval, and what that means; no interval that spans
    most of what is possible.
    """
    difference = contrast.difference
    if not contrast.is_known:
        return f"{difference.mean:+.4f}", "unknown: too few trials"
    verdict = "" if contrast.is_significant else "not significant"
    return f"{difference.mean:+.4f} ± {difference.margin:.4f}", verdict
