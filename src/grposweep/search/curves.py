"""Learning curves of a sweep's trials, and the guards that end one."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from grporecipe.files import Config
from grporecipe.model.guards import GUARDS, TWICE, RewardCurve, recent, reward_fallen


class State(StrEnum):
    """The state of a trial."""

    RUNNING = "running"
    # It has a checkpoint, from which it may be resumed.
    PAUSED = "paused"
    FINISHED = "finished"
    # Finally.
    STOPPED = "stopped"


class Place(NamedTuple):
    """Where a trial stands at the rungs of an early-stopping policy."""

    number: int
    state: State
    # completions: of a whole training, so far, until the first evaluation
    total: float
    done: float
    interval: float
    # of the training that is done at the last evaluation
    share: float
    # how many rungs it has reached, its values there, and the largest value tied with the last one
    level: int
    values: list[float]
    tied: float
    # whether the newest evaluation is at a rung
    is_at_rung: bool


@dataclass(frozen=True, kw_only=True)
class Curve(RewardCurve):
    """A trial's learning curve. Its values are negated if the sweep minimises.

    ``trained``: completions so far, if they are more than at the last evaluation.
    """

    number: int
    state: State
    point: Config = field(default_factory=dict)
    trained: float = 0.0
    # by the rungs, and whether values may be tied; early_stopping/_table.py finds each once
    places: dict[tuple[tuple[float, ...], bool], Place] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def done(self) -> float:
        """Return the completions that were generated so far."""
        return max([self.trained, *self.completions[-1:]])

    @property
    def share(self) -> float:
        """Return the share of the training that is done at the last evaluation, 0 to 1."""
        return min(self.completions[-1] / self.total, 1.0) if self.completions else 0.0

    def until(self, seen: int) -> "Curve":
        """Return the curve as it was after so many evaluations."""
        return replace(
            self,
            completions=self.completions[:seen],
            held_out=self.held_out[:seen],
            errors=self.errors[:seen],
            signals={name: values[:seen] for name, values in self.signals.items()},
            trained=0.0,
        )


class GuardTriggered(NamedTuple):
    """The name of a guard and its evidence."""

    guard: str
    evidence: str


def check_curve(curve: Curve, is_reward: bool = True) -> GuardTriggered | None:
    """Return the first guard that finds the training collapsed, or None.

    ``is_reward``: the sweep maximises a reward. For a minimised metric, ``reward_fallen`` does not
    apply.
    """
    for name, guard in GUARDS.items():
        if is_reward or guard is not reward_fallen:
            evidence = guard(curve)
            if evidence:
                return GuardTriggered(name, evidence)
    return None


def one_template(curve: Curve, most: float) -> GuardTriggered | None:
    """Return the finding that more than a share of the completions are one template.

    It is opt-in, so it is not in `GUARDS`.
    """
    shares = recent(curve, "templates", TWICE)
    if len(shares) < TWICE or min(shares) <= most:
        return None
    limit = f"more than search.max_template_share={most:g} twice"
    evidence = f"{shares[-1]:.0%} of the held-out completions are one template, {limit}"
    return GuardTriggered("one_template", evidence)
