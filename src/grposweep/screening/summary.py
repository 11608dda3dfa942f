"""Summarise a screen: shares of groups with a signal, a filter and a group size that fit, and faults of the reward."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from grposweep.screening.signal import EQUAL, PassRates, Share, graded_share, graded_signals
from grposweep.storage.screens import PassRatesRecord, PromptSamples, ScreenedData, ScreenRequest, read_samples

MOST_GENERATIONS = 128  # largest group size for which rules get the share of groups with a signal
GROUPS = (2, 4, 8, 16, 32, 64)  # group sizes in the table, with the one that is set
BOUNDS = ((0.02, 0.98), (0.05, 0.95), (0.1, 0.9), (0.2, 0.8))  # of filters, widest first
ENOUGH = 0.8  # share of groups with a signal; above it no filter is advised
NEARLY = 0.9  # of the largest group's share: a group that reaches it is large enough
LEAST_STEPS = 2  # optimizer steps; a filter must leave prompts for them
TRUNCATED, MISSED = 0.2, 0.05  # shares of completions from which they are reported
CANCELLED = 0.5  # variance of the total within groups, relative to the sum over rewards
EXAMPLES = 2


class Finding(NamedTuple):
    """A problem and its remedy, one sentence each."""

    text: str
    advice: str


@dataclass(frozen=True)
class Advice:
    """The advised filter (None: keep all) and number of generations, and the share of groups that then carry a signal."""

    bounds: tuple[float, float] | None
    kept: int
    group: int
    share: Share


@dataclass(frozen=True)
class Screen:
    """A screen as read from its folder. ``key`` identifies model, prompts, rewards and sampling."""

    folder: Path
    key: str
    request: ScreenRequest
    data: ScreenedData
    prompts: tuple[PromptSamples, ...]

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the screen in a folder, finished or not; None if it has no samples."""
        request, data, prompts = ScreenRequest.read(folder), ScreenedData.read(folder), tuple(read_samples(folder))
        if request is None or data is None or not prompts:
            return None
        return cls(folder, folder.name.rpartition("-")[0], request, data, prompts)

    @property
    def wanted(self) -> int:
        """Return the number of prompts to screen."""
        return min(self.request.prompts or self.data.train_prompts, self.data.train_prompts)

    @property
    def is_whole(self) -> bool:
        """Return whether every training prompt is screened, which a filter needs."""
        return len(self.prompts) >= self.data.train_prompts

    @cached_property
    def totals(self) -> list[list[float]]:
        """Return the weighted reward of each sample, by prompt."""
        return [prompt.totals(self.data.weights) for prompt in self.prompts]

    @cached_property
    def values(self) -> list[float]:
        """Return the distinct rewards, lowest first."""
        ordered = sorted(value for row in self.totals for value in row)
        return [v for i, v in enumerate(ordered) if i == 0 or v - ordered[i - 1] > EQUAL]

    @property
    def is_binary(self) -> bool:
        """Return whether rewards are pass or fail. Otherwise they are graded."""
        return len(self.values) <= 2

    @cached_property
    def passed(self) -> list[float]:
        """Return how many samples of each prompt passed. Graded rewards are scaled to 0 to 1 and added."""
        low, high = (self.values[0], self.values[-1]) if len(self.values) > 1 else (0.0, max([1.0, *self.values]))
        return [sum(min(max((value - low) / (high - low), 0.0), 1.0) for value in row) for row in self.totals]

    @cached_property
    def rates(self) -> PassRates:
        """Return the posteriors of the prompts' pass rates."""
        return PassRates.estimate(self.passed, [len(row) for row in self.totals])

    def share(self, group: int, prompts: Sequence[int] | None = None) -> Share:
        """Return the share of groups of ``group`` completions with a signal. ``prompts`` are positions (None: all)."""
        chosen = range(len(self.prompts)) if prompts is None else prompts
        if self.is_binary:
            return self.rates.only(list(chosen)).share(group, self.data.train_prompts if prompts is None else None)
        return graded_share([self.totals[i] for i in chosen], group)

    def kept(self, bounds: Sequence[float] | None) -> list[int]:
        """Return the positions of the prompts whose expected pass rate is within bounds."""
        if bounds is None:
            return list(range(len(self.prompts)))
        return np.flatnonzero((self.rates.means >= bounds[0]) & (self.rates.means <= bounds[1])).tolist()

    def signal_shares(self, bounds: Sequence[float] | None) -> tuple[float, ...]:
        """Return the expected share for each group size, for the rules. Empty if no prompt is kept."""
        kept, groups = self.kept(bounds), range(2, MOST_GENERATIONS + 1)
        if not kept:
            return ()
        if self.is_binary:
            rates = self.rates.only(kept)
            means = [float(rates.signals(group).mean()) for group in groups]
        else:
            means = graded_signals([self.totals[i] for i in kept], groups).mean(0).tolist()
        return (0.0, 0.0, *means)

    @property
    def truncated_share(self) -> float:
        """Return the share of completions that reached the length limit."""
        return float(np.mean([flag for prompt in self.prompts for flag in prompt.truncated]))

    def pass_rates(self) -> PassRatesRecord | None:
        """Return the record by which trials filter prompts; None if the screen is incomplete."""
        if not self.is_whole:
            return None
        pairs = zip(self.prompts, self.rates.means, strict=True)
        rates = {prompt.prompt: round(float(rate), 6) for prompt, rate in pairs}
        train = self.data.hashes.get("train", "")
        return PassRatesRecord(self.key, self.request.samples, train, tuple(rates[i] for i in sorted(rates)))


def recommend(screen: Screen, group: int, groups: Sequence[int], prompts_per_step: float) -> Advice:
    """Return the filter and the number of generations that fit.

    The filter is the widest for which 80 % of the groups carry a signal, or the one with the most, if prompts for two
    optimizer steps are left. The group is the smallest of ``groups`` whose interval reaches 90 % of the share of the
    largest.
    """
    bounds = _bounds(screen, group, prompts_per_step)
    kept = screen.kept(bounds)
    shares = {size: screen.share(size, kept) for size in sorted({*groups, group})}
    most = max(share.mean for share in shares.values())
    chosen = next(size for size, share in shares.items() if share.high >= NEARLY * most)
    return Advice(bounds, len(kept), chosen, shares[chosen])


def _bounds(screen: Screen, group: int, prompts_per_step: float) -> tuple[float, float] | None:
    if screen.share(group).mean >= ENOUGH:
        return None
    enough = max(LEAST_STEPS * prompts_per_step * len(screen.prompts) / screen.data.train_prompts, 1)
    left = {bounds: kept for bounds in BOUNDS if len(kept := screen.kept(bounds)) >= enough}
    shares = {bounds: screen.share(group, kept).mean for bounds, kept in left.items()}
    most = max(shares, key=shares.__getitem__, default=None)
    return next((bounds for bounds, share in shares.items() if share >= ENOUGH), most)


def findings(screen: Screen, limit: int) -> Iterator[Finding]:
    """Yield problems with length, rewards, data and answer parsing. ``limit`` is max_completion_length in tokens."""
    if screen.truncated_share > TRUNCATED:
        yield Finding(
            f"{screen.truncated_share:.0%} of the completions reach {limit} tokens and are cut.",
            "Raise generation.max_completion_length, or change the prompt to get shorter answers.",
        )
    yield from _rewards(screen)
    unjudged = sum(value is None for prompt in screen.prompts for row in prompt.rewards for value in row)
    if unjudged:
        yield Finding(f"{unjudged} rewards are None: the reward could not judge.", "Look at the reward function.")
    if screen.data.duplicates:
        other = f", {screen.data.conflicts} of them with another answer" if screen.data.conflicts else ""
        yield Finding(
            f"{screen.data.duplicates} training prompts occur before{other}: {screen.data.repeated[:60]!r}.",
            "Remove them; with another answer the reward contradicts itself.",
        )
    share, _ = missed_answers(screen)
    if share > MISSED:
        yield Finding(
            f"{share:.0%} of the completions contain the answer and have the lowest reward.",
            "Look at the examples: the parser may miss the answer, or the model has yet to learn the format.",
        )


def missed_answers(screen: Screen) -> tuple[float, list[PromptSamples]]:
    """Return the share of completions that contain the answer but have the lowest reward, and prompts as examples."""
    lowest = screen.values[0] if screen.values else 0.0
    if len(screen.values) == 1 and lowest > 0:
        return 0.0, []  # all pass
    missed, examples = 0, []
    for prompt, totals in zip(screen.prompts, screen.totals, strict=True):
        flags = [m and value <= lowest + EQUAL for m, value in zip(prompt.mentions, totals, strict=False)]
        missed += sum(flags)
        if any(flags) and prompt.answer in prompt.example:
            examples.append(prompt)
    return missed / max(sum(map(len, screen.totals)), 1), examples[:EXAMPLES]


def _rewards(screen: Screen) -> Iterator[Finding]:
    """Yield rewards that are constant, and pairs that cancel within groups."""
    parts = []  # each reward of all samples minus the mean of its prompt
    for number in range(len(screen.data.rewards)):
        rows = [np.array(prompt.rewards[number], float) for prompt in screen.prompts]  # None is NaN
        means = [np.nanmean(row) if np.isfinite(row).any() else 0.0 for row in rows]
        parts.append(np.concatenate([row - mean for row, mean in zip(rows, means, strict=True)]))
    names, weights = screen.data.rewards, screen.data.weights
    for name, number in zip(names, range(len(names)), strict=True):
        values = {value for prompt in screen.prompts for value in prompt.rewards[number] if value is not None}
        if values and max(values) - min(values) <= EQUAL:
            yield Finding(
                f"The reward {name} is {min(values):g} for every completion.",
                "It teaches nothing: check it, or remove it.",
            )
    for one, other in combinations(range(len(parts)), 2):
        first, second = weights[one] * parts[one], weights[other] * parts[other]
        apart = float(np.nanvar(first) + np.nanvar(second))
        if apart > EQUAL and np.nanvar(first + second) < CANCELLED * apart:
            yield Finding(
                f"The rewards {names[one]} and {names[other]} cancel: together their variance within groups is "
                f"{np.nanvar(first + second) / apart:.0%} of the sum of their own.",
                "One punishes what the other rewards. Change task.reward_weights.",
            )
