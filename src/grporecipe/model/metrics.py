"""One set of names for the metrics that frameworks log, and the optimizer step of a logged line."""

import math
import re
from collections.abc import Mapping
from functools import cache

from grporecipe.files import read_own_yaml

MOST_STEPS = 10**12
# a larger number counts as infinite: its square is no float
_LARGEST = 1e100

STEPS = (
    "step",
    "_step",
    "global_step",
    "training/global_step",
    "Step",
    "iteration",
    "global_step/max_steps",
)
# of TRL, ms-swift and Open-R1 ("rewards/format_reward/mean"), and of EasyR1 ("reward/format")
_FUNCTION = r"rewards?/(?!overall|mean$|std|min$|max$)[^/]+(/mean)?"
# verl's, one for each data source
_VALIDATION = r"val-core/.+/mean@\d+|val/test_score/.+"
# ms-swift's step and the last one
_OF = r"(\d{1,12})/(\d{1,12})"
# verl printed three decimals until 0.2, too few for a learning rate
_ROUNDED = r"0\.00+"
# this project logs NaN as null
_OFTEN_NAN = frozenset({"loss", "grad_norm"})


@cache
def _names() -> dict[str, tuple[str, int]]:
    """Return by a framework's name of a metric this project's name and the rank among its names."""
    ranked: dict[str, tuple[str, int]] = {}
    for ours, names in read_own_yaml(__file__, "metrics.yaml").items():
        ranked |= {theirs: (ours, rank) for rank, theirs in enumerate(names)}
    return ranked


def translate(line: Mapping[str, object]) -> dict[str, float]:
    """Return a logged line's metrics under this project's names. Unknown names and values that are
    no numbers are left out.
    """
    ranked: dict[str, tuple[int, float]] = {}
    validation: list[float] = []
    names = _names()
    for key, value in line.items():
        name = _plain(key)
        if name in names:
            ours, rank = names[name]
            number = math.nan if value is None and ours in _OFTEN_NAN else to_number(value)
            if ours == "learning_rate" and isinstance(value, str) and re.fullmatch(_ROUNDED, value):
                continue
            if number is not None and rank < ranked.get(ours, (rank + 1, 0.0))[0]:
                ranked[ours] = (rank, number)
        elif is_reward_function(name.removeprefix("eval_")):
            number = to_number(value)
            if number is not None:
                ranked[name] = (0, number)
        elif re.fullmatch(_VALIDATION, name):
            number = to_number(value)
            if number is not None:
                validation.append(number)
    values = {ours: number for ours, (_, number) in ranked.items()}
    if validation:
        values.setdefault("eval_reward", sum(validation) / len(validation))
    return values


def is_reward_function(name: str) -> bool:
    """Return whether a metric is the mean reward of a single function."""
    return re.fullmatch(_FUNCTION, name) is not None


def step_of(line: Mapping[str, object]) -> tuple[int | None, int | None]:
    """Return a line's optimizer step and the training's last step (ms-swift logs "5/100"). None for
    a missing one.
    """
    for name in ("train/global_step", *STEPS):
        value = line.get(name)
        pair = re.fullmatch(_OF, value) if isinstance(value, str) else None
        if pair:
            return int(pair[1]), int(pair[2])
        number = to_number(value)
        if number is not None and 0 <= number < MOST_STEPS:
            return int(number), None
    return None, None


def to_number(value: object) -> float | None:
    """Return a logged number as a float, which may be NaN or infinite; None for other text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if not abs(number) > _LARGEST else math.copysign(math.inf, number)


def _plain(key: str) -> str:
    """Return a metric's name without the prefixes of W&B, TensorBoard and transformers."""
    name = key.removeprefix("train/")
    return f"eval_{name.removeprefix('eval/')}" if name.startswith("eval/") else name
