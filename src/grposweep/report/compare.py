"""``grposweep compare``: sweeps (by their best trials) and trials side by side.

Shows which settings differ, the learning curves, and whether the results differ by more than
chance: by Welch's t-test over several seeds, otherwise by a z-test from the evaluations' standard
errors.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from statistics import fmean
from string import ascii_uppercase
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from grporecipe.errors import UserError
from grporecipe.files import Config, Json, read_json
from grporecipe.model.values import flatten
from grporecipe.terminal import count, label_text, short
from grposweep.config.evaluation import is_of_evaluation
from grposweep.report._completions import first_difference
from grposweep.report._leaderboard import format_objective
from grposweep.report.tables import FOLD, Fitted, build_table, draw_curves
from grposweep.report.trial_view import TrialView, axis_of
from grposweep.report.view import BEST, SweepView, find_names, read_sweep
from grposweep.search.replication import CHANCE
from grposweep.search.sampling import Sampling, average
from grposweep.storage import paths
from grposweep.storage.provenance import difference

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
    left, right = flatten(here), flatten(there)
    keys = [key for key in dict.fromkeys([*left, *right]) if key not in NAMING]
    pairs = (Difference(key, *(side.get(key, ABSENT) for side in (left, right))) for key in keys)
    return [pair for pair in pairs if pair.here != pair.there]


# smaller p-values are not meaningful
LEAST = 1e-6


@dataclass(frozen=True)
class Values:
    """The results of one side: one value and its sampling per seed."""

    values: Sequence[float]
    samplings: Sequence[Sampling]

    def minus(self, other: "Values") -> Sampling:
        """Return the sampling of the difference of the means."""
        return average(self.samplings).minus(average(other.samplings))


def compare(first: Values, other: Values, among: int = 1) -> str:
    """Return the difference ``other - first``, its p-value, and the test behind it.

    ``among``: comparisons from which this one was chosen by its results; p and the interval hold
    for all of them (Bonferroni).
    """
    difference = fmean(other.values) - fmean(first.values)
    if len(first.values) > 1 and len(other.values) > 1:
        return f"{difference:+.4f}, {_welch(first, other, among)}"
    sampled = Values(first.values[:1], first.samplings[:1]).minus(
        Values(other.values[:1], other.samplings[:1])
    )
    p, half = sampled.p_value(difference), sampled.margin(CHANCE / among)
    if p is None:
        return (
            f"{difference:+.4f}; there are neither several seeds per side nor standard "
            "errors, so this may be chance"
        )
    prompts = len(sampled.means)
    how = (
        f"t-test, paired over {prompts:,} prompts"
        if prompts
        else "z-test from the evaluations' standard errors"
    )
    how += f", for the best of {among:,} comparisons" if among > 1 else ""
    return (
        f"{difference:+.4f} ± {half:.4f} (95 %), {_chance(min(p * among, 1.0))} ({how}; "
        "it covers the choice of prompts. To cover seeds, train several on each side)"
    )


def _welch(first: Values, other: Values, among: int) -> str:
    """Welch's t-test, two-sided, unequal variances; p is at least that of the evaluations' own
    errors.
    """
    # half a second
    from scipy import stats

    counts = f"{len(first.values)} and {len(other.values)} seeds"
    agree = len(set(first.values)) == len(set(other.values)) == 1
    p = (
        math.nan
        if agree
        else float(stats.ttest_ind(other.values, first.values, equal_var=False).pvalue)
    )
    if (
        sampled := other.minus(first).p_value(fmean(other.values) - fmean(first.values))
    ) is not None:
        p = sampled if math.isnan(p) else max(p, sampled)
    if math.isnan(p):
        return f"over {counts} that all agree: no spread to test against"
    chosen = f", for the best of {among:,} comparisons" if among > 1 else ""
    return f"{_chance(min(p * among, 1.0))} (Welch's t-test over {counts}{chosen})"


def _chance(p: float) -> str:
    return f"p = {p:.2g}" if p >= LEAST else f"p < {LEAST:g}"


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
    def seeds(self) -> list[TrialView]:
        """The finished trials of its point, on all seeds."""
        point = _but_seed(self.trial)
        return [trial for trial in self.view.ranked if _but_seed(trial) == point] or [self.trial]

    @property
    def values(self) -> Values:
        """The results of its seeds, the trial's own first.

        The own result of a winner with two or more replicates does not count: the winner was chosen
        by it.
        """
        others = [trial for trial in self.seeds if trial.number != self.trial.number]
        known = others if self.is_best and len(others) > 1 else [self.trial, *others]
        # a winner's replicates may have read other files than the search
        files = known[0].files
        known = list(
            {
                t.seed: t for t in known[::-1] if t.objective is not None and t.files == files
            }.values()
        )[::-1]
        return Values(
            [trial.objective or 0.0 for trial in known], [trial.sampling for trial in known]
        )

    @property
    def own_value(self) -> Values:
        """The result of the trial alone, without its point's other seeds."""
        known = self.trial.objective
        return Values([] if known is None else [known], [self.trial.sampling])

    def is_other_seed(self, other: "Side") -> bool:
        """Return whether the user named two trials of one point, which differ in their seeds
        only.
        """
        is_one_point = self.view.path == other.view.path and _but_seed(self.trial) == _but_seed(
            other.trial
        )
        return is_one_point and not (self.is_best or other.is_best)

    @property
    def is_fresh(self) -> bool:
        """Whether its values are from seeds that the choice of the best did not see."""
        return (
            self.is_best
            and len([trial for trial in self.seeds if trial.number != self.trial.number]) > 1
        )

    @property
    def searched(self) -> int:
        """How many finished trials the best was chosen from."""
        return sum(not trial.is_replicate for trial in self.view.ranked)

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
    for letter, (folder, trial) in zip(ascii_uppercase, names, strict=False):
        view = read_sweep(folder)
        sides.append(Side(letter, view, view.trial(trial or BEST), is_best=trial in ("", BEST)))
    _refuse_same(sides, [f"{folder.path.name}/{trial}".rstrip("/") for folder, trial in names])
    return Group(
        *_heads(sides), *_settings(sides), *_curves(sides), *_completions(sides), *_verdicts(sides)
    )


def _refuse_same(sides: Sequence[Side], named: Sequence[str]) -> None:
    """Raise UserError if two names stand for one result: a trial's own, or that of a winner on its
    other seeds.
    """
    names: dict[tuple[Path, bool], str] = {}
    for side, name in zip(sides, named, strict=True):
        result = side.trial.path.resolve(), side.is_best
        if result in names:
            raise UserError(
                f"{names[result]} and {name} name the same trial ({side.view.name}, trial "
                f"{side.trial.number}), so nothing can differ. Name another trial or sweep."
            )
        names[result] = name


def _but_seed(trial: TrialView) -> dict[str, object]:
    return {name: label for name, label in trial.point.items() if name != "seed"}


def _provenance(side: Side) -> Json:
    """Return what the trial was trained with; a retried trial has other files than its sweep began
    with.
    """
    return read_json(side.trial.path / paths.PROVENANCE) or dict(side.view.provenance)


def _heads(sides: Sequence[Side]) -> Iterator[RenderableType]:
    for side in sides:
        yield Text.assemble((f"{side.letter} ", "bold"), side.title, overflow="fold")
        value = (
            side.trial.state.label if side.trial.objective is None else format_objective(side.trial)
        )
        yield Text(f"  {side.view.metric} {value}{_over_seeds(side)}")
    first = sides[0]
    for side in sides[1:]:
        if first.view.path != side.view.path and (
            changes := difference(_provenance(first), _provenance(side))
        ):
            yield Text(f"  {side.letter} has other code or packages than A: {changes}", "yellow")


def _over_seeds(side: Side) -> str:
    values = side.values.values
    chosen = "other " if side.is_best and len(values) < len(side.seeds) else ""
    return f"; {len(values)} {chosen}seeds: {fmean(values):.4f}" if len(values) > 1 else ""


def _settings(sides: Sequence[Side]) -> Iterator[RenderableType]:
    """Yield a table with a row for every key in which a side differs from A."""
    letters = [side.letter for side in sides]
    rows: dict[str, dict[str, str]] = {}
    for side in sides[1:]:
        for key, here, there in differences(sides[0].trial.config, side.trial.config):
            if ABSENT in (here, there):
                # another version of grposweep had no such key
                continue
            if key in KEPT or not key.startswith(LEFT_OUT):
                row = rows.setdefault(key, dict.fromkeys(letters, label_text(here)))
                row[side.letter] = label_text(there)
    if not rows:
        yield Text("\nno setting differs that could change a number")
        return
    columns = [(title, FOLD) for title in ("setting", *letters)]
    yield Text("")
    yield build_table(columns, ((key, *row.values()) for key, row in rows.items()))


def _curves(sides: Sequence[Side]) -> Iterator[RenderableType]:
    metric = sides[0].view.metric
    by_letter = {side.letter: side.trial.curve(metric) for side in sides}
    curves = {
        letter: [(point.completions, point.value) for point in points]
        for letter, points in by_letter.items()
    }
    if any(curves.values()):
        yield Text(f"{metric} (* where curves meet)", "bold")
        yield Fitted(
            partial(draw_curves, curves, axis=axis_of([*chain.from_iterable(by_letter.values())]))
        )


def _completions(sides: Sequence[Side]) -> Iterator[RenderableType]:
    """Yield for each side the first completions that differ from those of A to the same held-out
    prompts.
    """
    for side in sides[1:]:
        for prompt, ours, theirs in islice(
            first_difference(sides[0].trial, side.trial), COMPLETIONS
        ):
            yield Text.assemble(("\nprompt ", "bold"), prompt)
            yield Text(f"{sides[0].letter}      {ours}\n{side.letter}      {theirs}")


def _verdicts(sides: Sequence[Side]) -> Iterator[RenderableType]:
    """Yield the comparison of each side with the first, and a warning about unequal searches."""
    first = sides[0]
    yield Text("")
    for side in sides[1:]:
        yield Text.assemble((f"{side.letter} - {first.letter}: ", "bold"), _verdict(first, side))
    sizes = {side.searched for side in sides if side.is_best}
    if len(sizes) > 1:
        yield Text(
            "the best of many trials looks better than it is; more trials make this bias larger",
            "yellow",
        )


def _verdict(first: Side, side: Side) -> str:
    if first.view.metric != side.view.metric:
        return f"{side.view.metric} and {first.view.metric} are different objectives"
    if not (first.values.values and side.values.values):
        return "no result on one side"
    # the mean over seeds is the same on both sides
    if first.is_other_seed(side):
        return compare(first.own_value, side.own_value)
    return compare(first.values, side.values, _chosen_among(first, side)) + _measured_differently(
        first, side
    )


def _chosen_among(first: Side, side: Side) -> int:
    """Return how many comparisons this one was chosen from by its results.

    Those are all pairs of a sweep whose best trial is compared with another of its trials. The best
    of a sweep against something else was chosen from its trials. Two bests of as many trials have
    the same bias. Fresh seeds were not seen by the choice.
    """
    bests = [each for each in (first, side) if each.is_best and not each.is_fresh]
    sizes = {each.searched for each in bests}
    if not bests or (len(bests) == 2 and len(sizes) == 1):
        return 1
    most = max(sizes)
    return max(most * (most - 1) // 2, 1) if first.view.path == side.view.path else max(most, 1)


def _measured_differently(first: Side, side: Side) -> str:
    """Return what makes the values of two sides no pure effect of training; empty if nothing
    does.
    """
    pairs = differences(first.trial.config, side.trial.config)
    keys = [
        key for key, here, there in pairs if ABSENT not in (here, there) and is_of_evaluation(key)
    ]
    text = ""
    if keys:
        text = (
            f"\nThey are measured differently ({', '.join(keys)}), so this is no effect of "
            "training alone."
        )
    if first.trial.files and side.trial.files and first.trial.files != side.trial.files:
        text += "\nThey read other contents of reward or data files."
    return text
