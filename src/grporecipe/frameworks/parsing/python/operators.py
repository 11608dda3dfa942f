"""Arithmetic on plain values of a Python file. A result that is an error or too large is unknown."""

import ast
import operator
from collections.abc import Callable
from typing import Any

LONGEST = 10_000  # characters of a text, or items of a list
LARGEST = 10**18


class _Unknown:
    """A value that is known only to a running program."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()


PLAIN = (int, float, str, bool, type(None))
OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip
CASTS: dict[str, Callable[..., Any]] = {"int": int, "float": float, "str": str, "bool": bool, "max": max, "min": min,
                                        "len": len, "abs": abs, "round": round}  # fmt: skip


def unary(op: ast.unaryop, value: Any) -> Any:
    """Return ``not a``, ``-a`` or ``+a``."""
    if isinstance(op, ast.Not) and isinstance(value, PLAIN):
        return not value
    if isinstance(value, (int, float)) and isinstance(op, (ast.USub, ast.UAdd)):
        return -value if isinstance(op, ast.USub) else value
    return UNKNOWN


def binary(op: ast.AST, left: Any, right: Any) -> Any:
    """Return ``a + b``, ``a < b`` and the like."""
    if not isinstance(left, PLAIN) or not isinstance(right, PLAIN):
        return UNKNOWN
    if isinstance(op, ast.Pow) and isinstance(left, (int, float)) and isinstance(right, int) and abs(right) <= 64:
        return _bounded(lambda: left**right if abs(left) <= LARGEST else UNKNOWN)
    texts = [value for value in (left, right) if isinstance(value, str)]
    if texts and isinstance(op, (ast.Mult, ast.Mod)):
        return UNKNOWN  # a text of any length
    function = OPERATORS.get(type(op))
    return _bounded(lambda: function(left, right)) if function else UNKNOWN


def _bounded(compute: Callable[[], Any]) -> Any:
    """Return a computed result, or UNKNOWN if it is an error or too large."""
    try:
        found = compute()
    except (TypeError, ValueError, ArithmeticError):
        return UNKNOWN
    if isinstance(found, str) and len(found) > LONGEST:
        return UNKNOWN
    is_large = isinstance(found, (int, float)) and abs(found) > LARGEST
    return UNKNOWN if is_large or not isinstance(found, (*PLAIN, list)) else found


def boolean(op: ast.boolop, values: list[Any]) -> Any:
    """Return ``a and b`` or ``a or b``."""
    stops = isinstance(op, ast.Or)
    for value in values[:-1]:
        if not isinstance(value, PLAIN):
            return UNKNOWN
        if bool(value) is stops:
            return value
    return values[-1]


def join(values: list[Any]) -> Any:
    """Return the text of an f-string's parts."""
    known = all(isinstance(value, PLAIN) for value in values)
    return _bounded(lambda: "".join(map(str, values))) if known else UNKNOWN


def cast(name: str, values: list[Any]) -> Any:
    """Return ``int(a)``, ``max(a, b)`` and the like."""
    if not values or not all(isinstance(value, (*PLAIN, list)) for value in values):
        return UNKNOWN
    return _bounded(lambda: CASTS[name](*values))
