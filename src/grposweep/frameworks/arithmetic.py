"""What bash's ``$(( ))`` makes of whole numbers; nothing else is calculated, and nothing is run."""

import ast
import operator
from collections.abc import Callable

OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: int(a / b),  # bash cuts towards zero
    ast.Mod: lambda a, b: a - b * int(a / b),
}
LONGEST = 100  # characters


def calculate(text: str) -> int | None:
    """The value of ``2 * (8 - 1)``; None for anything but digits, brackets and the four operations."""
    if len(text) > LONGEST or "//" in text:
        return None
    try:
        return _value(ast.parse(text.strip().replace("/", "//"), mode="eval").body)
    except (SyntaxError, ArithmeticError, ValueError, RecursionError):
        return None


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        return -_value(node.operand) if isinstance(node.op, ast.USub) else _value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError(ast.dump(node))
