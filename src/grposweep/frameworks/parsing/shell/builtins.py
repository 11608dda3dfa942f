"""Built-in commands of bash that change a script's state: each takes its words and returns its status."""

import re
from collections.abc import Callable
from functools import partial

from grposweep.frameworks.parsing.shell.handed_on import input_of
from grposweep.frameworks.parsing.shell.nodes import Simple
from grposweep.frameworks.parsing.shell.state import State
from grposweep.frameworks.parsing.shell.tests import judge_words
from grposweep.frameworks.parsing.shell.words import Word, calculate_in, finished, is_known, joined_path, keep, unknown

_ARITHMETIC = re.compile(r"\s*([A-Za-z_]\w*)\s*(\+\+|--|[-+*/%]?=(?!=))(.*)", re.DOTALL)


class Builtins(State):
    """A state with the commands that change it."""

    def arithmetic(self, text: str) -> bool | None:
        """``(( ... ))``: an assignment, or a condition."""
        match = _ARITHMETIC.fullmatch(text)
        if not match:
            value = calculate_in(self.scope, text)
            return None if value is None else value != 0
        name, sign, right = match.groups()
        right = "1" if sign in ("++", "--") else right
        value = calculate_in(self.scope, right if sign == "=" else f"{name} {sign[0]} ({right})")
        keep(self.scope.values, name, unknown(f"${name}") if value is None else str(value))
        return None

    def set_arguments(self, words: list[Word], _: Simple) -> bool:
        """``set -- WORDS``: the arguments."""
        at = next((n for n, word in enumerate(words) if word.text == "--"), None)
        if at is not None:
            self.scope.arguments = None if any(word.unknown for word in words[at:]) else words[at + 1 :]
        return True

    def shift(self, words: list[Word], _: Simple) -> bool:
        """Drop the first arguments."""
        if self.scope.arguments is not None:
            count = int(words[0].text) if words and words[0].text.isdigit() else 1
            self.scope.arguments = self.scope.arguments[count:]
        return True

    def read_input(self, words: list[Word], node: Simple) -> None:
        """``read``: what a here document or here string gives is known."""
        names = [word.text for word in words if re.fullmatch(r"[A-Za-z_]\w*", word.text)]
        flags = "".join(word.text for word in words if word.text.startswith("-"))
        for name in names:
            keep(self.scope.values, name, unknown(f"${name}"))
        if node.input is None or not names:
            return
        text, between = input_of(self.scope, node), self.scope.values.get("IFS", " ")
        if "a" in flags and between in (" ", ","):
            pieces = text.split("," if between == "," else None)
            marked = [finished(piece.strip("\n"), node.line) for piece in pieces]
            keep(self.scope.values, names[-1], marked if is_known(text) else unknown(f"${{{names[-1]}[@]}}"))
        elif "d" in flags:
            keep(self.scope.values, names[-1], text.strip(" \t\n"))
        elif len(names) == 1 and "\n" not in text.strip():
            keep(self.scope.values, names[0], text.strip())

    def unset(self, words: list[Word], _: Simple) -> bool:
        """Forget variables."""
        for word in words:
            self.scope.values.pop(word.text, None)
        return True

    def cd(self, words: list[Word], _: Simple) -> None:
        """Change the working directory."""
        names = [word.marked for word in words if not word.text.startswith("-")]
        self.scope.folder = joined_path(self.scope.folder, names[0]) if names else ""

    def test(self, words: list[Word], _: Simple) -> bool | None:
        """``[ ... ]``."""
        return judge_words(words[:-1] if words and words[-1].text == "]" else words)

    def getopts(self, words: list[Word], _: Simple) -> None:
        """What an option is, only a running shell knows."""
        for name in (*(word.text for word in words[1:2]), "OPTARG"):
            keep(self.scope.values, name, unknown(f"${name}"))

    def popd(self, *_: object) -> None:
        """Leave a folder for one that is not kept here."""
        self.scope.folder = ""

    def end(self, words: list[Word], _: Simple, how: str) -> bool | None:
        """``exit``, ``return``, ``break``, ``continue``."""
        self.ended = how
        return None if words and words[0].unknown else not words or words[0].text == "0"

    def let(self, words: list[Word], _: Simple) -> None:
        """Arithmetic, an expression a word."""
        for word in words:
            self.arithmetic(word.text)


BUILTINS: dict[str, Callable[[Builtins, list[Word], Simple], bool | None]] = {
    ":": lambda *_: True, "true": lambda *_: True, "false": lambda *_: False,
    "[": Builtins.test, "test": Builtins.test, "cd": Builtins.cd, "pushd": Builtins.cd, "popd": Builtins.popd,
    "set": Builtins.set_arguments, "shift": Builtins.shift, "unset": Builtins.unset, "let": Builtins.let,
    "read": Builtins.read_input, "mapfile": Builtins.read_input, "readarray": Builtins.read_input,
    "getopts": Builtins.getopts,
    **{how: partial(Builtins.end, how=how) for how in ("exit", "return", "break", "continue")},
}  # fmt: skip
