"""What TRL's own parser makes of a value: argparse turns a string into the key's type, and takes the rest as it is.

Source: trl scripts/utils.py TrlParser (a YAML's values become argparse defaults; argparse converts defaults that are
strings), transformers hf_argparser.py string_to_bool.
"""

import math
from typing import Any, NamedTuple

TRUE = frozenset({"yes", "true", "t", "y", "1"})
FALSE = frozenset({"no", "false", "f", "n", "0"})
LARGEST = 2**53  # above it a float no longer counts; no size or step count is near it
PLAIN = {"int": int, "float": float, "bool": bool}


class Value(NamedTuple):
    """A value as it arrives; ``trouble`` is empty, ``string`` (a number in disguise) or ``type`` (not usable at all)."""

    value: Any
    trouble: str = ""


def convert(value: Any, kind: str) -> Value:
    """A YAML or JSON value as a key of this type; ``kind`` as in keys.Key."""
    base = kind.rstrip("?")
    if value is None:
        return Value(None, "" if kind.endswith("?") or base not in PLAIN else "type")
    if base not in PLAIN:
        return Value(value)
    if isinstance(value, str):
        return _string(value.strip(), base)
    if base == "bool":
        return Value(bool(value), "" if isinstance(value, int) and value in (0, 1) else "type")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _is_usable(value):
        return Value(None, "type")
    if base == "int":
        return Value(int(value), "" if isinstance(value, int) else "type")
    return Value(value)  # argparse leaves an int where a float is wanted, and so does TRL


def _string(text: str, base: str) -> Value:
    if base == "bool":
        word = text.lower()
        return Value(word in TRUE, "string") if word in TRUE | FALSE else Value(None, "type")
    try:
        number = int(text) if base == "int" else float(text)
    except ValueError:
        return Value(None, "type")
    return Value(number, "string") if _is_usable(number) else Value(None, "type")


def _is_usable(number: float) -> bool:
    """Finite and of a size that the arithmetic can hold."""
    return abs(number) <= LARGEST if isinstance(number, int) else math.isfinite(number) and abs(number) <= LARGEST
