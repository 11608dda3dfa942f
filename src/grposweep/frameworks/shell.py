"""As much of bash as a launch script needs: its commands in order, with the variables that it assigns itself.

Nothing is run. Which branch is taken and what a loop goes through only a running shell knows, so what they assign is
unknown.
"""

from dataclasses import dataclass, field

from grposweep.errors import BadInput
from grposweep.frameworks.shell_words import ASSIGNMENT, Unknown, Values, Word, WordReader, keep

__all__ = ["Command", "Word", "parse_script"]

LONGEST = 256 * 2**10  # characters; the longest launch scripts have ten thousand
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

    Raises BadInput for what is too long or nested too deep for a launch script.
    """
    if len(text) > LONGEST:
        raise BadInput(f"it has more than {LONGEST // 2**10} KiB, so it is no launch script.")
    try:
        return _Commands(text.replace("\r\n", "\n"), values if values is not None else {}).commands()
    except RecursionError:
        raise BadInput("its brackets are nested too deep, so it is no launch script.") from None


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
