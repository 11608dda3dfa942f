"""Print a running sweep: the live display, a line for each ended trial, and the summary at the
end.
"""

import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from grporecipe.files import as_number, finite_or_none, write_json
from grporecipe.terminal import count, redraws, short
from grposweep.report._advice import find_no_winner, next_sentence, tie_sentences
from grposweep.report._completions import winner_warning
from grposweep.report._leaderboard import contrasts_table, effects_table, leaderboard, outcome
from grposweep.report.status import seconds_left
from grposweep.report.tables import build_grid, format_duration, print_lines
from grposweep.report.trial_view import State, TrialView, formatted, group_failures, name_trials
from grposweep.report.view import SweepView
from grposweep.search.replication import CHANCE, Estimate, on_fresh_seeds
from grposweep.storage import paths

HOW_TO_RETRY = (
    "correct the cause and give the same command again: it retries trials whose files, "
    "configuration or environment changed; 'grposweep retry' retries them as they are"
)


class LiveDisplay:
    """Show a sweep until the context ends."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # there is a terminal to draw on
        self.is_live = redraws(console)
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._since = time.monotonic()

    def __enter__(self) -> "LiveDisplay":
        if self.is_live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, view: SweepView, notice: str = "") -> None:
        """Replace what is on the screen."""
        if self.is_live:
            self._live.update(live_screen(view, time.monotonic() - self._since, notice))

    def say(self, line: str) -> None:
        """Print one lasting line above the display."""
        self._console.print(line)


def live_screen(view: SweepView, elapsed: float, notice: str = "") -> Group:
    """Return the screen. ``elapsed``: seconds since the command started."""
    active = view.select(State.RUNNING, State.QUEUED)
    rows = []
    for trial in active:
        waits = view.progress.waiting.get(str(trial.number), "")
        progress = _progress(trial, waits)
        rows.append((f"trial {trial.number}", *progress, Text(short(trial.point), "dim")))
    best = view.best_point
    text = "no trial has finished yet"
    if best is not None:
        text = f"best so far: {best.brief} ({best.first.title})"
    head = _head(view, active, elapsed)
    notices = [Text(notice, "yellow")] if notice else []
    return Group(head, Text(text), Text(f"spent: {view.spent_text}"), build_grid(rows), *notices)


def _head(view: SweepView, active: list[TrialView], elapsed: float) -> Table:
    row: list[RenderableType] = [
        Text.assemble((str(view.count(State.FINISHED)), "bold"), f"/{view.planned} done"),
        ", ".join(_under_way(view, active)),
        f"{view.count(State.FAILED)} failed",
    ]
    stopped = view.count(State.PRUNED)
    if stopped:
        row.append(f"{stopped} stopped early")
    left = format_duration(seconds_left(view))
    until = f"{left} left" if left else "time left unknown yet"
    row += [f"{view.invalid_count} invalid", f"{format_duration(elapsed)} elapsed", until]
    return build_grid([row])


def _under_way(view: SweepView, active: list[TrialView]) -> Iterator[str]:
    waiting = sum(str(trial.number) in view.progress.waiting for trial in active)
    yield f"{len(active) - waiting} running"
    if waiting:
        yield f"{waiting} waiting"
    paused = view.count(State.PAUSED)
    if paused:
        yield f"{paused} paused"


def _progress(trial: TrialView, waits: str) -> tuple[RenderableType, str, str]:
    """Return a bar, its numbers and the last reward. A waiting trial has a step only from an
    earlier attempt.
    """
    steps = f"{trial.step}/{trial.total}"
    if not waits:
        bar = ProgressBar(total=max(trial.total, 1), completed=trial.step, width=20)
        return bar, steps, formatted("reward {:.3f}", trial.last_reward)
    if not trial.step:
        steps = ""
    return Text(waits, "yellow"), steps, ""


@dataclass(frozen=True)
class RunEnd:
    """What only the controller knows about the end of its run."""

    # why it stopped by itself
    halted: str = ""
    # the hours of the budget ended it
    is_spent: bool = False
    # points that are too large for a GPU's memory,
    left_out: int = 0
    # and a trial that showed it
    left_out_by: int = 0
    # search.budget; empty without one
    budget: str = ""
    # the share of the cost of finishing every trial that may be spent
    effort: float = 1.0
    # no valid point is left
    exhausted: bool = False
    # printed failures (`failure_words`), with the first trial of each
    reasons: Mapping[str, int] = field(default_factory=dict)


def trial_line(trial: TrialView, metric: str, alike: int | None = None) -> str:
    """Return one line for a trial that ended. ``alike``: an earlier trial that failed for the same
    reason.
    """
    point = short(trial.point)
    if trial.state is State.PRUNED:
        reached = formatted(f" at {metric} {{:.4f}}", trial.reached)
        return f"trial {trial.number} stopped early{reached}: {trial.reason} {point}"
    if trial.objective is None:
        reason = trial.reason if alike is None else f"as trial {alike} did"
        return f"trial {trial.number} failed: {reason} ({trial.path / paths.LOGS}) {point}"
    if trial.is_replicate:
        point = f"is trial {trial.attributes['of']} on seed {trial.attributes['seed']}"
    started = formatted(" (start {:.4f})", trial.start)
    return f"trial {trial.number} {metric} {trial.objective:.4f}{started} {point}"


def print_results(console: Console, view: SweepView, end: RunEnd) -> None:
    """Print the leaderboard, the winner's gain, failures, cost, and how to continue."""
    if view.comparison is not None:
        console.print(effects_table(view, view.comparison))
    elif view.searched:
        console.print(leaderboard(view))
    print_lines(console, *_winner(view), *tie_sentences(view), next_sentence(view))
    for line in winner_warning(view.best):
        console.print(line, style="yellow")
    print_lines(console, model_line(view, view.best), longer_line(view, view.best))
    contrasts = view.importance.contrasts
    if any(contrast.is_significant for contrast in contrasts) and not view.compares:
        console.print(contrasts_table(view.importance, view.metric))
    failed = [trial for trial in view.searched if outcome(trial) == "failed"]
    if failed:
        console.print(f"{len(failed)} failed: {name_trials(failed)}", style="yellow")
        unprinted = [trial for trial in failed if trial.failure_words not in end.reasons]
        print_lines(console, *group_failures(unprinted), HOW_TO_RETRY)
    print_lines(console, early_stopping_note(view, end.effort))
    if not end.is_spent:
        print_lines(console, continue_note(view, end.budget))
    console.print(f"spent: {view.spent_text}")
    for text, style in _run_end(view, end):
        console.print(text, style=style)
    print_lines(console, f"results in {view.path}")


def _winner(view: SweepView) -> Iterator[str]:
    """Yield the best trial with its gain, and what fresh seeds say."""
    point = view.best_point
    if point is None:
        return
    best = point.first
    # a comparison gives each value its own verdict
    is_chosen = not (view.compares or find_no_winner(view))
    name = "first in rank" if len(view.leaderboard) > 1 else "result"
    if is_chosen:
        name = "best"
    value = point.gain.text if point.gain else point.brief
    yield f"{name}: trial {best.number}, {value}"
    if best.at_best:
        yield f"trial {best.number}: {best.at_best}"
    if not view.compares:
        yield from replication_note(view)


def replication_note(view: SweepView) -> list[str]:
    """Return the result on fresh seeds in sentences; empty without replicates, and where nothing
    was chosen.
    """
    ranking = view.race
    if ranking is None or not (ranking.alive or ranking.out):
        return []
    if ranking.wanted:
        return [
            f"the leaders have not been told apart on fresh seeds yet: {len(ranking.wanted)} "
            "replicates to go"
        ]
    if ranking.winner is None:
        return [
            "no leader finished on all fresh seeds, so the best trial of the search is shown "
            "unconfirmed"
        ]
    estimate = on_fresh_seeds(ranking.winner)
    text = ""
    if estimate:
        winner = f"trial {ranking.winner.number}, {estimate}"
        missed = 1 - CHANCE ** (1 / estimate.count)
        text = f"on {estimate.count} fresh seeds: {winner} (95 %)"
        text += f"; this does not exclude a collapse on up to {missed:.0%} of seeds"
    if not ranking.tied:
        return [text, "no other leader is tied with it"]
    tied = ", ".join(str(candidate.number) for candidate in ranking.tied)
    plural = "s" * (len(ranking.tied) > 1)
    return [text, f"statistically tied with it: trial{plural} {tied}"]


def early_stopping_note(view: SweepView, effort: float = 1.0) -> str:
    """Return how many trials finished and what was spent; empty if every trial was to finish, and
    did or failed.
    """
    outcomes = Counter(map(outcome, view.searched))
    if len(view.searched) < 2 or (
        effort >= 1 and not outcomes["paused"] and not outcomes["stopped early"]
    ):
        return ""
    kinds = ("finished", "paused", "stopped early", "failed", "unfinished")
    counts = ", ".join(f"{outcomes[name]} {name}" for name in kinds if outcomes[name])
    guards = [t.result.guard for t in view.searched if t.state is State.PRUNED and t.result.failure]
    flat = guards.count("no_variance")
    reasons = {"training had collapsed": len(guards) - flat, "rewards never differed": flat}
    for reason, number in reasons.items():
        if number:
            its = "its" if number == 1 else "their"
            counts += f", {number} of them because {its} {reason}"
    finishing = ": {:.0%} of the completions that finishing every trial takes"
    return counts + formatted(finishing, _spent_share(view))


def continue_note(view: SweepView, budget: str = "") -> str:
    """Return the command and the cost of continuing the paused trials; empty if none stays
    paused.
    """
    resting = view.resting
    if not resting:
        return ""
    hours = [t.gpu_hours * (t.total - t.step) / t.step for t in resting if t.step and t.total]
    cost = f"about {sum(hours):.2g} {view.hours_unit} finish" if hours else "to finish"
    change = "search.effort=1"
    if budget:
        change = f"a larger search.budget than {budget}, which starts further trials too"
    return f"{cost} the {count(len(resting), 'paused trial')}: run the same command with {change}"


def model_line(view: SweepView, trial: TrialView | None) -> str:
    """Return where the winner's model is, or how to train it again if it was deleted; empty if none
    is kept.

    Of the fake trainer, which keeps none unless asked to, it says that nothing was trained.

    With ``trainer.keep=best`` a model is deleted once another trial leads. Fresh seeds may then
    choose the earlier one.
    """
    if trial is None:
        return ""
    # of a program of which only its metrics are known
    is_opaque = view.trainer.get("metrics") is not None
    repeats = [other for other in view.trials if other.attributes.get("of") == trial.number]
    for trained in (trial, *repeats):
        model = trained.path / paths.MODEL
        if not model.is_dir() or not any(model.iterdir()):
            continue
        text = f"its files are in {model}" if is_opaque else f"its model is in {model}"
        if trained is not trial:
            text += f" (trained on seed {trained.seed})"
        # of a program of the user's own; ours are elsewhere
        kept = len(list(model.glob("checkpoint-*")))
        if kept > 1 and not is_opaque:
            limit = "save_total_limit=1 in your script keeps one"
            text += f", with {count(kept, 'checkpoint')}: {limit}"
        return text
    if view.is_fake:
        return "fake trainer: these numbers are made up, and nothing was trained"
    from grposweep.schema.running import KEEPS_MODEL

    if not _runs_trl(view) or view.trainer.get("keep") not in KEEPS_MODEL:
        return ""
    return (
        "its model is gone (trainer.keep=best keeps the leading trial's). Train it again: "
        f"{trial.rerun}"
    )


def _runs_trl(view: SweepView) -> bool:
    from grposweep.schema import Trainer
    from grposweep.schema.registries import runs_trl

    return runs_trl(Trainer(kind=str(view.trainer.get("kind"))))


def longer_line(view: SweepView, trial: TrialView | None) -> str:
    """Return the command that trains the winner longer, or how to keep the checkpoint that it
    needs; empty if neither works.
    """
    if trial is None or not _runs_trl(view):
        return ""
    checkpoints = trial.path / paths.CHECKPOINTS
    if trial.total and (checkpoints / f"checkpoint-{trial.total}").is_dir():
        length = f"schedule.max_steps={2 * trial.total}"
        return (
            f"to train it longer: grposweep continue {shlex.quote(view.name)} {trial.number} "
            f"{length}"
        )
    return (
        "it cannot be trained longer, because its last checkpoint is not kept: "
        "trainer.keep=best_checkpoint keeps it"
    )


def _spent_share(view: SweepView) -> float | None:
    """Return the completions generated as a share of those that finishing every started trial of
    the search takes.
    """
    spent = 0.0
    whole = 0.0
    for trial in view.searched:
        total = as_number(trial.plan.get("total_completions")) or 0.0
        spent += min(trial.result.completions or 0, total)
        whole += total
    return spent / whole if whole else None


def _run_end(view: SweepView, end: RunEnd) -> Iterator[tuple[str, str]]:
    """Yield why the run ended before all trials, each with its style, and how to continue."""
    left = view.planned - view.ended
    if end.halted:
        again = "Repair that, then run the same command to continue"
        yield f"stopped, with {count(left, 'trial')} to go: {end.halted}. {again}", "red"
    if end.is_spent and left:
        stopped = view.count(State.STOPPED, State.PAUSED)
        begun = f", of which {stopped:,} begun" if stopped else ""
        again = "run the same command with a larger budget to continue"
        hours = view.progress.budget_hours or 0
        yield (
            f"search.budget={hours:g}h is spent with {count(left, 'trial')} to go{begun}; {again}",
            "yellow",
        )
    if end.left_out:
        shown = f"trial {end.left_out_by} showed that a GPU's memory is too small for them"
        yield f"{count(end.left_out, 'point')} left out: {shown}", "yellow"
    if end.exhausted:
        yield "no further valid point is left to try", ""


def write_effects(view: SweepView) -> None:
    """Write effects.json of a sweep of one factor at a time."""
    comparison = view.comparison
    if comparison is None:
        return
    effects = [
        {
            "parameter": e.parameter,
            "value": e.label,
            "trial": e.trial,
            "worth": _interval(e.estimate),
            "effect": _interval(e.effect),
            "verdict": e.verdict,
        }
        for e in comparison.effects
    ]
    content = {
        "metric": view.metric,
        # of all the effects' intervals together
        "confidence": 1 - CHANCE,
        "baseline": {"trial": comparison.baseline, "worth": _interval(comparison.estimate)},
        "effects": effects,
    }
    write_json(view.path / paths.EFFECTS, content)


def _interval(estimate: Estimate | None) -> dict[str, float | int | None] | None:
    """Return an estimate as JSON; a single seed has no ends."""
    if estimate is None:
        return None
    low = finite_or_none(estimate.low)
    high = finite_or_none(estimate.high)
    return {"mean": estimate.mean, "low": low, "high": high, "seeds": estimate.count}
