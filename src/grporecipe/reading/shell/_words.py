"""Expand a word as bash does: quotes, variables, defaults, arithmetic, and the split into fields.

Parts that depend on the environment or on a command's output are unknown. They keep their source
text between two marks, so that the text around them stays known.
"""

import re
from collections.abc import Callable, Iterable
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
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^]]*\])?(\+?)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"[A-Za-z_]\w*|[0-9]|[@*#?$!-]")
_BRACED = r"(?s)\$\{([A-Za-z_]\w*|\d+|[@*])(\[(?:[^]]*)\])?(.*)\}"
_BRACES = (
    r"([^'\"\\$`{}\s]*)\{((?:[^{}'\"\s$`\\,]*,)+[^{}'\"\s$`\\,]*"
    r"|-?\d{1,4}\.\.-?\d{1,4})\}([^{}'\"\\$`\s]*)"
)
_PIECE = f"(?:{OPEN}[^{CLOSE}]*{CLOSE}|[^ \t\n])+"
_MARKED = f"{OPEN}[^{CLOSE}]*{CLOSE}?"


# a variable: a text, or an array
Value = str | CommandLine
Values = dict[str, Value]


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


def _length(value: Value) -> int:
    if isinstance(value, list):
        return sum(len(word.text) + 1 for word in value)
    return len(value)


def known_or(value: object, raw: str) -> str:
    """Return a value as text; None is unknown, with this source text."""
    if value is None:
        return unknown(raw)
    return str(value)


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

    def keep(self, name: str, value: Value | None) -> None:
        """Store a variable; None removes it. One that is too long becomes unknown, and no more than
        a maximum number are stored.
        """
        if value is None:
            self.values.pop(name, None)
        elif name in self.values or len(self.values) < MOST_VARIABLES:
            if _length(value) > LONGEST_VALUE:
                value = unknown(f"${name}")
            self.values[name] = value

    def doubt(self, name: str) -> None:
        """Make a variable unknown."""
        self.keep(name, unknown(f"${name}"))

    def look_up(self, name: str) -> Value | None:
        """Return a variable's value; None if it is not set."""
        if name == "0" or (name == "BASH_SOURCE" and self.path):
            return self.path
        if name == "PWD" and self.folder:
            return self.folder
        if not name.isdigit() and name not in "@*#":
            return self.values.get(name)
        if self.arguments is None or name in "@*":
            return self.arguments
        if name == "#":
            return str(len(self.arguments))
        if 0 < int(name) <= len(self.arguments):
            return self.arguments[int(name) - 1].marked
        return None

    def expand(self, words: Iterable[Raw]) -> CommandLine:
        """Return the fields that words of a command are split into."""
        fields: CommandLine = []
        for raw in words:
            braces = re.fullmatch(_BRACES, raw.text)
            if braces is None:
                fields += Fields(self, raw, splits=True).read()
                continue
            for item in _alternatives(braces[2]):
                fields.append(finished(f"{braces[1]}{item}{braces[3]}", raw.line))
        return fields

    def text(self, raw: Raw) -> str:
        """Return a word as one text with marks, as in an assignment."""
        return " ".join(marked_texts(Fields(self, raw, splits=False).read()))

    def document(self, raw: Raw) -> str:
        """Return a here document as one text with marks."""
        fields = Fields(self, raw, splits=False)
        fields.take(raw.text, quoted=True)
        return fields.current or ""

    def array(self, raw: Raw) -> CommandLine:
        """Return the elements of ``( ... )``."""
        words = SyntaxReader(raw.text[1:].removesuffix(")"), raw.line).array()
        return self.expand(Raw(re.sub(r"^\[[^]]*\]=", "", word.text), word.line) for word in words)

    def spend(self, value: Value) -> None:
        """Count the characters of expanded variables.

        Raises UserError if there are more than any launch has.
        """
        self.expanded += _length(value)
        if self.expanded > MOST_EXPANDED:
            most = MOST_EXPANDED // 2**20
            raise UserError(
                f"its variables stand for more than {most} MiB, so it launches nothing we know."
            )


def marked_texts(fields: Iterable[Word]) -> list[str]:
    """Return the texts of fields, with marks."""
    return [field.marked for field in fields]


def _alternatives(text: str) -> list[str]:
    """Return the expansion of ``{a,b}`` and ``{1..3}``."""
    first, dots, last = text.partition("..")
    if "," in text or not dots:
        return text.split(",")
    start = int(first)
    end = int(last)
    numbers = range(start, end + 1)
    if end < start:
        numbers = range(start, end - 1, -1)
    return list(map(str, numbers))


class Fields:
    """One pass over a word. If ``splits``, unquoted values are split at blanks."""

    def __init__(self, scope: Scope, raw: Raw, splits: bool) -> None:
        self.scope, self.raw, self.splits = scope, raw, splits
        self.fields: CommandLine = []
        self.current: str | None = None
        # an element of an array has its own line
        self.line = raw.line
        # the expansion that is being read
        self.is_quoted = False

    def read(self) -> CommandLine:
        """Return the fields. Bash expands a tilde at the start as ``$HOME``, which only a running
        shell knows.
        """
        self.take(re.sub(r"^~(?=/|\Z)", "${HOME}", self.raw.text), quoted=False)
        self._end()
        return self.fields

    def _add(self, text: str) -> None:
        self.current = (self.current or "") + text

    def _end(self) -> None:
        if self.current is not None:
            self.fields.append(finished(self.current, self.line, self.raw.text.count("\n")))
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
                self._add(text[at + 1 : end].removesuffix("'"))
            elif char == '"':
                self._add("")
                self._quoted(text[at + 1 : end].removesuffix('"'))
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
        if isinstance(value, str):
            self._split(value)
            return end
        for n, element in enumerate(value):
            if n:
                self._end()
            self.line = element.line
            self._split(element.marked)
        return end

    def _split(self, value: str) -> None:
        """Take a value. If it is not quoted, blanks in its known parts end a field."""
        if self.is_quoted or not self.splits:
            self._add(value)
            return
        pieces = re.findall(_PIECE, value)
        if value[:1].isspace():
            self._end()
        for n, piece in enumerate(pieces):
            if n:
                self._end()
            self._add(piece)
        if pieces and value[-1] in " \t\n":
            self._end()

    def _value(self, text: str, at: int) -> tuple[Value, int]:
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
            # in backquotes, or in $( )
            inside = raw.removeprefix("$")[1:-1]
            printed = self.scope.substitute(inside, self.raw.line)
            return known_or(printed, raw).rstrip("\n"), end
        match = _VARIABLE.match(text, at + 1)
        if not match:
            return "$", at + 1
        name = match[0]
        value = self.scope.look_up(name)
        if isinstance(value, list):
            if name in "@*":
                return value, match.end()
            value = first_of(value)
        return known_or(value, f"${name}"), match.end()

    def _arithmetic(self, raw: str, inside: str) -> str:
        return known_or(calculate_in(self.scope, inside), raw)

    def _braced(self, raw: str) -> Value:
        """Return the expansion of ``${NAME}``, with its index, default, cut or replacement."""
        if match := re.fullmatch(r"\$\{#(\w+|@|\*)(\[[@*]\])?\}", raw):
            is_array = match[2] is not None or match[1] in "@*"
            return _length_of(self.scope.look_up(match[1]), is_array, raw)
        match = re.fullmatch(_BRACED, raw)
        if not match:
            return unknown(raw)
        name, index, operation = match.groups()
        value = self.scope.look_up(name)
        if isinstance(value, list):
            if index in ("[@]", "[*]") or name in "@*":
                if not value and operation.startswith(("-", ":-")):
                    return self._word(operation.removeprefix(":")[1:])
                return _cut_list(value, operation, raw)
            at = calculate_in(self.scope, (index or "[0]")[1:-1])
            if at is None or not -len(value) <= at < len(value):
                value = unknown(raw)
            else:
                value = value[at].marked
        elif index not in (None, "[@]", "[*]", "[0]") and name != "BASH_SOURCE":
            return unknown(raw)
        if match := re.match(r":?[-=+?]", operation):
            return self._default(value, name, match[0], operation[match.end() :], raw)
        if operation and value is not None:
            return self._changed(value, operation, raw)
        return known_or(value, raw)

    def _default(self, value: str | None, name: str, sign: str, word: str, raw: str) -> str:
        is_set = value is not None and (value != "" or sign[0] != ":")
        if value and not plain_part(value):
            return unknown(raw)
        if sign[-1] == "+" and not is_set:
            return ""
        if is_set and sign[-1] != "+":
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
            text = re.sub(r"^~", r"\~", text)
        return self.scope.text(Raw(text, self.raw.line))

    def _changed(self, value: str, operation: str, raw: str) -> str:
        """Return a value cut or replaced: ``%``, ``#``, ``/``, ``,,``, ``^^``,
        ``:offset:length``.
        """
        if not is_known(value) or len(value) > LONGEST_PATTERN:
            return unknown(raw)
        if operation == ",,":
            return value.lower()
        if operation == "^^":
            return value.upper()
        if match := re.fullmatch(r":[ ]?(-?\d+)(?::(\d+))?", operation):
            return value[int(match[1]) :][: int(match[2] or len(value))]
        if match := re.match(r"%%|%|##|#|//|/", operation):
            word = operation[match.end() :]
            new = ""
            if match[0][0] == "/":
                word, *rest = re.split(r"(?<!\\)/", word, maxsplit=1)
                new = "".join(rest)
            pattern = self._word(word)
            new = self._word(new)
            if is_known(pattern) and is_known(new):
                return _replaced(value, match[0], pattern, new)
        return unknown(raw)


def _replaced(value: str, operation: str, pattern: str, new: str) -> str:
    if operation[0] == "/":
        if not pattern:
            return value
        return re.sub(glob(pattern).pattern, lambda _: new, value, count=operation == "/")
    matches = glob(pattern).fullmatch
    places = range(len(value) + 1)
    # where the shortest end and the longest beginning are found first
    if operation in ("%", "##"):
        places = places[::-1]
    for at in places:
        if operation[0] == "%" and matches(value[at:]):
            return value[:at]
        if operation[0] == "#" and matches(value[:at]):
            return value[at:]
    return value


def glob(pattern: str) -> "re.Pattern[str]":
    """Return a pattern of the shell as a regular expression."""
    pieces = [""]
    for part in re.findall(r"\*+|\[[!^]?\]?[^]\[\\]*\]|.", pattern[:LONGEST_PATTERN], re.DOTALL):
        if part[0] == "*":
            pieces.append("")
        elif part[0] == "[" and len(part) > 2:
            pieces[-1] += re.sub(r"^\[!", "[^", part)
        elif part == "?":
            pieces[-1] += "."
        else:
            pieces[-1] += re.escape(part)
    # Each piece but the last matches at its first position without backtracking, so many stars
    # still take one pass.
    for n in range(1, len(pieces) - 1):
        pieces[n] = f"(?>.*?{pieces[n]})"
    if len(pieces) > 1:
        pieces[-1] = f".*{pieces[-1]}"
    try:
        return re.compile("".join(pieces), re.DOTALL)
    except re.error:
        # a range that ends before it starts
        return re.compile(re.escape(pattern))


def first_of(value: CommandLine) -> str:
    """Return the first element of an array, which its name alone stands for."""
    return "".join(marked_texts(value[:1]))


def _length_of(value: Value | None, is_array: bool, raw: str) -> str:
    if isinstance(value, list) and not any(element.unknown for element in value):
        if is_array:
            return str(len(value))
        return str(len(first_of(value)))
    if isinstance(value, str) and is_known(value) and not is_array:
        return str(len(value))
    return unknown(raw)


def _cut_list(value: CommandLine, operation: str, raw: str) -> Value:
    if match := re.fullmatch(r":(\d+)(?::(\d+))?", operation):
        return value[int(match[1]) :][: int(match[2] or len(value))]
    if re.match(r":?[-+]|\Z", operation):
        return value
    return unknown(raw)


def plain_part(text: str) -> str:
    """Return the known parts of a text."""
    return re.sub(_MARKED, "", text)


def calculate_in(scope: Scope, text: str) -> int | None:
    """Return the value of an arithmetic expression; None if it has an unknown variable."""
    if "$" in text or "`" in text:
        text = scope.text(Raw(text, 0))
    if not is_known(text):
        return None

    def value_of(match: "re.Match[str]") -> str:
        value = scope.look_up(match[0])
        if isinstance(value, str) and is_known(value):
            return value
        return match[0]

    return calculate(re.sub(r"\b[A-Za-z_]\w*", value_of, text))


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
    return str(PurePosixPath(*parts))
