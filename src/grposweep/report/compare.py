"""``grposweep compare``: sweeps (by their best trials) and trials side by side.

Shows which settings differ, the learning curves, and whether the results differ by more than
chance (`_verdict.py`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from grporecipe.errors import UserError
from grporecipe.files import Config, Json
from grporecipe.model.values import flatten
from grporecipe.terminal import count, label_text, short
from grposweep.config.evaluation import is_of_evaluation
from grposweep.report._completions import first_difference
from grposweep.report._leaderboard import format_objective
from grposweep.report._ranking import RankedPoint
from grposweep.report._verdict import compare_points
from grposweep.report.tables import Fitted, draw_curves, folded_table
from grposweep.report.trial_view import CurvePoint, TrialView, axis_of
from grposweep.report.view import BEST, SweepView, find_names, read_sweep
from grposweep.storage.provenance import difference
from grposweep.storage.records import read_provenance

# keys of the sweep, not of a trial
NAMING = ("name", "outputs", "force", "verbose")
ABSENT = "(not set)"


class Difference(NamedTuple):
    """One key with its two values."""

    key: str
    here: Any
    there: Any


def differences(here: Config, there: Config) -> list[Difference]:
    """Return all dotted keys whose values differ, in the order of the first configuration."""
    left = flatten(here)
    right = flatten(there)
    found = []
    for key in dict.fromkeys([*left, *right]):
        pair = Difference(key, left.get(key, ABSENT), right.get(key, ABSENT))
        if key not in NAMING and pair.here != pair.there:
            found.append(pair)
    return found


# side by side in 80 columns
MOST = 6
# of each side
COMPLETIONS = 2
# Keys that change no result, or repeat another key.
LEFT_OUT = (
    "search.",
    "tracker.",
    "cluster.",
    "rules.",
    "trainer.keep",
    "trainer.python",
    "trainer.workdir",
    "schedule.checkpoint_minutes",
)
KEPT = ("search.metric", "search.direction", "search.last", "cluster.processes", "cluster.threads")


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a trial that the user named, or the best of a sweep."""

    letter: str
    view: SweepView
    trial: TrialView
    is_best: bool

    @cached_property
    def point(self) -> RankedPoint | None:
        """Its point on all seeds that count; None without a result."""
        return self.view.places.get(self.trial.number, (0, None))[1]

    @property
    def searched(self) -> int:
        """How many finished trials the best was chosen from."""
        return len(self.view.finished)

    @property
    def title(self) -> str:
        """The heading of this side."""
        of = f", the best of {count(self.searched, 'trial')}" if self.is_best else ""
        return f"{self.view.name}, trial {self.trial.number}{of}: {short(self.trial.point)}"


def compare_all(named: Sequence[str], outputs: Path) -> Group:
    """Return the screen for what the user names: sweeps, ``[SWEEP] TRIAL``, ``SWEEP/TRIAL``, or
    paths.

    Raises UserError for fewer than two names, for more than fit, for one trial named twice, and for
    a sweep without a result.
    """
    names = find_names(named, outputs) if named else []
    if not 2 <= len(names) <= MOST:
        raise UserError(
            f"{count(len(names), 'name')} given, and a comparison takes two to {MOST} sweeps or "
            "trials. Name them: grposweep compare lr_batch 3 7."
        )
    sides = []
    by_path: dict[Path, str] = {}
    for letter, (folder, trial) in zip(ascii_uppercase, names, strict=False):
        view = read_sweep(folder)
        found = view.trial(trial or BEST)
        sides.append(Side(letter, view, found, is_best=trial in ("", BEST)))
    for side, (folder, trial) in zip(sides, names, strict=True):
        name = f"{folder.path.name}/{trial}".rstrip("/")
        path = side.trial.path.resolve()
        if path in by_path:
            raise UserError(
                f"{by_path[path]} and {name} name the same trial ({side.view.name}, trial "
                f"{side.trial.number}), so nothing can differ. Name another trial or sweep."
            )
        by_path[path] = name
    return Group(
        *_heads(sides), *_settings(sides), *_curves(sides), *_completions(sides), *_verdicts(sides)
    )


def _provenance(side: Side) -> Json:
    """Return what the trial was trained with; a retried trial has other files than its sweep began
    with.
    """
    return read_provenance(side.trial.path) or dict(side.view.provenance)


def _heads(sides: Sequence[Side]) -> Iterator[RenderableType]:
    for side in sides:
        yield Text.assemble((f"{side.letter} ", "bold"), side.title, overflow="fold")
        value = side.trial.state.label
        if side.trial.objective is not None:
            value = format_objective(side.trial)
        if side.point and side.point.source == "seeds":
            value += f"; {side.point.brief}"
        yield Text(f"  {side.view.metric} {value}")
    first = sides[0]
    for side in sides[1:]:
        if first.view.path != side.view.path:
            changes = difference(_provenance(first), _provenance(side))
            if changes:
                text = f"  {side.letter} has other code or packages than A: {changes}"
                yield Text(text, "yellow")


def _settings(sides: Sequence[Side]) -> Iterator[RenderableType]:
    """Yield a table with a row for every key in which a side differs from A."""
    letters = [side.letter for side in sides]
    rows: dict[str, dict[str, str]] = {}
    for side in sides[1:]:
        for key, here, there in _stated_by_both(sides[0], side):
            if key in KEPT or not key.startswith(LEFT_OUT):
                row = rows.setdefault(key, dict.fromkeys(letters, label_text(here)))
                row[side.letter] = label_text(there)
    if not rows:
        yield Text("\nno setting differs that could change a number")
        return
    yield Text("")
    yield folded_table(["setting", *letters], [(key, *row.values()) for key, row in rows.items()])


def _curves(sides: Sequence[Side]) -> Iterator[RenderableType]:
    metric = sides[0].view.metric
    every: list[CurvePoint] = []
    curves = {}
    for side in sides:
        points = side.trial.curve(metric)
        curves[side.letter] = [(point.completions, point.value) for point in points]
        every += points
    if every:
        yield Text(f"{metric} (* where curves meet)", "bold")
        yield Fitted(partial(draw_curves, curves, axis=axis_of(every)))


def _completions(sides: Sequence[Side]) -> Iterator[RenderableType]:
    """Yield for each side the first completions that differ from those of A to the same held-out
    prompts.
    """
    first = sides[0]
    for side in sides[1:]:
        differing = first_difference(first.trial, side.trial)
        for prompt, ours, theirs in islice(differing, COMPLETIONS):
            yield Text.assemble(("\nprompt ", "bold"), prompt)
            yield Text(f"{first.letter}      {ours}\n{side.letter}      {theirs}")


def _verdicts(sides: Sequence[Side]) -> Iterator[RenderableType]:
    """Yield the comparison of each side with the first, and a warning about unequal searches."""
    first = sides[0]
    yield Text("")
    for side in sides[1:]:
        yield Text.assemble((f"{side.letter} - {first.letter}: ", "bold"), _verdict(first, side))
    if any(map(_is_chosen, sides)):
        yield Text("the best of many trials looks better than it is", "yellow")


def _verdict(first: Side, side: Side) -> str:
    if first.view.metric != side.view.metric:
        return f"{side.view.metric} and {first.view.metric} are different objectives"
    ours = first.point
    theirs = side.point
    if ours is None or theirs is None:
        return "no result on one side"
    if ours == theirs:
        # two seeds of one point, whose mean is the same on both sides
        ours, theirs = (replace(ours, counted=[each.trial]) for each in (first, side))
    verdict = compare_points(ours, theirs, _chosen_among(first, side))
    return f"{verdict}{_measured_differently(first, side)}"


def _is_chosen(side: Side) -> bool:
    """Return whether a side was chosen by its value, which fresh seeds were not."""
    return bool(side.is_best and side.searched > 1 and side.point and not side.point.is_fresh)


def _chosen_among(first: Side, side: Side) -> int:
    """Return how many comparisons this one was chosen from by its results.

    Those are all of a sweep whose best trial is compared with another of its trials. Otherwise they
    are the trials that a best was chosen from: of two, those of the better one, whose luck makes
    the difference.
    """
    if first.view.path == side.view.path and (first.is_best or side.is_best):
        return first.view.comparisons
    chosen = [
        (each.point.sign * each.point.value, each.searched)
        for each in (first, side)
        if each.point and _is_chosen(each)
    ]
    return max(chosen, default=(0.0, 1))[1]


def _stated_by_both(first: Side, side: Side) -> Iterator[Difference]:
    """Yield the keys that differ; another version of grposweep may have no such key."""
    for pair in differences(first.trial.config, side.trial.config):
        if ABSENT not in (pair.here, pair.there):
            yield pair


def _measured_differently(first: Side, side: Side) -> str:
    """Return what makes the values of two sides no pure effect of training; empty if nothing
    does.
    """
    keys = [pair.key for pair in _stated_by_both(first, side) if is_of_evaluation(pair.key)]
    text = ""
    if keys:
        text = (
            f"\nThey are measured differently ({', '.join(keys)}), so this is no effect of "
            "training alone."
        )
    if first.trial.files and side.trial.files and first.trial.files != side.trial.files:
        text += "\nThey read other contents of reward or data files."
    return text
