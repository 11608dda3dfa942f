"""What bash's ``$(( ))`` makes of whole numbers; nothing else is calculated, and nothing is run.

The words of a bash script: quotes, continuations, comments, here documents, and the values of variables in them.

A value that depends on the environment or on a command's output is unknown, and stays in its word as it was written.

As much of bash as a launch script needs: its commands in order, with the variables that it assigns itself.

Nothing is run. Which branch is taken and what a loop goes through only a running shell knows, so what they assign is
unknown.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from grposweep.errors import UserError

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


OPERATORS_SHELL_WORDS = ("&&", "||", ";;", ";", "|", "&", "\n", "(", ")")
MOST_VARIABLES = 500
LONGEST_VALUE = 10_000  # characters of a variable
MOST_EXPANDED = 2**22  # characters that variables may stand for in all: A=$A$A doubles with every line
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_ASSIGNS = re.compile(r"[A-Za-z_]\w{0,99}\+?=")
_NAME = re.compile(r"\w+|[@*#?$!-]")
_REDIRECTION = re.compile(r"\d*(?:>>|>&|<&|&>>|&>|>\||>|<<<|<)")


@dataclass
class Word:
    """One word after expansion; ``unknown`` where some of it could not be resolved."""

    text: str
    line: int
    unknown: bool = False


class Unknown(str):
    """The raw text of a value that only a running shell would know."""


Values = dict[str, "str | list[Word] | Unknown"]


def keep(values: Values, name: str, value: "str | list[Word] | Unknown") -> None:
    """Remember a variable; one that has grown too long is unknown from then on, and one too many is not remembered."""
    if name in values or len(values) < MOST_VARIABLES:
        values[name] = value if _length(value) <= LONGEST_VALUE else Unknown(f"${name}")


def _length(value: "str | list[Word] | Unknown") -> int:
    return sum(len(word.text) + 1 for word in value) if isinstance(value, list) else len(value)


class WordReader:
    """One pass over a text, words as they come; ``values`` are the variables known so far."""

    def __init__(self, text: str, values: Values):
        self.text, self.at, self.line, self.values = text, 0, 1, values
        self.heredocs: list[str] = []
        self.expanded = 0  # characters

    def words(self) -> Iterator[Word | None]:
        """Words, and None where a command ends."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if self.text.startswith("\\\n", self.at):
                self._skip(2)
            elif char in " \t\r":
                self._skip(1)
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self.text.startswith("<<", self.at) and not self.text.startswith("<<<", self.at):
                self._heredoc()
            elif match := _REDIRECTION.match(self.text, self.at):
                self._skip(len(match[0]))
                self._blank()
                if self.at < len(self.text) and self.text[self.at] != "\n":
                    self.word()
            elif operator := next((op for op in OPERATORS_SHELL_WORDS if self.text.startswith(op, self.at)), ""):
                self._skip(len(operator))
                if operator == "\n":
                    self._skip_heredocs()
                yield None
            else:
                yield from self.word()
        yield None

    def _skip(self, count: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + count)
        self.at += count

    def _blank(self) -> None:
        while self.text[self.at : self.at + 1] in (" ", "\t") and self.at < len(self.text):
            self._skip(1)

    def _heredoc(self) -> None:
        match = re.compile(r"<<-?\s*(['\"]?)([^\s'\"]+)\1").match(self.text, self.at)
        self._skip(len(match[0]) if match else 2)
        if match:
            self.heredocs.append(match[2])

    def _skip_heredocs(self) -> None:
        for end in self.heredocs:
            match = re.compile(rf"^\t*{re.escape(end)}$\n?", re.MULTILINE).search(self.text, self.at)
            self._skip((match.end() if match else len(self.text)) - self.at)
        self.heredocs = []

    def word(self) -> list[Word]:
        """One word as written; several where an array or an unquoted value with blanks is in it."""
        line, parts, words, unknown = self.line, "", [], False
        quoted = False
        while self.at < len(self.text):
            char = self.text[self.at]
            if self.text.startswith("\\\n", self.at):
                self._skip(2)
                continue
            if char in " \t\r\n;&|()<>":
                if char == "(" and parts.endswith("=") and ASSIGNMENT.fullmatch(parts):
                    return [self._array(parts, line)]
                break
            if char == "'":
                end = self._find("'", self.at + 1)
                parts, quoted = parts + self.text[self.at + 1 : end], True
                self._skip(end + 1 - self.at)
            elif char == '"':
                text, more, missing = self._double()
                if more:
                    words += [Word(parts + text, line, unknown), *more[:-1]] if parts + text else more[:-1]
                    text, parts = more[-1].text, ""
                parts, quoted, unknown = parts + text, True, unknown or missing
            elif char == "\\":
                parts += self.text[self.at + 1 : self.at + 2]
                self._skip(min(2, len(self.text) - self.at))
            elif char in "$`":
                value = self._expand()
                if isinstance(value, list):
                    return [*words, *value]
                unknown = unknown or isinstance(value, Unknown)
                pieces = value.split() if not isinstance(value, Unknown) and not _ASSIGNS.match(parts) else [value]
                if len(pieces) > 1:
                    words += [Word(piece, line) for piece in (parts + pieces[0], *pieces[1:-1])]
                    parts = pieces[-1]
                else:
                    parts += pieces[0] if pieces else ""
            else:
                parts += char
                self._skip(1)
        return [*words, Word(parts, line, unknown)] if parts or quoted else words

    def _find(self, char: str, start: int) -> int:
        end = self.text.find(char, start)
        return len(self.text) if end < 0 else end

    def _double(self) -> tuple[str, list[Word], bool]:
        """Inside double quotes: text with values in it; an array alone keeps its words."""
        self._skip(1)
        parts, words, unknown = "", [], False
        while self.at < len(self.text) and self.text[self.at] != '"':
            char = self.text[self.at]
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`", "\n"):
                following = self.text[self.at + 1]
                parts += "" if following == "\n" else following
                self._skip(2)
            elif char in "$`":
                value = self._expand()
                if isinstance(value, list):
                    words = value
                else:
                    parts, unknown = parts + value, unknown or isinstance(value, Unknown)
            else:
                parts += char
                self._skip(1)
        self._skip(min(1, len(self.text) - self.at))
        return parts, words, unknown

    def _array(self, head: str, line: int) -> Word:
        """``NAME=( ... )``: kept under its name, and no word of a command."""
        self._skip(1)
        words: list[Word] = []
        while self.at < len(self.text) and self.text[self.at] != ")":
            if self.text.startswith("\\\n", self.at):
                self._skip(2)
            elif self.text[self.at] in " \t\r\n;&|<>(":
                self._skip(1)
            elif self.text[self.at] == "#":
                self._skip(self._find("\n", self.at) - self.at)
            else:
                words += self.word()
        self._skip(min(1, len(self.text) - self.at))
        name, more, _ = ASSIGNMENT.fullmatch(head).groups()  # type: ignore[union-attr]  # the caller matched it
        old = self.values.get(name)
        keep(self.values, name, [*(old if more and isinstance(old, list) else []), *words])
        return Word(f"{name}=", line, unknown=True)

    def _expand(self) -> "str | list[Word] | Unknown":
        """What stands for a ``$`` and what follows it.

        Raises UserError where variables stand for more text than any launch has.
        """
        value = self._value()
        self.expanded += _length(value)
        if self.expanded > MOST_EXPANDED:
            raise UserError(
                f"its variables stand for more than {MOST_EXPANDED // 2**20} MiB, so it launches nothing we know."
            )
        return value

    def _value(self) -> "str | list[Word] | Unknown":
        """``$NAME``, ``${NAME:-default}``, ``$((1+1))``; the text itself, as Unknown, for everything else."""
        start = self.at
        if self.text.startswith("$((", start):
            return self._arithmetic()
        if self.text[start] == "`":
            self._skip(self._find("`", start + 1) + 1 - start)
            return Unknown(self.text[start : self.at])
        if self.text.startswith("$(", start) or self.text.startswith("${", start):
            self._skip(self._closing(start + 1) - start)
            raw = self.text[start : self.at]
            return self._braced(raw) if raw.startswith("${") else Unknown(raw)
        match = _NAME.match(self.text, start + 1)
        if not match:
            self._skip(1)
            return "$"
        name = match[0] if match[0][0].isalpha() or match[0][0] == "_" else match[0][0]
        self._skip(1 + len(name))
        value = self.values.get(name)
        if isinstance(value, list):
            return value[0].text if value else ""
        return value if value is not None else Unknown(f"${name}")

    def _closing(self, start: int) -> int:
        """Behind the bracket that closes the one at ``start``."""
        depth, pairs, at = 0, {"(": ")", "{": "}"}, start
        opening, closing = self.text[start], pairs[self.text[start]]
        while at < len(self.text):
            depth += (self.text[at] == opening) - (self.text[at] == closing)
            at += 1
            if depth == 0:
                return at
        return len(self.text)

    def _braced(self, raw: str) -> "str | list[Word] | Unknown":
        match = re.fullmatch(r"\$\{(\w+)(\[[@*]\])?(?::?([-=])(.*))?\}", raw, re.DOTALL)
        if not match:
            return Unknown(raw)
        name, every, operator, default = match.groups()
        value = self.values.get(name)
        if isinstance(value, list):
            return value if every else (value[0].text if value else "")
        if value is None and operator:
            inner = WordReader(
                f'"{default}"' if "'" not in default and '"' not in default else default, self.values
            ).word()
            return inner[0].text if inner and not any(word.unknown for word in inner) else Unknown(raw)
        return value if value is not None and not isinstance(value, Unknown) else Unknown(raw)

    def _arithmetic(self) -> str:
        start = self.at
        self._skip(self._closing(start + 1) - start)
        raw = self.text[start : self.at]
        inner = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda match: str(self.values.get(match[1], match[0])), raw[3:-2])
        value = calculate(inner)
        return Unknown(raw) if value is None else str(value)


__all__ = ["Command", "Word", "parse_script"]

LONGEST_SHELL = 256 * 2**10  # characters; the longest launch scripts have ten thousand
OPENERS = frozenset({"if", "for", "while", "until", "case", "select"})
CLOSERS = frozenset({"fi", "done", "esac"})
LEADERS = OPENERS | CLOSERS | {"then", "else", "elif", "do", "{", "}", "!", "time", "in"}
ASSIGNERS = frozenset({"export", "local", "declare", "readonly", "typeset"})


@dataclass
class Command:
    """The words of one simple command, without redirections, and the variables that a program of it may read."""

    words: list[Word] = field(default_factory=list)
    environment: Values = field(default_factory=dict)


def parse_script(text: str, values: Values | None = None) -> list[Command]:
    """The simple commands of a script in order, variables that it assigns itself expanded.

    Raises UserError for what is too long or nested too deep for a launch script.
    """
    if len(text) > LONGEST_SHELL:
        raise UserError(f"it has more than {LONGEST_SHELL // 2**10} KiB, so it is no launch script.")
    try:
        return _Commands(text.replace("\r\n", "\n"), values if values is not None else {}).commands()
    except RecursionError:
        raise UserError("its brackets are nested too deep, so it is no launch script.") from None


class _Commands:
    """The words of a script, command by command; assignments are taken in before the next word is read."""

    def __init__(self, text: str, values: Values):
        self.reader, self.values = WordReader(text, values), values
        self.depth = 0  # of if, for, case: what is assigned inside may not be assigned at all

    def commands(self) -> list[Command]:
        """All of them; assignments are taken in on the way."""
        found, command = [], Command()
        for word in self.reader.words():
            if word is not None:
                command.words.append(word)
                continue
            command = self._finish(command)
            if command.words:
                found.append(command)
            command = Command()
        return found

    def _finish(self, command: Command) -> Command:
        """Take the assignments in; what is left is what runs."""
        words = command.words
        while words and words[0].text in LEADERS:
            head = words.pop(0).text
            self.depth += (head in OPENERS) - (head in CLOSERS)
            if head == "for" and words:
                self._loop(words)
                return Command()
        exported = bool(words) and words[0].text in ASSIGNERS
        rest = words[1:] if exported else words
        assigned = 0
        for word in rest:
            match = ASSIGNMENT.fullmatch(word.text)
            if not match:
                if exported:
                    continue
                break
            assigned += 1
            self._assign(match[1], match[3], word.unknown, bool(match[2]))
        return Command([] if exported else rest[assigned:], dict(self.values))

    def _loop(self, words: list[Word]) -> None:
        """``for NAME in a b c``: one value is a value, several are not one."""
        values = [word.text for word in words[2:]]
        keep(self.values, words[0].text, values[0] if len(values) == 1 else Unknown(f"${words[0].text}"))

    def _assign(self, name: str, value: str, unknown: bool, more: bool) -> None:
        old = self.values.get(name)
        if isinstance(old, list) and value == "" and unknown:
            return  # an array, taken in when it was read
        if more and isinstance(old, str):
            value = old + value
        is_known = not unknown and (self.depth == 0 or old is None or old == value)
        if self.depth > 0 and old is None and not unknown:
            is_known = False  # the branch may not be taken
        keep(self.values, name, value if is_known else Unknown(f"${name}"))
