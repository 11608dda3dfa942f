"""Values out of JSON, checked: one of the wrong type reads as the default."""

import math
from typing import Any

from grposweep.files import as_number


def text_or(value: Any, default: str = "") -> str:
    """Return a JSON string, or the default for any other value."""
    return value if isinstance(value, str) else default


def whole_or_none(value: Any) -> int | None:
    """Return a JSON integer; None for any other value."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def count_or_none(value: Any) -> int | None:
    """Return a finite JSON number as an integer; None for any other value."""
    number = finite_or_none(value)
    return None if number is None else int(number)


def finite_or_none(value: Any) -> float | None:
    """Return a finite JSON number; None for any other value."""
    number = as_number(value)
    return number if number is not None and math.isfinite(number) else None
