"""Expand a word as bash does: quotes, variables, defaults, arithmetic, and the split into fields.

Parts that depend on the environment or on a command's output are unknown. They keep their source
text between two marks, so that the text around them stays known.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from grporecipe.errors import UserError
from grporecipe.model.values import CommandLine, Word
from grporecipe.reading.shell._arithmetic import calculate
from grporecipe.reading.shell._syntax import CLOSE, OPEN, Raw, SyntaxReader, skip

MOST_VARIABLES = 500
# characters of a variable
LONGEST_VALUE = 10_000
# characters that a pattern is matched against
LONGEST_PATTERN = 500
# characters of all expansions together: A=$A$A doubles with every line
MOST_EXPANDED = 2**22
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^]]*\])?(\+?)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"[A-Za-z_]\w*|[0-9]|[@*#?$!-]")
_BRACED = r"(?s)\$\{([A-Za-z_]\w*|\d+|[@*])(\[(?:[^]]*)\])?(.*)\}"
_BRACES = (
    r"([^'\"\\$`{}\s]*)\{((?:[^{}'\"\s$`\\,]*,)+[^{}'\"\s$`\\,]*"
    r"|-?\d{1,4}\.\.-?\d{1,4})\}([^{}'\"\\$`\s]*)"
)
_PIECE = f"(?:{OPEN}[^{CLOSE}]*{CLOSE}|[^ \t\n])+"
_MARKED = f"{OPEN}[^{CLOSE}]*{CLOSE}?"


Values = dict[str, "str | list[Word]"]


def unknown(raw: str) -> str:
    """Mark a text as unknown."""
    return f"{OPEN}{plain(raw)}{CLOSE}"


def plain(text: str) -> str:
    """Return a text without marks."""
    return text.replace(OPEN, "").replace(CLOSE, "")


def is_known(text: str) -> bool:
    """Return whether all of a text is known."""
    return OPEN not in text


def finished(marked: str, line: int, span: int = 0) -> Word:
    """Return a word of a command."""
    return Word(plain(marked), line, not is_known(marked), marked, span)


def _length(value: "str | list[Word]") -> int:
    return sum(len(word.text) + 1 for word in value) if isinstance(value, list) else len(value)


@dataclass
class Scope:
    """The state at one place of a script: variables, arguments (None: unknown), its own path, and
    the working directory.

    ``substitute`` returns the output of a command in ``$( )``, or None if only a running shell
    knows it.
    """

    values: Values = field(default_factory=dict)
    arguments: CommandLine | None = None
    path: str | None = None
    folder: str = ""
    substitute: Callable[[str, int], str | None] = lambda *_: None
    # characters
    expanded: int = 0

    def keep(self, name: str, value: "str | list[Word] | None") -> None:
        """Store a variable; None removes it. One that is too long becomes unknown, and no more than
        a maximum number are stored.
        """
        if value is None:
            self.values.pop(name, None)
        elif name in self.values or len(self.values) < MOST_VARIABLES:
            is_long = _length(value) > LONGEST_VALUE
            self.values[name] = unknown(f"${name}") if is_long else value

    def doubt(self, name: str) -> None:
        """Make a variable unknown."""
        self.keep(name, unknown(f"${name}"))

    def look_up(self, name: str) -> "str | list[Word] | None":
        """Return a variable's value; None if it is not set."""
        if name in ("@", "*"):
            return self.arguments
        if name == "#":
            return None if self.arguments is None else str(len(self.arguments))
        if name == "0" or (name == "BASH_SOURCE" and self.path):
            return self.path
        if name == "PWD" and self.folder:
            return self.folder
        if name.isdigit():
            is_given = self.arguments is not None and 0 < int(name) <= len(self.arguments)
            return self.arguments[int(name) - 1].marked if is_given and self.arguments else None
        return self.values.get(name)

    def words(self, raw: Raw) -> CommandLine:
        """Return the fields that a command's word is split into."""
        braces = re.fullmatch(_BRACES, raw.text)
        if braces is None:
            return Fields(self, at_home(raw), splits=True).read()
        return [
            finished(f"{braces[1]}{item}{braces[3]}", raw.line) for item in _alternatives(braces[2])
        ]

    def text(self, raw: Raw) -> str:
        """Return a word as one text with marks, as in an assignment."""
        return " ".join(word.marked for word in Fields(self, at_home(raw), splits=False).read())

    def document(self, raw: Raw) -> str:
        """Return a here document as one text with marks."""
        fields = Fields(self, raw, splits=False)
        fields.take(raw.text, quoted=True)
        return fields.current or ""

    def array(self, raw: Raw) -> CommandLine:
        """Return the elements of ``( ... )``."""
        inner = raw.text[1:-1] if raw.text.endswith(")") else raw.text[1:]
        items: CommandLine = []
        for word in SyntaxReader(inner, raw.line).array():
            item = re.match(r"\[[^]]*\]=", word.text)
            items += self.words(Raw(word.text[item.end() :], word.line) if item else word)
        return items

    def spend(self, value: "str | list[Word]") -> None:
        """Count the characters of expanded variables.

        Raises UserError if there are more than any launch has.
        """
        self.expanded += _length(value)
        if self.expanded > MOST_EXPANDED:
            most = MOST_EXPANDED // 2**20
            raise UserError(
                f"its variables stand for more than {most} MiB, so it launches nothing we know."
            )


def at_home(raw: Raw) -> Raw:
    """Return a word with the tilde that bash expands at its start as ``$HOME``, which only a
    running shell knows.
    """
    is_home = raw.text == "~" or raw.text.startswith("~/")
    return Raw(f"${{HOME}}{raw.text[1:]}", raw.line) if is_home else raw


def _alternatives(text: str) -> list[str]:
    """Return the expansion of ``{a,b}`` and ``{1..3}``."""
    first, dots, last = text.partition("..")
    if "," in text or not dots:
        return text.split(",")
    start = int(first)
    end = int(last)
    step = 1 if end >= start else -1
    return [str(number) for number in range(start, end + step, step)]


class Fields:
    """One pass over a word. If ``splits``, unquoted values are split at blanks."""

    def __init__(self, scope: Scope, raw: Raw, splits: bool) -> None:
        self.scope, self.raw, self.splits = scope, raw, splits
        self.words: CommandLine = []
        self.current: str | None = None
        # an element of an array has its own line
        self.line = raw.line
        # the expansion that is being read
        self.is_quoted = False

    def read(self) -> CommandLine:
        """Return the fields."""
        self.take(self.raw.text, quoted=False)
        self._end()
        return self.words

    def _add(self, text: str) -> None:
        self.current = (self.current or "") + text

    def _end(self) -> None:
        if self.current is not None:
            self.words.append(finished(self.current, self.line, self.raw.text.count("\n")))
        self.current = None
        self.line = self.raw.line

    def take(self, text: str, quoted: bool) -> None:
        """Take a text, with the rules of double quotes or without."""
        at = 0
        while at < len(text):
            char = text[at]
            end = skip(text, at)
            if char == OPEN:
                self._add(text[at:end])
            elif char == "\\" and (
                not quoted or text[at + 1 : at + 2] in ('"', "\\", "$", "`", "\n")
            ):
                self._add(text[at + 1 : end].replace("\n", ""))
            elif quoted and char in "'\"":
                self._add(char)
                end = at + 1
            elif char == "'":
                self._add(text[at + 1 : end].removesuffix("'") if end > at + 1 else "")
            elif char == '"':
                self._add("")
                inside = text[at + 1 : end]
                self._quoted(
                    inside.removesuffix('"') if end > at + 1 and text[end - 1] == '"' else inside
                )
            elif char in "$`":
                end = self._expand(text, at, quoted)
            else:
                self._add(text[at:end])
            at = end

    def _quoted(self, text: str) -> None:
        """Take the text in double quotes. An empty array alone leaves no word."""
        is_array = re.fullmatch(r"\$(?:@|\{(?:@|\w+\[@\]).*\})", text, re.DOTALL) is not None
        if is_array and self.current == "":
            self.current = None
        self.take(text, quoted=True)

    def _expand(self, text: str, at: int, quoted: bool) -> int:
        """Take the expansion of a ``$`` or a backquote. Return the position after it."""
        if text.startswith("$'", at) and not quoted:
            end = skip(text, at)
            self._add(
                text[at + 2 : end]
                .removesuffix("'")
                .replace("\\n", "\n")
                .replace("\\t", "\t")
                .replace("\\'", "'")
            )
            return end
        self.is_quoted = quoted
        value, end = self._value(text, at)
        self.scope.spend(value)
        if isinstance(value, list):
            self._add_list(value, quoted)
        elif quoted or not self.splits:
            self._add(value)
        else:
            self._split(value)
        return end

    def _add_list(self, value: CommandLine, quoted: bool) -> None:
        for n, word in enumerate(value):
            if n:
                self._end()
            self.line = word.line
            if quoted or not self.splits:
                self._add(word.marked)
            else:
                self._split(word.marked)

    def _split(self, value: str) -> None:
        """Take an unquoted value. Blanks in its known parts end a field."""
        pieces = re.findall(_PIECE, value)
        if value[:1].isspace():
            self._end()
        for n, piece in enumerate(pieces):
            if n:
                self._end()
            self._add(piece)
        if pieces and value[-1] in " \t\n":
            self._end()

    def _value(self, text: str, at: int) -> "tuple[str | list[Word], int]":
        if text[at] == "`" or text.startswith(("$(", "${", "$["), at):
            end = skip(text, at)
            raw = text[at:end]
            if raw.startswith("$((") and raw.endswith("))"):
                return self._arithmetic(raw, raw[3:-2]), end
            # the older spelling of $(( ))
            if raw.startswith("$["):
                return self._arithmetic(raw, raw[2:-1]), end
            if raw.startswith("${"):
                return self._braced(raw), end
            inside = raw[1:-1] if raw[0] == "`" else raw[2:-1]
            printed = self.scope.substitute(inside, self.raw.line)
            return unknown(raw) if printed is None else printed.rstrip("\n"), end
        match = _VARIABLE.match(text, at + 1)
        if not match:
            return "$", at + 1
        name = match[0]
        value = self.scope.look_up(name)
        if isinstance(value, list) and name not in ("@", "*"):
            value = value[0].marked if value else ""
        return (unknown(f"${name}") if value is None else value), match.end()

    def _arithmetic(self, raw: str, inside: str) -> str:
        value = calculate_in(self.scope, inside)
        return unknown(raw) if value is None else str(value)

    def _braced(self, raw: str) -> "str | list[Word]":
        """Return the expansion of ``${NAME}``, with its index, default, cut or replacement."""
        if length := re.fullmatch(r"\$\{#(\w+|@|\*)(\[[@*]\])?\}", raw):
            return _length_of(
                self.scope.look_up(length[1]), length[2] is not None or length[1] in "@*", raw
            )
        match = re.fullmatch(_BRACED, raw)
        if not match:
            return unknown(raw)
        name, index, operation = match.groups()
        value = self.scope.look_up(name)
        if isinstance(value, list):
            index = "[@]" if name in ("@", "*") else index
            if index in ("[@]", "[*]"):
                if not value and (empty := re.match(r":?-", operation)):
                    return self._word(operation[empty.end() :])
                return _cut_list(value, operation, raw)
            at = calculate_in(self.scope, (index or "[0]")[1:-1])
            value = (
                value[at].marked
                if at is not None and -len(value) <= at < len(value)
                else unknown(raw)
            )
        elif index not in (None, "[@]", "[*]", "[0]") and name != "BASH_SOURCE":
            return unknown(raw)
        if default := re.match(r":?[-=+?]", operation):
            return self._default(value, name, default[0], operation[default.end() :], raw)
        if value is None:
            return unknown(raw)
        return value if not operation else self._changed(value, operation, raw)

    def _default(self, value: str | None, name: str, sign: str, word: str, raw: str) -> str:
        is_set = value is not None and (value != "" or sign[0] != ":")
        if value is not None and not is_known(value) and not plain_part(value):
            return unknown(raw)
        if sign[-1] == "+":
            return self._word(word) if is_set else ""
        if is_set:
            return value or ""
        if sign[-1] == "?":
            return unknown(raw)
        default = self._word(word)
        if sign[-1] == "=":
            self.scope.keep(name, default)
        return default

    def _word(self, text: str) -> str:
        # bash then leaves a tilde as it is
        if self.is_quoted:
            text = text.replace("~", "\\~", 1) if text.startswith("~") else text
        return self.scope.text(Raw(text, self.raw.line))

    def _changed(self, value: str, operation: str, raw: str) -> str:
        """Return a value cut or replaced: ``%``, ``#``, ``/``, ``,,``, ``^^``,
        ``:offset:length``.
        """
        if not is_known(value) or len(value) > LONGEST_PATTERN:
            return unknown(raw)
        if operation in (",,", "^^"):
            return value.lower() if operation == ",," else value.upper()
        if part := re.fullmatch(r":[ ]?(-?\d+)(?::(\d+))?", operation):
            start = int(part[1])
            rest = value[start if start >= 0 else max(len(value) + start, 0) :]
            return rest[: int(part[2])] if part[2] else rest
        if cut := re.match(r"%%|%|##|#|//|/", operation):
            word = operation[cut.end() :]
            new = ""
            if cut[0][0] == "/":
                parts = re.split(r"(?<!\\)/", word, maxsplit=1)
                word = parts[0]
                new = "".join(parts[1:])
            pattern = self._word(word)
            new = self._word(new)
            if is_known(pattern) and is_known(new):
                return _replaced(value, cut[0], pattern, new)
        return unknown(raw)


def _replaced(value: str, operation: str, pattern: str, new: str) -> str:
    matches = glob(pattern).fullmatch
    if operation[0] == "/":
        regex = re.compile(glob(pattern).pattern)
        return regex.sub(lambda _: new, value, count=operation == "/") if pattern else value
    places = range(len(value) + 1)
    if operation[0] == "%":
        ends = [at for at in places if matches(value[at:])]
        return value[: (max if operation == "%" else min)(ends)] if ends else value
    starts = [at for at in places if matches(value[:at])]
    return value[(min if operation == "#" else max)(starts) :] if starts else value


def glob(pattern: str) -> "re.Pattern[str]":
    """Return a pattern of the shell as a regular expression."""
    pieces = [""]
    for part in re.findall(r"\*+|\[[!^]?\]?[^]\[\\]*\]|.", pattern[:LONGEST_PATTERN], re.DOTALL):
        if part[0] == "*":
            pieces.append("")
        elif part[0] == "[" and len(part) > 2:
            pieces[-1] += "[^" + part[2:] if part[1] in "!^" else part
        else:
            pieces[-1] += "." if part == "?" else re.escape(part)
    # Each piece but the last matches at its first position without backtracking, so many stars
    # still take one pass.
    between = "".join(f"(?>.*?{piece})" for piece in pieces[1:-1])
    try:
        return re.compile(
            pieces[0] + between + (f".*{pieces[-1]}" if len(pieces) > 1 else ""), re.DOTALL
        )
    except re.error:
        # a range that ends before it starts
        return re.compile(re.escape(pattern))


def _length_of(value: "str | list[Word] | None", is_array: bool, raw: str) -> str:
    if isinstance(value, list):
        counted = value if is_array else value[0].marked if value else ""
        return unknown(raw) if any(word.unknown for word in value) else str(len(counted))
    return (
        str(len(value)) if value is not None and is_known(value) and not is_array else unknown(raw)
    )


def _cut_list(value: CommandLine, operation: str, raw: str) -> "str | list[Word]":
    if part := re.fullmatch(r":(\d+)(?::(\d+))?", operation):
        rest = value[int(part[1]) :]
        return rest[: int(part[2])] if part[2] else rest
    return value if not operation or re.match(r":?[-+]", operation) else unknown(raw)


def plain_part(text: str) -> str:
    """Return the known parts of a text."""
    return re.sub(_MARKED, "", text)


def calculate_in(scope: Scope, text: str) -> int | None:
    """Return the value of an arithmetic expression; None if it has an unknown variable."""
    expanded = scope.text(Raw(text, 0)) if "$" in text or "`" in text else text
    if not is_known(expanded):
        return None

    def value_of(match: "re.Match[str]") -> str:
        value = scope.look_up(match[0])
        return str(value) if isinstance(value, str) and is_known(value) else match[0]

    return calculate(re.sub(r"\b[A-Za-z_]\w*", value_of, expanded))


def joined_path(folder: str, name: str) -> str:
    """Return a path as ``cd`` resolves it; empty if it is unknown."""
    if not is_known(name) or name.startswith(("~", "-")):
        return ""
    parts: list[str] = []
    for part in PurePosixPath(folder, name).parts:
        if part == ".." and parts and parts[-1] not in ("/", ".."):
            parts.pop()
        else:
            parts.append(part)
    return str(PurePosixPath(*parts)) if parts else "."
