"""The state of a shell at one place of a script, and what becomes of it where a script branches."""

from collections.abc import Callable

from grposweep.frameworks.parsing.shell.words import Scope, Values, Word, keep, unknown

Snapshot = tuple[Values, list[Word] | None, str]


class State:
    """Variables, arguments and working directory, with how commands so far have ended."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.escaped: list[Snapshot] = []  # where a branch left a loop or function
        self.ended = ""  # exit, return, break or continue

    def snapshot(self) -> Snapshot:
        return dict(self.scope.values), self.scope.arguments, self.scope.folder

    def restore(self, state: Snapshot) -> None:
        values, self.scope.arguments, self.scope.folder = state
        self.scope.values.clear()
        self.scope.values.update(values)

    def branch(self, bodies: list[Callable[[], object]], may_skip: bool) -> None:
        """Read bodies of which one runs, or none; what differs between them is unknown afterwards."""
        before = self.snapshot()
        states = [before] if may_skip else []
        last = ""
        for body in bodies:
            self.restore(before)
            body()
            if not self.ended:
                states.append(self.snapshot())
            elif self.ended != "exit":
                self.escaped.append(self.snapshot())
            last, self.ended = self.ended, ""
        if states:
            self._merge(states)
        else:
            self.ended = last

    def _merge(self, states: list[Snapshot]) -> None:
        names = dict.fromkeys(name for state in states for name in state[0])
        for name in names:
            found = [state[0].get(name) for state in states]
            keep(
                self.scope.values, name, found[0] if _all_same(found) and found[0] is not None else _merged(name, found)
            )
        arguments, folders = [state[1] for state in states], {state[2] for state in states}
        self.scope.arguments = arguments[0] if _all_same(arguments) else None
        self.scope.folder = folders.pop() if len(folders) == 1 else ""

    def absorb(self, since: int, *ends: str) -> None:
        """Take in the branches that left a loop or function early."""
        self.ended = "" if self.ended in ends else self.ended
        states, self.escaped = self.escaped[since:], self.escaped[:since]
        if states:
            self._merge([self.snapshot(), *states])


def _all_same(values: list) -> bool:  # type: ignore[type-arg]  # of anything
    return all(value == values[0] for value in values[1:])


def _merged(name: str, found: "list[str | list[Word] | None]") -> "str | list[Word]":
    """Return a variable that differs between branches: what all begin with is known."""
    texts, lists = [x for x in found if isinstance(x, str)], [x for x in found if isinstance(x, list)]
    if len(lists) == len(found):
        first = min(lists, key=len)
        if first and all(_texts(value[: len(first)]) == _texts(first) for value in lists):
            rest = unknown(f"${{{name}[@]}}")
            return [*first, Word(f"${{{name}[@]}}", first[-1].line, True, rest)]
    elif len(texts) == len(found):
        start = min(texts, key=len)
        if start.strip() and all(value[: len(start) + 1].rstrip() == start.rstrip() for value in texts):
            return f"{start} {unknown('$' + name)}"
    return unknown(f"${name}")


def _texts(words: list[Word]) -> list[str]:
    return [word.marked for word in words]
