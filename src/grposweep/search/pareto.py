"""Several objectives: what a trial is worth in each, and which trials nobody beats in all of them (the Pareto front)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


Values = tuple[float, ...]


@dataclass(frozen=True)
class ExtraObjectives:
    """Objectives beside the first one: their names with directions, and where a finished trial's values come from."""

    directions: Mapping[str, str]
    read: Callable[["FrozenTrial"], Values | None]  # of a finished trial; None where one is missing

    def values(self, trial: "FrozenTrial") -> Values | None:
        """All of a finished trial's values, the first objective's first."""
        found = self.read(trial)
        return None if found is None or trial.value is None else (trial.value, *found)

    def signs(self, first: int) -> list[int]:
        """What makes larger better in each objective; ``first`` is the first one's."""
        return [first, *signs_of(self.directions)]


def signs_of(directions: Mapping[str, str]) -> list[int]:
    """1 for every objective that is to be large, -1 for any other."""
    return [1 if direction == "maximize" else -1 for direction in directions.values()]


def pareto_front(values: Mapping[int, Sequence[float]], signs: Sequence[int]) -> list[int]:
    """The numbers of those that no other equals or beats in every objective, and beats in one; best in the first one first."""
    signed = {number: [s * value for s, value in zip(signs, found, strict=True)] for number, found in values.items()}
    front = [n for n, own in signed.items() if not any(_dominates(other, own) for other in signed.values())]
    return sorted(front, key=lambda number: ([-value for value in signed[number]], number))


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a >= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)
