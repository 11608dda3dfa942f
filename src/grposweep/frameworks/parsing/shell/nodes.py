"""The parts of a shell script: commands, lists, conditions, loops and functions, their words as they are written."""

from dataclasses import dataclass, field


@dataclass
class Raw:
    """A word as it is written, and its first line."""

    text: str
    line: int


@dataclass
class Simple:
    """A command: its words, and what it reads from a here document or here string (``input``)."""

    words: list[Raw] = field(default_factory=list)
    line: int = 0
    input: Raw | None = None
    is_literal: bool = False  # the here document is quoted, so nothing in it is expanded
    is_string: bool = False  # it is a here string


@dataclass
class Test:
    """``[[ ... ]]``, or ``(( ... ))`` where it is arithmetic."""

    text: str
    line: int
    is_arithmetic: bool = False


@dataclass
class Chain:
    """Commands joined by ``&&`` and ``||``; each with the operator before it ("" for the first), and whether ``!`` negates."""

    parts: "list[tuple[str, bool, Node]]"


@dataclass
class Group:
    """``{ ...; }``, or commands in a shell of their own: ``( ... )`` and the parts of a pipeline."""

    body: "list[Node]"
    is_subshell: bool = False


@dataclass
class If:
    """Conditions with their bodies, and what runs otherwise."""

    branches: "list[tuple[list[Node], list[Node]]]"
    otherwise: "list[Node]"


@dataclass
class Loop:
    """``for NAME in WORDS`` (None: the arguments), ``while``, or ``until``."""

    body: "list[Node]"
    name: str = ""
    words: list[Raw] | None = None
    condition: "list[Node]" = field(default_factory=list)
    until: bool = False


@dataclass
class Case:
    """A word, and the bodies behind its patterns."""

    word: Raw
    arms: "list[tuple[list[Raw], list[Node]]]"


@dataclass
class Function:
    """A function's name and body."""

    name: str
    body: "list[Node]"


Node = Simple | Test | Chain | Group | If | Loop | Case | Function
