"""Read the part of bash that launch scripts use: the commands in order, with the variables that the
script assigns.

Nothing is run. If a condition depends on the environment, on files or on commands, both branches
are read, and a variable that differs between them is unknown. Arguments and variables that the
script does not set are unknown, except for their defaults (``${N:-8}``).
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from grporecipe.errors import UserError
from grporecipe.model.values import CommandLine, Word
from grporecipe.reading.shell._builtins import BUILTINS, Builtins, judge_double, opposite
from grporecipe.reading.shell._programs import handed_on, input_of, printed, reads_script
from grporecipe.reading.shell._syntax import (
    Case,
    Chain,
    Function,
    Group,
    If,
    Loop,
    Node,
    Raw,
    Simple,
    SyntaxReader,
    Test,
)
from grporecipe.reading.shell._words import (
    ASSIGNMENT,
    Scope,
    Value,
    Values,
    glob,
    is_known,
    marked_texts,
    plain,
    unknown,
)

# characters; the longest launch scripts have ten thousand
LONGEST_SHELL = 256 * 2**10
MOST_COMMANDS = 5000
# of nested loops that are read one by one
MOST_ROUNDS = 32
# calls
DEEPEST = 30
ASSIGNERS = frozenset({"export", "local", "declare", "readonly", "typeset"})
ASKING = frozenset(
    {
        "[",
        "test",
        "grep",
        "egrep",
        "command",
        "which",
        "type",
        "hash",
        "nvidia-smi",
        "pgrep",
        "diff",
    }
)


@dataclass
class Command:
    """The words of one simple command, without redirections, and the variables that its program may
    read.

    ``folder`` is the working directory, if the script changes it. ``aside``: it is in a function
    that is not called, or after an ``exit``. ``lost`` is the line of an option that a redirection
    takes.
    """

    words: CommandLine = field(default_factory=list)
    environment: Values = field(default_factory=dict)
    folder: str = ""
    aside: bool = False
    lost: int | None = None


# reads a sourced file, by its name and the working directory
Reader = Callable[[str, str], str | None]


def parse_script(
    text: str,
    values: Values | None = None,
    path: str | None = None,
    read: Reader = lambda *_: None,
    opens: bool = False,
) -> list[Command]:
    """Return the simple commands of a script in order, with the variables that it assigns expanded.

    Args:
        text: the script.
        values: variables that are set before the script; its own variables are added.
        path: its own path, as ``$0``.
        read: returns the text of a file that it sources, or None.
        opens: read also what a condition switches off, as a user may switch it on by a variable.

    Raises UserError if it is too long or nested too deeply for a launch script.

    """
    if len(text) > LONGEST_SHELL:
        raise UserError(
            f"it has more than {LONGEST_SHELL // 2**10} KiB, so it is no launch script."
        )
    try:
        return _Shell(Scope(values or {}, path=path), read, opens).script(text)
    except RecursionError:
        raise UserError("its brackets are nested too deep, so it is no launch script.") from None


class _Shell(Builtins):
    """The state of a script as it is read: variables, functions, and the commands found so far."""

    def __init__(self, scope: Scope, read: Reader, opens: bool) -> None:
        super().__init__(scope)
        self.read = read
        # whether conditions that are false are read as well
        self.opens = opens
        scope.substitute = partial(printed, scope)
        self.commands: list[Command] = []
        # the body, and whether it is from another file
        self.functions: dict[str, tuple[list[Node], bool]] = {}
        self.called: set[str] = set()
        self.locals: list[dict[str, Value | None]] = []
        self.steps, self.rounds, self.depth = 0, 1, 0
        # of all words, if the text is not in the script itself
        self.line = 0
        self.silent = self.aside = False

    def script(self, text: str) -> list[Command]:
        """Return the commands. Those after an ``exit`` and in functions that are not called are
        marked ``aside``.
        """
        for node in _nodes(text):
            self.run([node])
            if self.ended == "exit":
                self.aside = True
                self._fill_checked(node)
            self.ended = ""
        self.aside = True
        for name in list(self.functions):
            if name not in self.called:
                self.scope.arguments = None
                self.branch([partial(self._call, name, [], 0)], may_skip=True)
        return self.commands

    def _fill_checked(self, node: Node) -> None:
        """Forget empty variables of a check that ends the script: after it they have values."""
        for name, value in self.scope.values.items():
            if value == "" and re.search(rf"\${{?{name}\b", repr(node)):
                self.scope.doubt(name)

    def run(self, nodes: Iterable[Node]) -> bool | None:
        """Read commands in order. Return the status of the last one, None if only a running shell
        knows it.
        """
        status: bool | None = True
        for node in nodes:
            if self.ended:
                break
            status = self._run(node)
        return status

    def _run(self, node: Node) -> bool | None:
        self.steps += 1
        if self.steps > MOST_COMMANDS:
            raise UserError(
                f"it runs more than {MOST_COMMANDS} commands, so it is no launch script."
            )
        match node:
            case Simple():
                return self._simple(node)
            case Test(is_arithmetic=True):
                return self.arithmetic(node.text)
            case Test():
                return judge_double(node.text, self.scope, node.line)
            case Chain():
                return self._chain(node)
            case Group(is_subshell=True):
                return self._subshell(node.body)
            case Group():
                return self.run(node.body)
            case If():
                return self._if(node)
            case Loop(name="", words=None):
                return self._while(node)
            case Loop():
                return self._for(node)
            case Case():
                return self._case(node)
            case Function():
                self.functions[node.name] = (node.body, bool(self.line) or self.silent)
        return True

    def _subshell(self, body: list[Node]) -> bool | None:
        before = self.snapshot()
        functions = dict(self.functions)
        status = self.run(body)
        self.functions |= functions
        self.ended = ""
        self.restore(before)
        return status

    def _chain(self, node: Chain) -> bool | None:
        status: bool | None = True
        is_program = False
        for joint, negated, part in node.parts:
            if (joint == "&&" and status is False) or (joint == "||" and status is True):
                continue
            if joint in ("", "|") or status is not None or (joint == "&&" and is_program):
                status = self._run(part)
                if negated:
                    status = opposite(status)
            else:
                self.branch([partial(self._run, part)], may_skip=True)
                status = None
            is_program = (
                isinstance(part, Simple) and bool(part.words) and part.words[0].text not in ASKING
            )
            if self.ended:
                break
        return status

    def _if(self, node: If) -> bool | None:
        possible: list[list[Node]] = []
        for condition, body in node.branches:
            status = self.run(condition)
            if self.ended:
                return None
            if status is True:
                last = body
                break
            if status is None or self.opens:
                possible.append(body)
        else:
            last = node.otherwise
        if not possible:
            return self.run(last)
        possible.append(last)
        self.branch([partial(self.run, body) for body in possible], may_skip=False)
        return None

    def _for(self, node: Loop) -> bool | None:
        items = self.scope.arguments
        if node.words is not None:
            items = self.scope.expand(node.words)
        since = len(self.escaped)
        if (
            items is None
            or any(item.unknown for item in items)
            or len(items) * self.rounds > MOST_ROUNDS
        ):
            if node.name:
                self.scope.doubt(node.name)
            self.branch([partial(self._round, node.body)], may_skip=True)
            self.absorb(since)
            return None
        self.rounds *= max(len(items), 1)
        for item in items:
            self.scope.keep(node.name, item.marked)
            if self._round(node.body):
                break
        self.rounds //= max(len(items), 1)
        self.absorb(since)
        return True

    def _round(self, body: list[Node]) -> bool:
        """Read a loop's body once; return whether the loop is left."""
        self.run(body)
        left = self.ended not in ("", "continue")
        if self.ended in ("break", "continue"):
            self.ended = ""
        return left

    def _while(self, node: Loop) -> bool | None:
        since = len(self.escaped)
        rounds = MOST_ROUNDS
        if all(map(_is_true, node.condition)):
            rounds = 1
        for _ in range(rounds):
            status = self.run(node.condition)
            if node.until:
                status = opposite(status)
            if status is None:
                self.branch([partial(self._round, node.body)], may_skip=True)
            if status is not True or self.ended or self._round(node.body):
                break
        self.absorb(since)
        return None

    def _case(self, node: Case) -> bool | None:
        text = self.scope.text(node.word)
        possible: list[list[Node]] = []
        may_skip = True
        for patterns, body in node.arms:
            texts = list(map(self.scope.text, patterns))
            if "*" in texts:
                possible.append(body)
                may_skip = False
                break
            if not is_known(text) or not all(map(is_known, texts)):
                possible.append(body)
            elif any(glob(pattern).fullmatch(text) for pattern in texts):
                possible.append(body)
                may_skip = False
                break
        if len(possible) == 1 and not may_skip:
            return self.run(possible[0])
        self.branch([partial(self.run, body) for body in possible], may_skip)
        return None

    def _simple(self, node: Simple) -> bool | None:
        before: dict[str, Value | None] = {}
        for at, raw in enumerate(node.words):
            name = self._assign(raw, before)
            if not name:
                status = self._command(node.words[at:], node)
                # assignments before a command are valid for it only
                for name, value in before.items():
                    self.scope.keep(name, value)
                return status
        return True

    def _assign(self, raw: Raw, before: dict[str, Value | None]) -> str:
        """Assign a variable, and store its value before; return its name. Return an empty text for
        a word that is no assignment.
        """
        match = ASSIGNMENT.fullmatch(raw.text)
        if match is None:
            return ""
        name, index, more, right = match.groups()
        old = self.scope.values.get(name)
        before.setdefault(name, old)
        # of an element of an array
        value: Value = unknown(f"${{{name}[@]}}")
        if right.startswith("(") and not index:
            array = self.scope.array(Raw(right, raw.line))
            if not more or not old:
                value = array
            elif isinstance(old, list):
                value = [*old, *array]
        elif not index:
            value = self.scope.text(Raw(right, raw.line))
            if more and isinstance(old, str):
                value = old + value
            elif more:
                value = unknown(f"${name}")
        self.scope.keep(name, value)
        return name

    def _command(self, words: list[Raw], node: Simple) -> bool | None:
        name = words[0].text
        if name in ASSIGNERS:
            return self._declare(name, words[1:])
        fields = self.scope.expand(words)
        if not fields:
            return True
        name = fields[0].text
        arguments = fields[1:]
        if name in self.functions and self.depth < DEEPEST:
            return self._call(name, arguments, fields[0].line)
        if name == "eval":
            return self._eval(arguments)
        if name in ("source", "."):
            return self._source(arguments)
        if name in BUILTINS:
            return self.built_in(name, arguments, node)
        if name in ("exec", "builtin"):
            fields = arguments
        self._record(fields, node)
        return None

    def _declare(self, command: str, words: list[Raw]) -> bool:
        is_map = any(raw.text.startswith("-") and "A" in raw.text for raw in words)
        before: dict[str, Value | None] = {}
        if self.locals and command != "export":
            before = self.locals[-1]
        for raw in words:
            name = self._assign(raw, before)
            if name and is_map:
                self.scope.keep(name, unknown(f"${{{name}[@]}}"))
        return True

    def _call(self, name: str, arguments: CommandLine, line: int) -> bool | None:
        """Read a function's body with its arguments."""
        self.called.add(name)
        body, is_foreign = self.functions[name]
        kept = self.scope.arguments, self.line, self.silent, len(self.escaped)
        self.scope.arguments = arguments
        if not line:
            self.scope.arguments = None
        if is_foreign:
            self.line = self.line or line
        self.locals.append({})
        self.depth += 1
        status = self.run(body)
        self.absorb(kept[3], "return")
        self.depth -= 1
        for variable, value in self.locals.pop().items():
            self.scope.keep(variable, value)
        self.scope.arguments, self.line, self.silent = kept[:3]
        return status

    def _record(self, fields: CommandLine, node: Simple) -> None:
        """Record a command, or read the script that it passes to another shell."""
        inner = handed_on(fields, self._other)
        if inner is None and node.input is not None and reads_script(fields):
            text = input_of(self.scope, node)
            inner = [Word(text, node.input.line, marked=text, span=text.count("\n"))]
        if inner is not None and self.depth < DEEPEST:
            kept = self.scope.path, self.scope.arguments
            if len(inner) > 1:
                self.scope.path, self.scope.arguments = inner[1].marked, inner[2:]
            self._inner(inner[0], self._subshell)
            self.scope.path, self.scope.arguments = kept
        elif fields and not self.silent:
            if self.line:
                fields = [Word(field.text, self.line, field.unknown) for field in fields]
            self.commands.append(
                Command(fields, dict(self.scope.values), self.scope.folder, self.aside, node.lost)
            )

    def _inner(self, word: Word, run: Callable[[list[Node]], bool | None]) -> bool | None:
        """Read the script in a word. Its lines are those of the file if it is written there."""
        kept = self.line
        if word.marked.count("\n") > word.span:
            self.line = self.line or word.line
        self.depth += 1
        status = run(SyntaxReader(word.marked, word.line).script())
        self.depth -= 1
        self.line = kept
        return status

    def _eval(self, arguments: CommandLine) -> bool | None:
        if not arguments or self.depth >= DEEPEST:
            return None
        text = " ".join(marked_texts(arguments))
        span = sum(argument.span for argument in arguments)
        return self._inner(Word(text, arguments[0].line, marked=text, span=span), self.run)

    def _other(self, name: str) -> str | None:
        """Return the text of another script, unless this one is another already."""
        if self.line or self.silent:
            return None
        return self.read(name, self.scope.folder)

    def _source(self, arguments: CommandLine) -> bool | None:
        if not arguments or arguments[0].unknown or self.depth >= DEEPEST:
            return None
        text = self.read(arguments[0].text, self.scope.folder)
        if text is None or len(text) > LONGEST_SHELL:
            return None
        kept = self.silent
        self.silent = True
        self.depth += 1
        self.run(_nodes(text))
        self.depth -= 1
        self.silent = kept
        self.ended = ""
        return None


def _nodes(text: str) -> list[Node]:
    """Return the commands of a file."""
    return SyntaxReader(plain(text.replace("\r\n", "\n"))).script()


def _is_true(node: Node) -> bool:
    """Return whether a command is ``:`` or ``true``."""
    return isinstance(node, Simple) and [raw.text for raw in node.words] in ([":"], ["true"])
