"""Points and counts as people read them: short parameters, short labels, plurals."""

from collections.abc import Iterable, Mapping
from typing import Any


def short(point: Mapping[str, Any]) -> str:
    """A point in few letters: the last word of each parameter and its label."""
    return (
        " ".join(f"{name.rsplit('.', 1)[-1]}={label_text(label)}" for name, label in point.items()) or "as configured"
    )


def short_names(parameters: Iterable[str]) -> dict[str, str]:
    """Each parameter's last word, its whole name where two would share one."""
    names = list(parameters)
    last = [name.rsplit(".", 1)[-1] for name in names]
    return {name: word if last.count(word) == 1 else name for name, word in zip(names, last, strict=True)}


def label_text(label: Any) -> str:
    """A label as tables show it."""
    return f"{label:.3g}" if isinstance(label, float) else str(label)


def count(number: int, noun: str) -> str:
    """A number of things: 1 trial, 2 trials, 2 processes."""
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"
