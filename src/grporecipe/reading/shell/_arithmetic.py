"""Evaluate bash's ``$(( ))`` and ``(( ))`` with whole numbers. Nothing else is calculated, and
nothing is run.
"""

import ast
import operator
import re
from collections.abc import Callable


def _quotient(a: int, b: int) -> int:
    """Return a quotient as bash rounds it: towards zero."""
    quotient = abs(a) // abs(b)
    if (a < 0) != (b < 0):
        quotient = -quotient
    return quotient


OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: _quotient,
    ast.Mod: lambda a, b: a - b * _quotient(a, b),
}
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
# characters
LONGEST = 100


def calculate(text: str) -> int | None:
    """Return the value of ``2 * (8 - 1)`` or ``a > b ? c : d``. None unless it has only digits,
    brackets and operators.
    """
    if len(text) > LONGEST or "//" in text:
        return None
    match = re.fullmatch(r"([^?:]+)\?([^?:]+):([^?:]+)", text)
    if match:
        is_true = holds(match[1])
        if is_true is None:
            return None
        if is_true:
            return calculate(match[2])
        return calculate(match[3])
    if re.search(r"[<>=!]=?", text):
        is_true = holds(text)
        if is_true is None:
            return None
        return int(is_true)
    try:
        return _value(ast.parse(text.strip().replace("/", "//"), mode="eval").body)
    except (SyntaxError, ArithmeticError, ValueError, RecursionError):
        return None


def holds(text: str) -> bool | None:
    """Return whether a comparison of whole numbers is true; None if unknown."""
    match = re.fullmatch(r"([^<>=!&|]+)(==|!=|<=|>=|<|>)([^<>=!&|]+)", text)
    if match:
        left = calculate(match[1])
        right = calculate(match[3])
        if left is None or right is None:
            return None
        return COMPARISONS[match[2]](left, right)
    if re.search(r"[<>=!&|]", text):
        return None
    value = calculate(text)
    if value is None:
        return None
    return value != 0


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd):
        return _value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError(ast.dump(node))
