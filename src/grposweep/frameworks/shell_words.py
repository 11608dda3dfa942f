"""The words of a bash script: quotes, continuations, comments, here documents, and the values of variables in them.

A value that depends on the environment or on a command's output is unknown, and stays in its word as it was written.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from grposweep.errors import BadInput
from grposweep.frameworks.arithmetic import calculate

OPERATORS = ("&&", "||", ";;", ";", "|", "&", "\n", "(", ")")
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
            elif operator := next((op for op in OPERATORS if self.text.startswith(op, self.at)), ""):
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

        Raises BadInput where variables stand for more text than any launch has.
        """
        value = self._value()
        self.expanded += _length(value)
        if self.expanded > MOST_EXPANDED:
            raise BadInput(
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
