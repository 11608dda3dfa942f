"""Print lint results: as text with the line of each problem, or as one JSON object per recipe."""

import json
import os
import re
import shlex
import shutil
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from grporecipe.files import Json
from grporecipe.linting.apply_fixes import FixedFile, render_change, render_value
from grporecipe.linting.linter import Diagnostic, Fix, LintResult
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.recipe import BY_CALLER, Recipe
from grporecipe.model.releases import text
from grporecipe.model.values import listed
from grporecipe.project.versions import BY_DEFAULT, describe_version
from grporecipe.reading.load import shown_text
from grporecipe.redaction import masked, redact
from grporecipe.rules.registry import Severity
from grporecipe.terminal import count, first_of, one_line

RED, YELLOW, GREEN, BOLD, DIM, PLAIN = (
    "\x1b[31m",
    "\x1b[33m",
    "\x1b[32m",
    "\x1b[1m",
    "\x1b[2m",
    "\x1b[0m",
)
INDENT = "    "
MOST_NAMED = 5
OTHER = r"(?:this is an? |it launches )(\S+)(?: configuration)?, which grposweep does not read"


class Screen:
    """Where text goes: its width, and whether in colour (on a terminal, or if FORCE_COLOR is
    set).
    """

    def __init__(self, out: TextIO, no_color: bool = False):
        self.out = out
        self.colours = not no_color and (out.isatty() or bool(os.environ.get("FORCE_COLOR")))
        self.width = 80
        if out.isatty():
            self.width = min(max(shutil.get_terminal_size((80, 24)).columns, 40), 120)

    def paint(self, text: str, *styles: str) -> str:
        """Return the text styled on a terminal, plain elsewhere."""
        if not self.colours:
            return text
        return f"{''.join(styles)}{text}{PLAIN}"

    def say(self, text: str = "") -> None:
        """Print one line."""
        self.out.write(writable(text, self.out) + "\n")

    def wrap(self, text: str, head: str = INDENT, *styles: str, indent: str | None = None) -> None:
        """Print a paragraph behind a head that is never broken.

        Further lines begin with ``indent``; None puts them under the first word.
        """
        if indent is None:
            indent = " " * len(head)
        lines = textwrap.fill(
            text,
            self.width,
            initial_indent=head,
            subsequent_indent=indent,
            break_on_hyphens=False,
            break_long_words=False,
        )
        if styles:
            lines = self.paint(lines, *styles)
        self.say(lines)


def show_file(screen: Screen, fixed: FixedFile, lines: Sequence[str]) -> None:
    """Print one file: what was written into it, then what is left; nothing if there is no
    problem.
    """
    name = one_line(fixed.result.recipe.file or "-")
    for change in fixed.changes:
        screen.say(f"{screen.paint(name, BOLD)}: {screen.paint('fixed', GREEN)} {one_line(change)}")
    for result in fixed.judged.results:
        for diagnostic in result.diagnostics:
            place = place_of(result.recipe, diagnostic.line or start_of(result.recipe, fixed))
            show_diagnostic(screen, f"{name}{place}:", diagnostic, lines, result.recipe)
    if fixed.note:
        screen.say(f"{screen.paint(name, BOLD)}: {fixed.note}")
    troubled = [result.recipe for result in fixed.judged.results if result.diagnostics]
    for version in dict.fromkeys(map(describe_version, troubled)):
        screen.wrap(f"judged by {one_line(version)}", INDENT, DIM)
    if troubled:
        screen.say()


def is_written(recipe: Recipe) -> bool:
    """Return whether ``--fix`` writes into the recipe's file. It edits neither scripts nor
    Python.
    """
    return not recipe.launch and not recipe.in_python


def start_of(recipe: Recipe, fixed: FixedFile) -> int | None:
    """Return the first line of a recipe if its file has several recipes."""
    if len(fixed.judged.results) == 1:
        return None
    return min(recipe.lines.values(), default=None)


def place_of(recipe: Recipe, line: int | None) -> str:
    """Return a line as a suffix of a file name: ``:12``, in a notebook ``:cell 3:2``, empty without
    a line.
    """
    if not line:
        return ""
    cell, inside = recipe.place(line)
    if cell is None:
        return f":{inside}"
    return f":cell {cell}:{inside}"


def show_diagnostic(
    screen: Screen, place: str, diagnostic: Diagnostic, lines: Sequence[str], recipe: Recipe
) -> None:
    """Print ``recipe.yaml:12: GB101 error``, the line, the reason and the fixes; those that --fix
    writes are marked safe.
    """
    if diagnostic.severity == "note":
        head = f"{place} {diagnostic.code} note: "
        screen.wrap(one_line(diagnostic.message), head, DIM, indent="")
    else:
        _show_reason(screen, place, diagnostic, lines, recipe)
    word = "fix"
    for fix in diagnostic.fixes:
        mark = " (safe)" * (fix.safe and is_written(recipe))
        screen.wrap(one_line(render_fix(fix, recipe)), f"{INDENT}{word}{mark}: ")
        word = " or"


def _show_reason(
    screen: Screen, place: str, diagnostic: Diagnostic, lines: Sequence[str], recipe: Recipe
) -> None:
    colour = YELLOW
    if diagnostic.is_error:
        colour = RED
    verdict = screen.paint(f"{diagnostic.code} {diagnostic.severity}", colour)
    screen.say(f"{screen.paint(place, BOLD)} {verdict}")
    if diagnostic.line and diagnostic.line <= len(lines):
        number = f"{place.rstrip(':').rpartition(':')[2]:>4} | "
        source = recipe.without_secrets(redact(one_line(lines[diagnostic.line - 1].expandtabs(4))))
        room = screen.width - len(INDENT) - len(number)
        if len(source) > room:
            source = source[: room - 3] + "..."
        screen.say(f"{INDENT}{screen.paint(number + source, DIM)}")
    screen.wrap(one_line(diagnostic.message))


def render_fix(fix: Fix, recipe: Recipe) -> str:
    """Return a fix as the user types it: in YAML, in Python, or as words of the command in a
    script.
    """
    if set(fix.change) == {"processes"}:
        return f"launch {fix.change['processes']} processes"
    if not recipe.launch:
        return render_change(fix.change, recipe.in_python)
    return ", ".join(_as_word(key, value, recipe) for key, value in fix.change.items())


def _as_word(key: str, value: Any, recipe: Recipe) -> str:
    """Return a change of a script as a flag or an override; of a key in the file that the script
    names as YAML.
    """
    if value is None:
        return f"{key} removed"
    value = masked(key, value)
    if recipe.launch.config and key in recipe.config and key not in recipe.lines:
        return render_change({key: value})
    texts = []
    for item in listed(value):
        if not isinstance(item, str):
            item = render_value(item)
        texts.append(item)
    if not FRAMEWORKS[recipe.framework].is_dotted:
        return f"--{key} {' '.join(map(shlex.quote, texts))}"
    text = ",".join(texts)
    if isinstance(value, list):
        text = f"[{text}]"
    return f"{key}={shlex.quote(text)}"


@dataclass
class Total:
    """The sums over all files, for the closing line and the exit code.

    ``off`` are rules that some file ignores. ``skipped`` are files of folders that were not judged,
    and why. ``unjudged`` are those of them that look like recipes.
    """

    results: list[LintResult] = field(default_factory=list)
    files: int = 0
    changed: int = 0
    unusable: int = 0
    silenced: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    unjudged: list[str] = field(default_factory=list)
    in_folders: bool = False
    off: set[str] = field(default_factory=set)


def show_total(screen: Screen, total: Total) -> None:
    """Print the closing line, the releases that judged, and the rules that were off."""
    counts = Counter[Severity]()
    for result in total.results:
        counts.update(problem.severity for problem in result.diagnostics)
    colour = GREEN
    if counts["error"] or total.unusable:
        colour = RED
    elif counts["warning"]:
        colour = YELLOW
    if not (total.files or total.unusable or total.in_folders):
        screen.say("no recipe to judge in these folders")
    screen.say(screen.paint("; ".join(_closing_parts(total, counts)), colour))
    for version, names in _files_by_version(total).items():
        screen.wrap(one_line(f"{first_of(names, MOST_NAMED)}: judged by {version}"), "", DIM)
    if total.off:
        screen.wrap(f"switched off: {', '.join(sorted(total.off))}", "")
    if total.in_folders:
        others = len(total.skipped) - len(total.unjudged)
        line = f"{count(len(total.results), 'recipe')} judged, {count(others, 'file')} skipped"
        if others:
            line += f" (no GRPO recipes{_other_programs(total)})"
        screen.say(line)
    if total.unjudged:
        named = first_of(list(map(one_line, total.unjudged)), MOST_NAMED)
        screen.wrap(f"not judged (name one to see why): {named}", "")


def _closing_parts(total: Total, counts: Counter[Severity]) -> list[str]:
    """Return the parts of the closing line: files, errors, warnings, and what --fix would do."""
    files = count(total.files + total.unusable, "file")
    if len(total.results) != total.files:
        files = f"{count(len(total.results), 'recipe')} in {files}"
    found = f"{count(counts['error'], 'error')}, {count(counts['warning'], 'warning')}"
    if counts["note"]:
        found += f", {count(counts['note'], 'note')}"
    parts = [f"{files}: {found}"]
    if total.unusable:
        parts.append(f"{total.unusable} could not be judged")
    if total.changed:
        parts.append(f"{count(total.changed, 'fix')} written")
    safe, unsafe = _fixable(total)
    if safe and unsafe:
        parts.append(f"{safe} fixable with --fix ({unsafe} more with --unsafe-fixes)")
    elif safe:
        parts.append(f"{safe} fixable with --fix")
    elif unsafe:
        parts.append(f"{unsafe} fixable by --fix --unsafe-fixes (changes training)")
    if total.silenced:
        parts.append(f"{total.silenced} ignored by comments")
    return parts


def _other_programs(total: Total) -> str:
    """Return how many skipped files are recipes of programs that lint does not read, by program."""
    names = Counter[str]()
    for reason in total.skipped.values():
        names.update(re.findall(OTHER, reason)[:1])
    return "".join(f"; {name}, which is not read: {number}" for name, number in names.most_common())


class Report:
    """Writes the answers in one format: a file at a time, then the end. Each method of this base
    class writes nothing.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._out = screen.out

    def add(self, path: Path, fixed: FixedFile) -> None:
        """Add a judged file: each of its problems."""
        for result in fixed.judged.results:
            for problem in result.diagnostics:
                text = problem.message
                fixes = ", or ".join(render_fix(fix, result.recipe) for fix in problem.fixes)
                if fixes:
                    text += f" Fix: {fixes}."
                self.add_problem(path, place_of(result.recipe, problem.line), problem, text)

    def add_problem(self, path: Path, place: str, problem: Diagnostic, text: str) -> None:
        """Add a problem: its place in the file, and its message with fixes."""

    def refuse(self, path: Path, message: str) -> None:
        """Add a file that cannot be judged; the message also goes to stderr."""

    def close(self, total: Total) -> None:
        """Write the end."""


class TextReport(Report):
    """Prints each problem with its line and its fixes, and a closing line."""

    def add(self, path: Path, fixed: FixedFile) -> None:
        text = shown_text(path, fixed.judged.text).removeprefix("\ufeff")
        show_file(self._screen, fixed, text.replace("\r\n", "\n").split("\n"))

    def close(self, total: Total) -> None:
        show_total(self._screen, total)


class JsonReport(Report):
    """Prints one JSON object per line for each recipe, then one for each file of a folder that was
    skipped.
    """

    def add(self, path: Path, fixed: FixedFile) -> None:  # noqa: ARG002 - the recipe holds it
        for result in fixed.judged.results:
            self._out.write(render_result(result, start=start_of(result.recipe, fixed)) + "\n")

    def refuse(self, path: Path, message: str) -> None:
        self._out.write(render_error(message, str(path)) + "\n")

    def close(self, total: Total) -> None:
        for name, why in total.skipped.items():
            self._out.write(_encode({"file": name, "ok": None, "skipped": why}) + "\n")


def _files_by_version(total: Total) -> dict[str, list[str]]:
    """Return the files without problems by the version that each was judged by, if something of
    theirs states it.
    """
    by_version: dict[str, list[str]] = {}
    for result in total.results:
        if not result.diagnostics and result.recipe.version_source not in (BY_DEFAULT, BY_CALLER):
            files = by_version.setdefault(describe_version(result.recipe), [])
            name = result.recipe.file or "-"
            if name not in files:
                files.append(name)
    return by_version


def _fixable(total: Total) -> tuple[int, int]:
    """Count problems with a fix that may be written into a file: safe ones, and those with unsafe
    fixes only.
    """
    safe = unsafe = 0
    for result in total.results:
        if not is_written(result.recipe):
            continue
        for problem in result.diagnostics:
            are_safe = {fix.safe for fix in problem.fixes if "processes" not in fix.change}
            safe += True in are_safe
            unsafe += are_safe == {False}
    return safe, unsafe


def writable(text: str, out: TextIO) -> str:
    """Return a text with characters that the stream cannot encode as escapes."""
    encoding = out.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


_encode = json.JSONEncoder(
    ensure_ascii=True, allow_nan=False, check_circular=False, default=str
).encode


def render_result(result: LintResult, start: int | None = None) -> str:
    """Return one JSON line: whether it is ok, plan, problems with fixes; ``start`` is its line if
    the file has several.
    """
    recipe = result.recipe
    line = {
        "file": recipe.file or None,
        "framework": recipe.framework,
        "version": {"release": text(recipe.version), **recipe.version_source._asdict()},
        "processes": result.setting.processes,
        "ok": result.ok,
        "plan": result.plan,
        "problems": [_problem_as_json(problem, recipe) for problem in result.diagnostics],
    }
    if start is not None:
        line["line"] = start
    return _encode(line)


def _problem_as_json(problem: Diagnostic, recipe: Recipe) -> Json:
    """Return a problem; of a notebook also its cell, and the line within that."""
    shown: Json = {
        "code": problem.code,
        "severity": problem.severity,
        "message": problem.message,
        "keys": problem.keys,
        "line": problem.line,
        "fixes": list(map(_change_as_json, problem.fixes)),
        "safe": [fix.safe for fix in problem.fixes],
    }
    if problem.is_error:
        shown["sources"] = dict(problem.sources)
    if problem.line:
        cell, inside = recipe.place(problem.line)
        if cell is not None:
            shown |= {"cell": cell, "line": inside}
    return shown


def _change_as_json(fix: Fix) -> Json:
    return {key: as_json(masked(key, value)) for key, value in fix.change.items()}


def as_json(value: Any) -> Any:
    """Return a value in JSON types, or its text if JSON has no such value (NaN, a mapping that
    contains itself).
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    try:
        json.dumps(value, allow_nan=False, default=str)
    except (ValueError, TypeError, RecursionError):
        return str(value)[:200]
    return value


def render_error(text: str, file: str) -> str:
    """Return one JSON line for input that could not be judged."""
    return _encode({"file": file, "ok": False, "error": text})
