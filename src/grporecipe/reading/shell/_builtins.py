"""Model the state of a shell, its built-in commands, and conditions (``[ ... ]``, ``test``, ``[[
... ]]``).

A built-in takes its words and returns its status. A condition is True, False, or None if only a
running shell knows.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from grporecipe.model.values import CommandLine, Word
from grporecipe.reading.shell._programs import input_of
from grporecipe.reading.shell._syntax import Raw, Simple, skip
from grporecipe.reading.shell._words import (
    Scope,
    Values,
    calculate_in,
    finished,
    glob,
    is_known,
    joined_path,
    plain_part,
    unknown,
)

Snapshot = tuple[Values, list[Word] | None, str]


class State:
    """Variables, arguments, working directory, and the end of the commands so far (such as
    ``exit``).
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        # of branches that left a loop or function
        self.escaped: list[Snapshot] = []
        # exit, return, break or continue
        self.ended = ""

    def snapshot(self) -> Snapshot:
        return dict(self.scope.values), self.scope.arguments, self.scope.folder

    def restore(self, state: Snapshot) -> None:
        values, self.scope.arguments, self.scope.folder = state
        self.scope.values.clear()
        self.scope.values.update(values)

    def branch(self, bodies: list[Callable[[], object]], may_skip: bool) -> None:
        """Read alternative bodies, of which at most one runs. Variables with different values are
        unknown afterwards.
        """
        before = self.snapshot()
        states = [before] if may_skip else []
        last = ""
        for body in bodies:
            self.restore(before)
            body()
            if not self.ended:
                states.append(self.snapshot())
            elif self.ended != "exit":
                self.escaped.append(self.snapshot())
            last = self.ended
            self.ended = ""
        if states:
            self._merge(states)
        else:
            self.ended = last

    def _merge(self, states: list[Snapshot]) -> None:
        names = dict.fromkeys(name for state in states for name in state[0])
        for name in names:
            values = [state[0].get(name) for state in states]
            same = values[0] if _all_same(values) else None
            self.scope.keep(name, _merged(name, values) if same is None else same)
        arguments = [state[1] for state in states]
        folders = {state[2] for state in states}
        self.scope.arguments = arguments[0] if _all_same(arguments) else None
        self.scope.folder = folders.pop() if len(folders) == 1 else ""

    def absorb(self, since: int, *ends: str) -> None:
        """Merge the branches that left a loop or function early."""
        self.ended = "" if self.ended in ends else self.ended
        states = self.escaped[since:]
        self.escaped = self.escaped[:since]
        if states:
            self._merge([self.snapshot(), *states])


def _all_same(values: list) -> bool:  # type: ignore[type-arg]  # of any type
    return all(value == values[0] for value in values[1:])


def _merged(name: str, values: "list[str | list[Word] | None]") -> "str | list[Word]":
    """Return a variable that differs between branches: only the common prefix is known."""
    texts = [x for x in values if isinstance(x, str)]
    lists = [x for x in values if isinstance(x, list)]
    if len(lists) == len(values):
        first = min(lists, key=len)
        if first and all(_texts(value[: len(first)]) == _texts(first) for value in lists):
            rest = unknown(f"${{{name}[@]}}")
            return [*first, Word(f"${{{name}[@]}}", first[-1].line, True, rest)]
    elif len(texts) == len(values):
        start = min(texts, key=len)
        if start.strip() and all(
            value[: len(start) + 1].rstrip() == start.rstrip() for value in texts
        ):
            return f"{start} {unknown('$' + name)}"
    return unknown(f"${name}")


def _texts(words: CommandLine) -> list[str]:
    return [word.marked for word in words]


NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
SAME = ("=", "==", "!=")


@dataclass
class Operand:
    """A word of a condition, with marks. ``is_pattern``: ``[[ == ]]`` matches it as a pattern."""

    text: str
    is_operator: bool = False
    is_pattern: bool = False


def judge_words(words: CommandLine) -> bool | None:
    """Evaluate ``[ ... ]`` or ``test ...``, given without name and bracket."""
    names = {"-a": "&&", "-o": "||", "(": "(", ")": ")", "!": "!"}
    return _Condition(
        [Operand(names.get(word.text, word.marked), word.text in names) for word in words]
    ).judge()


def judge_double(text: str, scope: Scope, line: int) -> bool | None:
    """Evaluate the text between ``[[`` and ``]]``."""
    operands = []
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        operator = next((sign for sign in ("&&", "||", "(", ")") if text.startswith(sign, at)), "")
        end = at + len(operator)
        while (
            not operator and end < len(text) and not text[end].isspace() and text[end] not in "()"
        ):
            if text.startswith(("&&", "||"), end):
                break
            end = skip(text, end)
        raw = text[at:end]
        is_operator = bool(operator) or raw == "!"
        operands.append(
            Operand(
                raw if is_operator else scope.text(Raw(raw, line)), is_operator, _is_pattern(raw)
            )
        )
        at = max(end, at + 1)
    return _Condition(operands).judge()


def _is_pattern(raw: str) -> bool:
    """Return whether there is a ``*`` or ``?`` outside quotes."""
    return re.search(r"[*?]", re.sub(r"'[^']*'|\"[^\"]*\"|\$\{[^}]*\}|\$.", "", raw)) is not None


class _Condition:
    """A recursive descent parser over operands, with three truth values."""

    def __init__(self, operands: list[Operand]) -> None:
        self.operands = operands
        self.at = 0

    def judge(self) -> bool | None:
        """Return the truth value of the whole condition."""
        value = self._any()
        return value if self.at == len(self.operands) else None

    def _next(self, sign: str) -> bool:
        is_next = self.at < len(self.operands) and self.operands[self.at] == Operand(
            sign, is_operator=True
        )
        self.at += is_next
        return is_next

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
    # a file's existence, a regular expression: only a running shell knows
    return None


def _same(left: Operand, right: Operand, sign: str) -> bool | None:
    if not is_known(left.text) or not is_known(right.text):
        return None
    is_same = (
        bool(glob(right.text).fullmatch(left.text)) if right.is_pattern else left.text == right.text
    )
    return is_same == (sign != "!=")


def _is_set(text: str) -> bool | None:
    if plain_part(text):
        return True
    return False if is_known(text) else None


_ARITHMETIC = r"(?s)\s*([A-Za-z_]\w*)\s*(\+\+|--|[-+*/%]?=(?!=))(.*)"


class Builtins(State):
    """A state with the commands that change it."""

    def arithmetic(self, text: str) -> bool | None:
        """Evaluate ``(( ... ))``: an assignment or a condition."""
        match = re.fullmatch(_ARITHMETIC, text)
        if not match:
            value = calculate_in(self.scope, text)
            return None if value is None else value != 0
        name, sign, right = match.groups()
        right = "1" if sign in ("++", "--") else right
        value = calculate_in(self.scope, right if sign == "=" else f"{name} {sign[0]} ({right})")
        self.scope.keep(name, unknown(f"${name}") if value is None else str(value))
        return None

    def set_arguments(self, words: CommandLine, _: Simple) -> bool:
        """Apply ``set -- WORDS``, which sets the arguments."""
        at = next((n for n, word in enumerate(words) if word.text == "--"), None)
        if at is not None:
            self.scope.arguments = (
                None if any(word.unknown for word in words[at:]) else words[at + 1 :]
            )
        return True

    def shift(self, words: CommandLine, _: Simple) -> bool:
        """Drop the first arguments."""
        if self.scope.arguments is not None:
            count = int(words[0].text) if words and words[0].text.isdigit() else 1
            self.scope.arguments = self.scope.arguments[count:]
        return True

    def read_input(self, words: CommandLine, node: Simple) -> None:
        """Apply ``read``. Only the text of a here document or here string is known."""
        names = [word.text for word in words if re.fullmatch(r"[A-Za-z_]\w*", word.text)]
        flags = "".join(word.text for word in words if word.text.startswith("-"))
        for name in names:
            self.scope.doubt(name)
        if node.input is None or not names:
            return
        text = input_of(self.scope, node)
        between = self.scope.values.get("IFS", " ")
        if "a" in flags and between in (" ", ","):
            pieces = text.split("," if between == "," else None)
            marked = [finished(piece.strip("\n"), node.line) for piece in pieces]
            self.scope.keep(
                names[-1],
                marked if is_known(text) else unknown(f"${{{names[-1]}[@]}}"),
            )
        elif "d" in flags:
            self.scope.keep(names[-1], text.strip(" \t\n"))
        elif len(names) == 1 and "\n" not in text.strip():
            self.scope.keep(names[0], text.strip())

    def unset(self, words: CommandLine, _: Simple) -> bool:
        """Forget variables."""
        for word in words:
            self.scope.keep(word.text, None)
        return True

    def cd(self, words: CommandLine, _: Simple) -> None:
        """Change the working directory."""
        names = [word.marked for word in words if not word.text.startswith("-")]
        self.scope.folder = joined_path(self.scope.folder, names[0]) if names else ""

    def test(self, words: CommandLine, _: Simple) -> bool | None:
        """Evaluate ``[ ... ]``."""
        return judge_words(words[:-1] if words and words[-1].text == "]" else words)

    def getopts(self, words: CommandLine, _: Simple) -> None:
        """Apply ``getopts``, whose option is known only to a running shell."""
        for name in (*(word.text for word in words[1:2]), "OPTARG"):
            self.scope.doubt(name)

    def popd(self, *_: object) -> None:
        """Apply ``popd``. The working directory is unknown afterwards."""
        self.scope.folder = ""

    def end(self, words: CommandLine, _: Simple, how: str) -> bool | None:
        """Apply ``exit``, ``return``, ``break`` or ``continue``."""
        self.ended = how
        return None if words and words[0].unknown else not words or words[0].text == "0"

    def let(self, words: CommandLine, _: Simple) -> None:
        """Apply ``let``: each word is an arithmetic expression."""
        for word in words:
            self.arithmetic(word.text)


BUILTINS: dict[str, Callable[[Builtins, CommandLine, Simple], bool | None]] = {
    ":": lambda *_: True,
    "true": lambda *_: True,
    "false": lambda *_: False,
    "[": Builtins.test,
    "test": Builtins.test,
    "cd": Builtins.cd,
    "pushd": Builtins.cd,
    "popd": Builtins.popd,
    "set": Builtins.set_arguments,
    "shift": Builtins.shift,
    "unset": Builtins.unset,
    "let": Builtins.let,
    "read": Builtins.read_input,
    "mapfile": Builtins.read_input,
    "readarray": Builtins.read_input,
    "getopts": Builtins.getopts,
    **{how: partial(Builtins.end, how=how) for how in ("exit", "return", "break", "continue")},
}
