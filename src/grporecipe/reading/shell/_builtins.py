"""Model the state of a shell, its built-in commands, and conditions (``[ ... ]``, ``test``, ``[[
... ]]``).

A condition is True, False, or None if only a running shell knows.
"""

import re
from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grporecipe.model.values import CommandLine
from grporecipe.reading.shell._programs import input_of
from grporecipe.reading.shell._syntax import Raw, Simple, skip
from grporecipe.reading.shell._words import (
    Scope,
    Value,
    Values,
    calculate_in,
    finished,
    glob,
    is_known,
    joined_path,
    known_or,
    marked_texts,
    plain_part,
    unknown,
)

Snapshot = tuple[Values, CommandLine | None, str]


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
        states = []
        if may_skip:
            states.append(before)
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
        variables, arguments, folders = zip(*states, strict=True)
        for name in ChainMap(*variables):
            self.scope.keep(name, _merged(name, [values.get(name) for values in variables]))
        self.scope.arguments = None
        if _all_same(arguments):
            self.scope.arguments = arguments[0]
        self.scope.folder = ""
        if _all_same(folders):
            self.scope.folder = folders[0]

    def absorb(self, since: int, *ends: str) -> None:
        """Merge the branches that left a loop or function early."""
        if self.ended in ends:
            self.ended = ""
        states = self.escaped[since:]
        self.escaped = self.escaped[:since]
        if states:
            self._merge([self.snapshot(), *states])


def _all_same(values: Sequence[object]) -> bool:
    return all(value == values[0] for value in values[1:])


def _merged(name: str, values: list[Value | None]) -> Value | None:
    """Return a variable after branches: if it differs between them, only the common prefix is
    known.
    """
    if _all_same(values):
        return values[0]
    texts = [value for value in values if isinstance(value, str)]
    lists = [value for value in values if isinstance(value, list)]
    if len(lists) == len(values):
        first = min(lists, key=len)
        start = marked_texts(first)
        if first and all(marked_texts(value[: len(first)]) == start for value in lists):
            return [*first, finished(unknown(f"${{{name}[@]}}"), first[-1].line)]
    elif len(texts) == len(values):
        text = min(texts, key=len)
        if text.strip() and all(
            value[: len(text) + 1].rstrip() == text.rstrip() for value in texts
        ):
            return f"{text} {unknown('$' + name)}"
    return unknown(f"${name}")


NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}


@dataclass
class Operand:
    """A word of a condition, with marks. ``is_pattern``: ``[[ == ]]`` matches it as a pattern."""

    text: str
    is_operator: bool = False
    is_pattern: bool = False


# the operators of ``test``, as ``[[ ]]`` has them
OPERATORS = {"-a": "&&", "-o": "||", "(": "(", ")": ")", "!": "!"}
# what ends a word of ``[[ ]]``: a blank or an operator
_BREAK = re.compile(r"\s|&&|\|\||[()]")


def judge_words(arguments: CommandLine) -> bool | None:
    """Evaluate ``[ ... ]`` or ``test ...``, given without the name."""
    if arguments and arguments[-1].text == "]":
        arguments = arguments[:-1]
    operands = []
    for each in arguments:
        operator = OPERATORS.get(each.text)
        operands.append(Operand(operator or each.marked, operator is not None))
    return _Condition(operands).judge()


def judge_double(text: str, scope: Scope, line: int) -> bool | None:
    """Evaluate the text between ``[[`` and ``]]``."""
    operands = []
    at = 0
    while at < len(text):
        sign = _BREAK.match(text, at)
        end = at
        if sign:
            end = sign.end()
        while not sign and end < len(text) and not _BREAK.match(text, end):
            end = skip(text, end)
        raw = text[at:end]
        at = end
        if raw in OPERATORS.values():
            operands.append(Operand(raw, is_operator=True))
        elif not raw.isspace():
            operands.append(Operand(scope.text(Raw(raw, line)), is_pattern=_is_pattern(raw)))
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
        if self.at < len(self.operands):
            return None
        return value

    def _next(self, sign: str) -> bool:
        is_next = self.operands[self.at : self.at + 1] == [Operand(sign, is_operator=True)]
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
            value = opposite(either(opposite(value), opposite(self._one())))
        return value

    def _one(self) -> bool | None:
        if self._next("!"):
            return opposite(self._one())
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
    if a or b:
        return True
    if a is None or b is None:
        return None
    return False


def opposite(value: bool | None) -> bool | None:
    """Return ``not value``."""
    if value is None:
        return None
    return not value


def _primary(operands: list[Operand]) -> bool | None:
    match operands:
        case []:
            return False
        case [only]:
            return _is_set(only.text)
        case [Operand(text="-z"), value]:
            return opposite(_is_set(value.text))
        case [Operand(text="-n"), value]:
            return _is_set(value.text)
        case [left, Operand(text="!="), right]:
            return opposite(_same(left, right))
        case [left, Operand(text="=" | "=="), right]:
            return _same(left, right)
        case [left, Operand(text=sign), right] if sign in NUMBERS:
            numbers = [left.text.strip(), right.text.strip()]
            if all(re.fullmatch(r"-?\d{1,18}", number) for number in numbers):
                return NUMBERS[sign](int(numbers[0]), int(numbers[1]))
    # a file's existence, a regular expression: only a running shell knows
    return None


def _same(left: Operand, right: Operand) -> bool | None:
    if not is_known(left.text) or not is_known(right.text):
        return None
    if right.is_pattern:
        return glob(right.text).fullmatch(left.text) is not None
    return left.text == right.text


def _is_set(text: str) -> bool | None:
    if plain_part(text):
        return True
    if is_known(text):
        return False
    return None


_ARITHMETIC = r"(?s)\s*([A-Za-z_]\w*)\s*(\+\+|--|[-+*/%]?=(?!=))(.*)"


BUILTINS = frozenset(
    {
        ":",
        "[",
        "break",
        "cd",
        "continue",
        "exit",
        "false",
        "getopts",
        "let",
        "mapfile",
        "popd",
        "pushd",
        "read",
        "readarray",
        "return",
        "set",
        "shift",
        "test",
        "true",
        "unset",
    }
)


class Builtins(State):
    """A state with the commands that change it."""

    def built_in(self, name: str, arguments: CommandLine, node: Simple) -> bool | None:
        """Apply a built-in command, and return its status."""
        texts = [argument.text for argument in arguments]
        match name:
            case "false":
                return False
            case "[" | "test":
                return judge_words(arguments)
            case "set":
                self._set_arguments(arguments)
            case "shift":
                self._shift(texts)
            case "unset":
                for text in texts:
                    self.scope.keep(text, None)
            case "exit" | "return" | "break" | "continue":
                self.ended = name
                if arguments and arguments[0].unknown:
                    return None
                return texts[:1] in ([], ["0"])
            case "cd" | "pushd":
                # to the home, which is unknown, if none is named
                names = [each.marked for each in arguments if not each.text.startswith("-")]
                self.scope.folder = joined_path(self.scope.folder, [*names, "~"][0])
                return None
            case "popd":
                self.scope.folder = ""
                return None
            case "let":
                for text in texts:
                    self.arithmetic(text)
                return None
            case "read" | "mapfile" | "readarray":
                self._read_input(texts, node)
                return None
            case "getopts":
                # the option is known only to a running shell
                for text in (*texts[1:2], "OPTARG"):
                    self.scope.doubt(text)
                return None
        return True

    def arithmetic(self, text: str) -> bool | None:
        """Evaluate ``(( ... ))``: an assignment or a condition."""
        match = re.fullmatch(_ARITHMETIC, text)
        if not match:
            value = calculate_in(self.scope, text)
            if value is None:
                return None
            return value != 0
        name, sign, right = match.groups()
        if sign in ("++", "--"):
            right = "1"
        if sign != "=":
            right = f"{name} {sign[0]} ({right})"
        self.scope.keep(name, known_or(calculate_in(self.scope, right), f"${name}"))
        return None

    def _set_arguments(self, arguments: CommandLine) -> None:
        """Apply ``set -- WORDS``, which sets the arguments."""
        for n, argument in enumerate(arguments):
            if argument.text == "--":
                self.scope.arguments = arguments[n + 1 :]
                if any(each.unknown for each in arguments[n:]):
                    self.scope.arguments = None
                break

    def _shift(self, texts: list[str]) -> None:
        """Drop the first arguments."""
        if self.scope.arguments is not None:
            count = 1
            if texts and texts[0].isdigit():
                count = int(texts[0])
            self.scope.arguments = self.scope.arguments[count:]

    def _read_input(self, texts: list[str], node: Simple) -> None:
        """Apply ``read``. Only the text of a here document or here string is known."""
        names = [text for text in texts if re.fullmatch(r"[A-Za-z_]\w*", text)]
        flags = "".join(text for text in texts if text.startswith("-"))
        for name in names:
            self.scope.doubt(name)
        if node.input is None or not names:
            return
        text = input_of(self.scope, node)
        name = names[-1]
        between = self.scope.values.get("IFS", " ")
        if "a" in flags and between in (" ", ","):
            pieces = text.split()
            if between == ",":
                pieces = text.split(",")
            self.scope.keep(name, [finished(piece.strip("\n"), node.line) for piece in pieces])
            if not is_known(text):
                self.scope.keep(name, unknown(f"${{{name}[@]}}"))
        elif "d" in flags:
            self.scope.keep(name, text.strip(" \t\n"))
        elif len(names) == 1 and "\n" not in text.strip():
            self.scope.keep(name, text.strip())
