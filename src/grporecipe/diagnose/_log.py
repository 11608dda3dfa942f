"""A training log of any framework with one set of names: metrics by optimizer step."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from grporecipe.model.metrics import step_of, translate

# logged lines; only the last ones of a longer log are kept
MOST_ROWS = 200_000
# no supervised training logs these
_SIGNS = frozenset({"reward", "zero_std", "eval_reward", "clip_ratio", "mismatch_kl"})
# verl's KL, whose scale depends on the release; EasyR1 logs it in nats, with its own reward
_SCALED_KL, _EASYR1 = "actor/kl_loss", "reward/overall"


@dataclass
class Log:
    """A parsed log. ``rows`` holds metrics under this project's names by optimizer step, in
    order.
    """

    path: str
    format: str
    rows: dict[int, dict[str, float]] = field(default_factory=dict)
    # optimizer steps of the whole training, if the log states them
    total: int | None = None
    # the lines state no steps and are numbered
    counted: bool = False
    # type of the weights in training, such as bfloat16; None is unknown
    weights: str | None = None
    # damaged lines
    skipped: int = 0
    # KL is verl's actor/kl_loss, which some releases do not log in nats
    kl_is_scaled: bool = False
    # what was converted by the recipe
    converted: str = ""

    @classmethod
    def build(
        cls, path: str, format: str, lines: Iterable[Mapping[str, object]], total: int | None = None
    ) -> "Log":
        """Merge logged lines by step; later values of the same step override. Lines without a step
        are numbered.
        """
        log = cls(path, format, total=total)
        rows: dict[int, dict[str, float]] = {}
        last = 0
        own_kl = False
        for line in lines:
            log.kl_is_scaled |= _SCALED_KL in line
            own_kl |= _EASYR1 in line
            step, end = step_of(line)
            values = translate(line)
            log.total = end or log.total
            if not values:
                continue
            evaluation = "reward" not in values and "loss" not in values
            if step is None:
                log.counted = True
                step = last if evaluation else last + 1
            last = step
            rows.setdefault(step, {}).update(values)
            if len(rows) > 2 * MOST_ROWS:
                rows = dict(list(rows.items())[-MOST_ROWS:])
        log.kl_is_scaled = log.kl_is_scaled and not own_kl
        log.rows = dict(sorted(rows.items()))
        return log

    @property
    def is_grpo(self) -> bool:
        """Return whether there is a metric that only trainings with rewards log."""
        return any(_SIGNS & row.keys() for row in self.rows.values())

    @cached_property
    def steps(self) -> list[int]:
        """Return the steps that have training metrics."""
        return [step for step, row in self.rows.items() if "reward" in row or "loss" in row]

    @property
    def end(self) -> int:
        """Return the last step of training."""
        if self.steps:
            return self.steps[-1]
        return 0

    @property
    def range(self) -> tuple[int, int]:
        """Return the first and the last step of training."""
        return self.steps[0], self.end

    def series(self, name: str) -> list[tuple[int, float]]:
        """Return a metric as pairs of step and finite value."""
        return [(step, value) for step, value in self.every(name) if math.isfinite(value)]

    def values(self, name: str) -> list[float]:
        """Return the finite values of a metric."""
        return [value for _, value in self.series(name)]

    def every(self, name: str) -> Iterator[tuple[int, float]]:
        """Yield a metric as pairs of step and value, including NaN and infinity."""
        return ((step, row[name]) for step, row in self.rows.items() if name in row)

    def has(self, *names: str) -> bool:
        """Return whether each of these metrics has a value."""
        return all(any(self.every(name)) for name in names)
