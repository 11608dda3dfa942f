"""Print lint results: as text with the line of each problem, or as one JSON object a recipe."""

import json
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from grposweep.lint.apply_fixes import render_change
from grposweep.lint.linter import Diagnostic, Fix, LintResult

RED, YELLOW, GREEN, BOLD, DIM, PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[32m", "\x1b[1m", "\x1b[2m", "\x1b[0m"
INDENT = "    "


class Screen:
    """Where text goes: its width, and colours only on a terminal that wants them."""

    def __init__(self, out: TextIO, no_color: bool = False):
        self.out = out
        self.colours = out.isatty() and not no_color
        self.width = min(max(shutil.get_terminal_size((80, 24)).columns, 40), 120) if out.isatty() else 80

    def paint(self, text: str, *styles: str) -> str:
        """Styled on a terminal, plain elsewhere."""
        return f"{''.join(styles)}{text}{PLAIN}" if self.colours else text

    def say(self, text: str = "") -> None:
        """One line."""
        self.out.write(writable(text, self.out) + "\n")

    def wrap(self, text: str, head: str = INDENT) -> None:
        """A paragraph, its further lines under the first."""
        self.say(textwrap.fill(text, self.width, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False,
                               break_long_words=False))  # fmt: skip


def show_result(
    screen: Screen, result: LintResult, lines: Sequence[str], changes: Iterable[str] = (), note: str = ""
) -> None:
    """One file: what was written into it, then what is left; nothing where all is well."""
    name = printable(result.recipe.file or "-")
    for change in changes:
        screen.say(f"{screen.paint(name, BOLD)}: {screen.paint('fixed', GREEN)} {printable(change)}")
    for diagnostic in result.diagnostics:
        _show_diagnostic(screen, name, diagnostic, lines)
    if note:
        screen.say(f"{screen.paint(name, BOLD)}: {note}")
    if result.diagnostics:
        screen.say()


def _show_diagnostic(screen: Screen, name: str, diagnostic: Diagnostic, lines: Sequence[str]) -> None:
    """``recipe.yaml:12: GB101 error``, the line, the reason, the ways out; those that --fix writes are marked safe."""
    place = f"{name}:{diagnostic.line}:" if diagnostic.line else f"{name}:"
    colour = RED if diagnostic.severity == "error" else YELLOW
    screen.say(f"{screen.paint(place, BOLD)} {screen.paint(f'{diagnostic.code} {diagnostic.severity}', colour)}")
    if diagnostic.line and diagnostic.line <= len(lines):
        number = f"{diagnostic.line:>4} | "
        source = printable(lines[diagnostic.line - 1].expandtabs(4))
        room = screen.width - len(INDENT) - len(number)
        screen.say(
            f"{INDENT}{screen.paint(number + (source if len(source) <= room else source[: room - 3] + '...'), DIM)}"
        )
    screen.wrap(printable(diagnostic.message))
    for n, fix in enumerate(diagnostic.fixes):
        screen.wrap(printable(_render(fix)), f"{INDENT}{'fix' if n == 0 else ' or'}{' (safe)' * fix.safe}: ")


def _render(fix: Fix) -> str:
    if set(fix.change) == {"processes"}:
        return f"launch {fix.change['processes']} processes"
    return render_change(fix.change)


def show_total(
    screen: Screen, results: Sequence[LintResult], changed: int, unusable: int, ignored: Sequence[str]
) -> None:
    """The closing line: how many files, errors and warnings, what --fix would do, which rules were off."""
    diagnostics = [diagnostic for result in results for diagnostic in result.diagnostics]
    errors = sum(diagnostic.severity == "error" for diagnostic in diagnostics)
    warnings = len(diagnostics) - errors
    total = len(results) + unusable
    parts = [f"{_count(total, 'file')}: {_count(errors, 'error')}, {_count(warnings, 'warning')}"]
    if unusable:
        parts.append(f"{unusable} could not be read")
    if changed:
        parts.append(f"{_count(changed, 'fix', 'fixes')} written")
    safe, unsafe = _fixable(
        diagnostic for result in results if result.recipe.launch is None for diagnostic in result.diagnostics
    )
    if safe:
        parts.append(f"{safe} fixable with --fix" + (f" ({unsafe} more with --unsafe-fixes)" if unsafe else ""))
    elif unsafe:
        parts.append(f"{unsafe} fixable with --fix --unsafe-fixes")
    colour = RED if errors or unusable else YELLOW if warnings else GREEN
    screen.say(screen.paint("; ".join(parts), colour))
    if ignored:
        screen.wrap(f"switched off: {', '.join(ignored)}", "")


def _fixable(diagnostics: Iterable[Diagnostic]) -> tuple[int, int]:
    """How many problems have a fix that may be written into a file: safe ones, and those with other fixes only."""
    written = [[fix for fix in diagnostic.fixes if "processes" not in fix.change] for diagnostic in diagnostics]
    safe = sum(any(fix.safe for fix in fixes) for fixes in written)
    return safe, sum(bool(fixes) for fixes in written) - safe


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def writable(text: str, out: TextIO) -> str:
    """What a stream cannot encode (undecodable names, umlauts in ASCII) as escapes."""
    encoding = out.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def printable(text: str) -> str:
    """One line without anything that moves a cursor: a file's name may hold newlines and escapes."""
    return "".join(char if char.isprintable() or "\udc80" <= char <= "\udcff" else repr(char)[1:-1] for char in text)


_encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, check_circular=False, default=str).encode


def render_result(result: LintResult, name: Any = None) -> str:
    """One line: the recipe's id, whether it is ok, its plan, its problems with fixes."""
    recipe = result.recipe
    return _encode(
        {
            "id": name,
            "file": recipe.file,
            "framework": recipe.framework,
            "processes": result.setting.processes,
            "ok": result.ok,
            "plan": result.plan,
            "problems": [
                {name: getattr(found, name) for name in ("code", "severity", "message", "keys", "line")}
                | {"fixes": [{key: as_json(value) for key, value in fix.change.items()} for fix in found.fixes]}
                for found in result.diagnostics
            ],
        }
    )


def as_json(value: Any) -> Any:
    """Return a value that JSON has, or its text if JSON has none (NaN, a mapping that holds itself)."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    try:
        json.dumps(value, allow_nan=False, default=str)
    except (ValueError, TypeError, RecursionError):
        return str(value)[:200]
    return value


def render_error(text: str, name: Any = None, file: str | None = None) -> str:
    """One line for input that could not be judged."""
    return _encode({"id": name, "file": file, "ok": False, "error": text})
