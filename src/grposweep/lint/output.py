"""Verdicts for people: grouped by file, each problem at its line, with the line itself and what would mend it.

A verdict as JSON: one object a recipe, the same for files and for lines.

The rules in words: a list by family, or one rule's own docstring.
"""

import json
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from grposweep.check import RECIPE_RULES, REGISTRY, RecipeRule, Rule
from grposweep.errors import UserError
from grposweep.lint.apply_fixes import render_change
from grposweep.lint.linter import Finding, Repair, Verdict, choose
from grposweep.rules.registry import FAMILIES

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


def show_verdict(
    screen: Screen, verdict: Verdict, lines: Sequence[str], changes: Iterable[str] = (), note: str = ""
) -> None:
    """One file: what was written into it, then what is left; nothing where all is well."""
    name = printable(verdict.recipe.file or "-")
    for change in changes:
        screen.say(f"{screen.paint(name, BOLD)}: {screen.paint('fixed', GREEN)} {printable(change)}")
    for finding in verdict.findings:
        _show_finding(screen, name, finding, lines)
    if note:
        screen.say(f"{screen.paint(name, BOLD)}: {note}")
    if verdict.findings:
        screen.say()


def _show_finding(screen: Screen, name: str, finding: Finding, lines: Sequence[str]) -> None:
    """``recipe.yaml:12: GB101 error``, the line, the reason, the ways out; those that --fix writes are marked safe."""
    place = f"{name}:{finding.line}:" if finding.line else f"{name}:"
    colour = RED if finding.severity == "error" else YELLOW
    screen.say(f"{screen.paint(place, BOLD)} {screen.paint(f'{finding.code} {finding.severity}', colour)}")
    if finding.line and finding.line <= len(lines):
        number = f"{finding.line:>4} | "
        source = printable(lines[finding.line - 1].expandtabs(4))
        room = screen.width - len(INDENT) - len(number)
        screen.say(
            f"{INDENT}{screen.paint(number + (source if len(source) <= room else source[: room - 3] + '...'), DIM)}"
        )
    screen.wrap(printable(finding.message))
    for n, repair in enumerate(finding.repairs):
        screen.wrap(printable(_render(repair)), f"{INDENT}{'fix' if n == 0 else ' or'}{' (safe)' * repair.safe}: ")


def _render(repair: Repair) -> str:
    if set(repair.change) == {"processes"}:
        return f"launch {repair.change['processes']} processes"
    return render_change(repair.change)


def show_total(
    screen: Screen, verdicts: Sequence[Verdict], changed: int, unusable: int, ignored: Sequence[str]
) -> None:
    """The closing line: how many files, errors and warnings, what --fix would do, which rules were off."""
    findings = [finding for verdict in verdicts for finding in verdict.findings]
    errors = sum(finding.severity == "error" for finding in findings)
    warnings = len(findings) - errors
    total = len(verdicts) + unusable
    parts = [f"{_count(total, 'file')}: {_count(errors, 'error')}, {_count(warnings, 'warning')}"]
    if unusable:
        parts.append(f"{unusable} could not be read")
    if changed:
        parts.append(f"{_count(changed, 'fix', 'fixes')} written")
    safe, unsafe = _fixable(
        finding for verdict in verdicts if verdict.recipe.launch is None for finding in verdict.findings
    )
    if safe:
        parts.append(f"{safe} fixable with --fix" + (f" ({unsafe} more with --unsafe-fixes)" if unsafe else ""))
    elif unsafe:
        parts.append(f"{unsafe} fixable with --fix --unsafe-fixes")
    colour = RED if errors or unusable else YELLOW if warnings else GREEN
    screen.say(screen.paint("; ".join(parts), colour))
    if ignored:
        screen.wrap(f"switched off: {', '.join(ignored)}", "")


def _fixable(findings: Iterable[Finding]) -> tuple[int, int]:
    """How many problems have a fix that may be written into a file: safe ones, and those with other fixes only."""
    written = [[repair for repair in finding.repairs if "processes" not in repair.change] for finding in findings]
    safe = sum(any(repair.safe for repair in repairs) for repairs in written)
    return safe, sum(bool(repairs) for repairs in written) - safe


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


def render_verdict(verdict: Verdict, name: Any = None) -> str:
    """One line: the recipe's id, whether it is ok, its plan, its problems with fixes."""
    recipe = verdict.recipe
    return _encode(
        {
            "id": name,
            "file": recipe.file,
            "framework": recipe.framework,
            "processes": verdict.setting.processes,
            "ok": verdict.ok,
            "plan": verdict.plan,
            "problems": [
                {
                    "code": finding.code,
                    "severity": finding.severity,
                    "message": finding.message,
                    "keys": finding.keys,
                    "line": finding.line,
                    "fixes": [
                        {key: _plain(value) for key, value in repair.change.items()} for repair in finding.repairs
                    ],
                }
                for finding in verdict.findings
            ],
        }
    )


def _plain(value: Any) -> Any:
    """A value as JSON has it; as text where JSON has none (NaN, a mapping that holds itself)."""
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


def explain_rules(code: str | None, out: TextIO) -> None:
    """One rule in full; a family or all of them a line each."""
    rules: dict[str, Rule | RecipeRule] = {**REGISTRY, **RECIPE_RULES}
    wanted = (code or "").strip().upper()
    if wanted and not any(name.startswith(wanted) for name in rules):
        choose((wanted,))  # says what there is
        raise UserError(f"{code}: no such rule.")
    if wanted in rules:
        out.write(_full(rules[wanted]))
        return
    for family, title in FAMILIES.items():
        members = [rule for name, rule in sorted(rules.items()) if name.startswith(family) and name.startswith(wanted)]
        if members:
            out.write(f"{family}  {title}\n")
        for rule in members:
            head = f"  {rule.code}  {rule.severity:<7}  "
            out.write(
                textwrap.fill(_first_line(rule), 80, initial_indent=head, subsequent_indent=" " * len(head)) + "\n"
            )


def _full(rule: Rule | RecipeRule) -> str:
    text = rule.explanation
    return f"{rule.code} ({rule.severity}): {rule.title}\n\n{text}\n"


def _first_line(rule: Rule | RecipeRule) -> str:
    return rule.explanation.split("\n", 1)[0].rstrip(".")
