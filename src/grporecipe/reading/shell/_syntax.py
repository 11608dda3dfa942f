"""Parse bash: commands, lists, pipelines, conditions, loops and functions, with their words
unexpanded.

Nothing is expanded here, because the value of a word depends on the state when the script reaches
it. Broken scripts are read up to the error.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass
class Raw:
    """The source text of a word, and its first line."""

    text: str
    line: int


@dataclass
class Simple:
    """A command: its words, and the here document or here string that it reads (``input``)."""

    words: list[Raw] = field(default_factory=list)
    line: int = 0
    input: Raw | None = None
    # the here document is quoted, so nothing in it is expanded
    is_literal: bool = False
    # it is a here string
    is_string: bool = False
    # the line of an option that is the file of a redirection, as behind <placeholder>
    lost: int | None = None


@dataclass
class Test:
    """``[[ ... ]]``, or ``(( ... ))`` if it is arithmetic."""

    text: str
    line: int
    is_arithmetic: bool = False


@dataclass
class Chain:
    """Commands joined by ``&&`` and ``||``; each with the operator before it ("" for the first),
    and whether ``!`` negates.
    """

    parts: "list[tuple[str, bool, Node]]"


@dataclass
class Group:
    """``{ ...; }``, or commands in a subshell: ``( ... )`` and the parts of a pipeline."""

    body: "list[Node]"
    is_subshell: bool = False


@dataclass
class If:
    """Conditions with their bodies, and the body of ``else``."""

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
    """A word, and the bodies of its patterns."""

    word: Raw
    arms: "list[tuple[list[Raw], list[Node]]]"


@dataclass
class Function:
    """A function's name and body."""

    name: str
    body: "list[Node]"


Node = Simple | Test | Chain | Group | If | Loop | Case | Function


# They enclose a part known only to a running shell: the source text of an expansion.
OPEN, CLOSE = "\ue000", "\ue001"
OPERATORS = ("&&", "||", ";;&", ";;", ";&", ";", "|&", "|", "&", "\n", "(", ")")
REDIRECTION = re.compile(r"(?:\d*|\{\w+\})(?:>>|>&|<&|&>>|&>|>\||>|<>|<<<|<(?!<))(?!\()")
HEREDOC = re.compile(r"\d*<<(-?)[ \t]*(['\"]?)([^\s'\"\\;&|()<>]+)\2")
NAME = re.compile(r"[A-Za-z_]\w*")
FUNCTION = re.compile(r"([^\s;&|()<>$`'\"=]+)[ \t]*\([ \t]*\)")
RESERVED = re.compile(r"(?:[A-Za-z]+|[{}!]|\[\[)(?![^\s;&|()<>])")
ARRAY = r"[A-Za-z_]\w*\+?=$"
BLANKS = " \t\r"
ENDS = frozenset(" \t\r\n;&|()<>")


def closing(text: str, at: int, has_comments: bool = False) -> int:
    """Return the position after the bracket that closes the one at ``at``. Quotes and brackets
    inside are skipped, and the comments of an array, which may have quotes and brackets.
    """
    opening = text[at]
    wanted = {"(": ")", "{": "}", "[": "]"}[opening]
    at += 1
    while at < len(text) and text[at] != wanted:
        if has_comments and text[at] == "#" and text[at - 1] in " \t\r\n(":
            at = _find(text, "\n", at)
        elif text[at] == opening:
            at = closing(text, at)
        else:
            at = skip(text, at)
    return min(at + 1, len(text))


def _find(text: str, sign: str, at: int) -> int:
    """Return the position of a sign, or the end of the text."""
    found = text.find(sign, at)
    if found < 0:
        return len(text)
    return found


def skip(text: str, at: int) -> int:
    """Return the position after one character, quotation or expansion."""
    char = text[at]
    if char == "\\":
        return min(at + 2, len(text))
    if char in "'`" or char == OPEN:
        return min(_find(text, char.replace(OPEN, CLOSE), at + 1) + 1, len(text))
    if char == '"':
        at += 1
        while at < len(text) and text[at] != '"':
            if text[at] == "'":
                at += 1
            else:
                at = skip(text, at)
        return min(at + 1, len(text))
    if char == "$" and text[at + 1 : at + 2] in ("(", "{", "["):
        return closing(text, at + 1)
    if char == "$" and text[at + 1 : at + 2] == "'":
        end = at + 2
        while end < len(text) and text[end] != "'":
            end += 1 + (text[end] == "\\")
        return min(end + 1, len(text))
    return at + 1


class SyntaxReader:
    """One pass over a script."""

    def __init__(self, text: str, line: int = 1) -> None:
        self.text, self.at, self.line = text, 0, line
        # here documents whose text follows the line
        self.pending: list[tuple[Simple, str, bool]] = []

    def script(self) -> list[Node]:
        """Return all commands."""
        nodes: list[Node] = []
        while self._blank():
            nodes += self._list(frozenset())
            # a closing bracket or word without an opening one
            if self.at < len(self.text):
                self._move(1)
        return nodes

    def array(self) -> list[Raw]:
        """Return the words between the brackets of an array."""
        items = []
        while self._blank():
            if self.text[self.at] in ENDS:
                self._move(1)
            else:
                items.append(self._word())
        return items

    def _move(self, count: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + count)
        self.at += count

    def _blank(self) -> bool:
        """Skip blanks, continued lines and comments. Return whether anything is left."""
        while self.at < len(self.text):
            if self.text[self.at] in BLANKS:
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self._move(2)
            elif self.text[self.at] == "#":
                self.at = _find(self.text, "\n", self.at)
            else:
                return True
        return False

    def _operator(self) -> str:
        self._blank()
        return next((sign for sign in OPERATORS if self.text.startswith(sign, self.at)), "")

    def _newlines(self) -> None:
        """Skip the separators of commands."""
        while (operator := self._operator()) in (";", "&", "\n"):
            self._move(1)
            if operator == "\n":
                self._heredocs()

    def _peek(self) -> str:
        """Return the next word, which may be a reserved one."""
        self._blank()
        match = RESERVED.match(self.text, self.at)
        if match is None:
            return ""
        return match[0]

    def _take(self, word: str) -> bool:
        if self._peek() != word:
            return False
        self._move(len(word))
        return True

    def _list(self, ends: Collection[str]) -> list[Node]:
        """Return commands up to a reserved word or operator of ``ends``."""
        nodes: list[Node] = []
        while True:
            self._newlines()
            if (
                not self._blank()
                or self._peek() in ends
                or self._operator() in (")", ";;", ";&", ";;&")
            ):
                return nodes
            start = self.at
            nodes.append(self._chain())
            if self.at == start:
                return nodes

    def _chain(self) -> Node:
        parts: list[tuple[str, bool, Node]] = []
        joint = ""
        while True:
            negated = False
            while self._peek() in ("!", "time"):
                negated ^= self._peek() == "!"
                self._move(len(self._peek()))
            parts.append((joint, negated, self._pipeline()))
            joint = self._operator()
            if joint not in ("&&", "||"):
                break
            self._move(2)
            self._newlines()
        if len(parts) > 1 or negated:
            return Chain(parts)
        return parts[0][2]

    def _pipeline(self) -> Node:
        parts = [self._command()]
        while self._operator() in ("|", "|&"):
            self._move(len(self._operator()))
            self._newlines()
            parts.append(self._command())
        if len(parts) == 1:
            return parts[0]
        return Chain([("|", False, Group([part], is_subshell=True)) for part in parts])

    def _command(self) -> Node:
        """Return one command with its redirections."""
        word = self._peek()
        if self.text.startswith("((", self.at):
            node: Node = self._arithmetic()
        elif self._operator() == "(":
            self._move(1)
            node = Group(self._list(frozenset()), is_subshell=True)
            self._close(")")
        elif word in ("if", "while", "until", "for", "select", "case", "{", "function", "[["):
            self._move(len(word))
            node = self._compound(word)
        elif match := FUNCTION.match(self.text, self.at):
            self._move(len(match[0]))
            node = Function(match[1], self._body())
        else:
            return self._simple()
        # its redirections
        self._simple_words(Simple())
        return node

    def _compound(self, word: str) -> Node:
        match word:
            case "if":
                return self._if()
            case "while" | "until":
                condition = self._list({"do"})
                return Loop(self._do(), condition=condition, until=word == "until")
            case "for" | "select":
                return self._for()
            case "case":
                return self._case()
            case "{":
                body = self._list({"}"})
                self._take("}")
                return Group(body)
            case "function":
                name = self._operand().text
                if self._operator() == "(":
                    self._move(1)
                    self._close(")")
                return Function(name, self._body())
        return self._double_bracket()

    def _body(self) -> list[Node]:
        self._newlines()
        if not self._blank():
            return []
        return [self._command()]

    def _close(self, bracket: str) -> None:
        if self._blank() and self.text[self.at] == bracket:
            self._move(1)

    def _arithmetic(self) -> Test:
        start = self.at
        line = self.line
        self._move(closing(self.text, self.at) - self.at)
        return Test(
            self.text[start + 2 : self.at].removesuffix(")").removesuffix(")"),
            line,
            is_arithmetic=True,
        )

    def _double_bracket(self) -> Test:
        start = self.at
        line = self.line
        while self.at < len(self.text) and not self.text.startswith("]]", self.at):
            self._move(skip(self.text, self.at) - self.at)
        text = self.text[start : self.at]
        self._move(min(2, len(self.text) - self.at))
        return Test(text, line)

    def _if(self) -> If:
        branches = []
        otherwise = []
        while True:
            condition = self._list({"then"})
            self._take("then")
            branches.append((condition, self._list({"elif", "else", "fi"})))
            if not self._take("elif"):
                break
        if self._take("else"):
            otherwise = self._list({"fi"})
        self._take("fi")
        return If(branches, otherwise)

    def _do(self) -> list[Node]:
        self._newlines()
        end = "done"
        if self._take("{"):
            end = "}"
        else:
            self._take("do")
        body = self._list({end})
        self._take(end)
        return body

    def _for(self) -> Loop:
        if self._blank() and self.text.startswith("((", self.at):
            self._arithmetic()
            return Loop(self._do(), words=[Raw("$", self.line)])
        name = self._operand().text
        self._newlines()
        words = None
        if self._take("in"):
            words = []
            while self._blank() and not self._operator():
                words.append(self._word())
        return Loop(self._do(), name, words)

    def _case(self) -> Case:
        word = self._operand()
        self._newlines()
        self._take("in")
        arms = []
        while True:
            self._newlines()
            if not self._blank() or self._take("esac"):
                break
            start = self.at
            self._close("(")
            patterns = []
            while self._blank() and (operator := self._operator()) != ")":
                if not operator:
                    patterns.append(self._word())
                elif operator == "|":
                    self._move(1)
                else:
                    break
            self._close(")")
            arms.append((patterns, self._list({"esac"})))
            if self._operator() in (";;", ";&", ";;&"):
                self._move(len(self._operator()))
            if self.at == start:
                break
        return Case(word, arms)

    def _simple(self) -> Simple:
        self._blank()
        command = Simple(line=self.line)
        self._simple_words(command)
        return command

    def _simple_words(self, command: Simple) -> None:
        while self._blank():
            if match := HEREDOC.match(self.text, self.at):
                self._move(len(match[0]))
                command.is_literal = bool(match[2])
                self.pending.append((command, match[3], bool(match[1])))
            elif match := REDIRECTION.match(self.text, self.at):
                self._move(len(match[0]))
                target = self._operand()
                if match[0] == "<<<" and target.text:
                    command.input = target
                    command.is_string = True
                elif target.text.startswith("--"):
                    command.lost = target.line
            elif self._operator() or (not command.line and self.text[self.at] not in "<>"):
                return
            else:
                start = self.at
                command.words.append(self._word())
                if self.at == start:
                    return

    def _operand(self) -> Raw:
        """Return the next word; an empty one in front of an operator."""
        if self._operator():
            return Raw("", self.line)
        return self._word()

    def _word(self) -> Raw:
        """Return the source text of one word; an array includes its brackets."""
        start = self.at
        line = self.line
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in "<>" and self.text.startswith("(", self.at + 1):
                self._move(closing(self.text, self.at + 1) - self.at)
            elif char == "(" and re.match(ARRAY, self.text[start : self.at][-200:]):
                self._move(closing(self.text, self.at, has_comments=True) - self.at)
                break
            elif char in ENDS:
                if self.at == start:
                    # a single bracket
                    self._move(1)
                break
            else:
                self._move(skip(self.text, self.at) - self.at)
        return Raw(self.text[start : self.at], line)

    def _heredocs(self) -> None:
        for command, end, is_indented in self.pending:
            tabs = r"\t*" * is_indented
            last_line = rf"(?m)^{tabs}{re.escape(end)}$\n?"
            text, *rest = re.split(last_line, self.text[self.at :], maxsplit=1)
            count = len(self.text) - self.at - sum(map(len, rest))
            if is_indented:
                text = re.sub(r"(?m)^\t+", "", text)
            command.input = Raw(text, self.line)
            self._move(count)
        self.pending = []
