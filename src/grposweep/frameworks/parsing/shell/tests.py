"""Conditions of bash: ``[ ... ]``, ``test`` and ``[[ ... ]]``. True, False, or None where only a running shell knows."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from grposweep.frameworks.parsing.shell.nodes import Raw
from grposweep.frameworks.parsing.shell.syntax import skip
from grposweep.frameworks.parsing.shell.words import Scope, Word, glob, is_known, plain_part

NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b, "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
}  # fmt: skip
SAME = ("=", "==", "!=")


@dataclass
class Operand:
    """A word of a condition, with marks; ``is_pattern`` where ``[[ == ]]`` matches it as one."""

    text: str
    is_operator: bool = False
    is_pattern: bool = False


def judge_words(words: list[Word]) -> bool | None:
    """Judge ``[ ... ]`` or ``test ...`` without its name and bracket."""
    names = {"-a": "&&", "-o": "||", "(": "(", ")": ")", "!": "!"}
    return _Condition([Operand(names.get(word.text, word.marked), word.text in names) for word in words]).judge()


def judge_double(text: str, scope: Scope, line: int) -> bool | None:
    """Judge what stands between ``[[`` and ``]]``."""
    found, at = [], 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        operator = next((sign for sign in ("&&", "||", "(", ")") if text.startswith(sign, at)), "")
        end = at + len(operator)
        while not operator and end < len(text) and not text[end].isspace() and text[end] not in "()":
            if text.startswith(("&&", "||"), end):
                break
            end = skip(text, end)
        raw = text[at:end]
        is_operator = bool(operator) or raw == "!"
        found.append(Operand(raw if is_operator else scope.text(Raw(raw, line)), is_operator, _is_pattern(raw)))
        at = max(end, at + 1)
    return _Condition(found).judge()


def _is_pattern(raw: str) -> bool:
    """Return whether a ``*`` or ``?`` stands outside quotes."""
    return re.search(r"[*?]", re.sub(r"'[^']*'|\"[^\"]*\"|\$\{[^}]*\}|\$.", "", raw)) is not None


class _Condition:
    """A recursive descent over operands; three values of truth."""

    def __init__(self, operands: list[Operand]) -> None:
        self.operands, self.at = operands, 0

    def judge(self) -> bool | None:
        """Return the truth of the whole."""
        value = self._any()
        return value if self.at == len(self.operands) else None

    def _next(self, sign: str) -> bool:
        found = self.at < len(self.operands) and self.operands[self.at] == Operand(sign, is_operator=True)
        self.at += found
        return found

    def _any(self) -> bool | None:
        value = self._all()
        while self._next("||"):
            value = either(value, self._all())
        return value

    def _all(self) -> bool | None:
        value = self._one()
        while self._next("&&"):
            value = both(value, self._one())
        return value

    def _one(self) -> bool | None:
        if self._next("!"):
            value = self._one()
            return None if value is None else not value
        if self._next("("):
            value = self._any()
            self._next(")")
            return value
        operands = []
        while self.at < len(self.operands) and not self.operands[self.at].is_operator:
            operands.append(self.operands[self.at])
            self.at += 1
        return _primary(operands)


def either(a: bool | None, b: bool | None) -> bool | None:
    """Return ``a or b``."""
    return True if a or b else None if a is None or b is None else False


def both(a: bool | None, b: bool | None) -> bool | None:
    """Return ``a and b``."""
    return False if a is False or b is False else None if a is None or b is None else True


def _primary(words: list[Operand]) -> bool | None:
    match words:
        case []:
            return False
        case [only]:
            return _is_set(only.text)
        case [Operand(text="-z" | "-n") as sign, value]:
            is_set = _is_set(value.text)
            return is_set if sign.text == "-n" or is_set is None else not is_set
        case [left, Operand(text=sign), right] if sign in SAME:
            return _same(left, right, sign)
        case [left, Operand(text=sign), right] if sign in NUMBERS:
            numbers = [word.text.strip() for word in (left, right)]
            if all(re.fullmatch(r"-?\d{1,18}", number) for number in numbers):
                return NUMBERS[sign](int(numbers[0]), int(numbers[1]))
    return None  # a file's existence, a regular expression: only a running shell knows


def _same(left: Operand, right: Operand, sign: str) -> bool | None:
    if not is_known(left.text) or not is_known(right.text):
        return None
    is_same = bool(glob(right.text).fullmatch(left.text)) if right.is_pattern else left.text == right.text
    return is_same == (sign != "!=")


def _is_set(text: str) -> bool | None:
    if plain_part(text):
        return True
    return False if is_known(text) else None
