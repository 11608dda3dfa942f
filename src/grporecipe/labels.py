"""Format points and counts for people: short parameter names, short labels, plurals."""

from collections.abc import Iterable, Mapping
from typing import Any


def short(point: Mapping[str, Any]) -> str:
    """Return a short form of a point: the last word of each parameter, with its label."""
    return (
        " ".join(f"{name.rsplit('.', 1)[-1]}={label_text(label)}" for name, label in point.items()) or "as configured"
    )


def short_names(parameters: Iterable[str]) -> dict[str, str]:
    """Map each parameter to its last word, or to its whole name if two parameters share that word."""
    names = list(parameters)
    last = [name.rsplit(".", 1)[-1] for name in names]
    return {name: word if last.count(word) == 1 else name for name, word in zip(names, last, strict=True)}


def label_text(label: Any) -> str:
    """Return a label as tables show it."""
    return f"{label:.3g}" if isinstance(label, float) else str(label)


def count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 trial, 2 trials, 2 processes."""
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"
