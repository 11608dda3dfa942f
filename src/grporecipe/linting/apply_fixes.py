"""Write fixes into a recipe file, if the recipe improves and no other key changes."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from grporecipe.errors import UserError
from grporecipe.files import Config, without, write_text
from grporecipe.linting.linter import (
    Diagnostic,
    Fix,
    JudgedText,
    LintResult,
    RuleSelection,
    judge_text,
)
from grporecipe.model.values import without_none
from grporecipe.project.repository import project_folder
from grporecipe.project.versions import Judged
from grporecipe.reading.load import PYTHON, SHELLS, Options, load_text
from grporecipe.reading.yaml_text import parse_nested, parse_yaml
from grporecipe.redaction import masked

# each round fixes one problem
MOST_ROUNDS = 50
PLAIN = str.maketrans("", "", "_-/.")
# spaces of indentation of a new section
STEP = 2
BOM = "\ufeff"

# a key with its value
Entry = tuple[yaml.Node, yaml.Node]


@dataclass(frozen=True)
class FixedFile:
    """The recipes of a file after fixing, a description of each change, and the text before."""

    judged: JudgedText
    before: str
    changes: tuple[str, ...] = ()
    note: str = ""

    @property
    def result(self) -> LintResult:
        """Return the first recipe."""
        return self.judged.results[0]


def fix_file(
    path: Path, options: Options, selection: RuleSelection, unsafe: bool, write: bool = True
) -> FixedFile:
    """Apply all allowed fixes, one at a time, each judged before the next. Write the file once."""
    original = load_text(path)
    judged = first = judge_text(path, original, options, selection)
    what = ""
    if path.suffix in PYTHON and write:
        what = "Python is not rewritten: see --diff, and change these by hand"
    elif path.suffix in SHELLS or (original.startswith("#!") and path.suffix not in PYTHON):
        what = "shell scripts are not rewritten: change these by hand"
    if what:
        diagnostics = chain.from_iterable(result.diagnostics for result in judged.results)
        if not any(problem.fixes for problem in diagnostics):
            what = ""
        return FixedFile(judged, original, note=what)
    # an edit must not change the version that judges the next fix
    if len(judged.results) == 1:
        recipe = judged.results[0].recipe
        version = Judged(
            recipe.version,
            recipe.version_source,
            recipe.vendored,
            recipe.assumed,
            recipe.unchecked,
        )
        options = replace(options, judged=version)
    changes: list[str] = []
    for _ in range(MOST_ROUNDS):
        step = _step(path, judged, options, selection, unsafe)
        if step is None:
            break
        judged, change = step
        changes.append(change)
    if write and judged.text != original:
        target = path.resolve()
        folder = project_folder(path).resolve()
        if not target.is_relative_to(folder):
            # A repository of others may hold links to the user's own files.
            note = (
                f"a link to {target}, outside of {folder}, was left alone. Run lint on "
                f"{target} to fix that file"
            )
            return FixedFile(first, original, note=note)
        _write(path, original, judged.text)
    return FixedFile(judged, original, tuple(changes))


def _step(
    path: Path, judged: JudgedText, options: Options, selection: RuleSelection, unsafe: bool
) -> tuple[JudgedText, str] | None:
    """Apply the first fix that removes its problem and adds none. Return the judged text and the
    change, or None.
    """
    for number, diagnostic, fix in _all_fixes(judged, unsafe):
        edited = _edit_recipe(path, judged, number, fix.change)
        if edited is None or edited == judged.text:
            continue
        after = judge_text(path, edited, options, selection)
        if _is_better(judged, after, diagnostic.code):
            return after, f"{diagnostic.code}: {render_change(fix.change, path.suffix in PYTHON)}"
    return None


def _all_fixes(judged: JudgedText, unsafe: bool) -> Iterator[tuple[int, Diagnostic, Fix]]:
    """Yield each fix that may be written, with its problem and its recipe's number in the file."""
    for number, result in enumerate(judged.results):
        for diagnostic in result.diagnostics:
            for fix in diagnostic.fixes:
                if "processes" not in fix.change and (fix.safe or unsafe):
                    yield number, diagnostic, fix


def _edit_recipe(path: Path, judged: JudgedText, number: int, change: Config) -> str | None:
    """Return the text after changing one of its recipes; None if more than these keys would
    change.
    """
    if path.suffix in PYTHON:
        # few files are Python
        from grporecipe.reading.python.edit import edit_call

        return edit_call(path, judged.text, number, change)
    is_dotted = judged.results[number].setting.framework.syntax == "dotted"
    return edit(judged.text, change, nested=is_dotted)


def _is_better(before: JudgedText, after: JudgedText, code: str) -> bool:
    """Return whether one problem of this code is gone and no code has more errors."""
    old, new = Counter[str](), Counter[str]()
    for result in before.results:
        old.update(problem.code for problem in result.diagnostics)
    for result in after.results:
        new.update(problem.code for problem in result.diagnostics)
    for result in after.results:
        for problem in result.diagnostics:
            if problem.is_error and new[problem.code] > old[problem.code]:
                return False
    return new[code] < old[code]


def render_change(change: Config, in_python: bool = False) -> str:
    """Return a change as the user types it: ``old removed, key: value``, in Python
    ``key=value``.
    """
    stated = []
    for key, value in change.items():
        if value is None:
            stated.append(f"{key} removed")
        elif in_python:
            stated.append(f"{key}={masked(key, value)!r}")
        else:
            stated.append(f"{key}: {render_value(masked(key, value))}")
    return ", ".join(stated)


def _write(path: Path, original: str, text: str) -> None:
    """Write a file atomically, through links, and only if it still has the judged text."""
    target = path.resolve()
    mode = target.stat().st_mode & 0o7777
    if load_text(path) != original:
        raise UserError("it changed while it was being judged, so it was left alone. Run again.")
    try:
        write_text(target, text)
        target.chmod(mode)
    except OSError as error:
        raise UserError(f"it cannot be written: {error.strerror or error}.") from None


def edit(text: str, change: Config, nested: bool = False) -> str | None:
    """Return the text after changing keys (None removes one); None if more than these keys would
    change.

    Comments, order, quotes and line ends stay. The result is read back and compared. With
    ``nested``, keys are dotted paths.
    """
    read = parse_nested if nested else parse_yaml
    bom = BOM * text.startswith(BOM)
    try:
        before = read(text).config
        wanted = without(before, change)
        wanted |= without_none(change)
        edited: str | None = text.removeprefix(BOM)
        for old, new, value in _moves(before, change, nested):
            if edited is not None and old != new:
                edited = _rename(edited, old, new)
            if edited is not None:
                old_value = read(edited).config.get(new)
                is_same = (
                    value is not None and old_value == value and type(old_value) is type(value)
                )
                path = [new]
                if nested:
                    path = new.split(".")
                edited = _set(edited, path, value, nested, is_same)
        if edited is None or read(edited).config != wanted:
            return None
        return bom + edited
    except (UserError, RecursionError):
        # comparing a mapping that contains itself does not end
        return None


def _moves(before: Config, change: Config, nested: bool) -> list[tuple[str, str, Any]]:
    """Return old key, new key and value. One removed and one added key are a rename in place, which
    keeps the comment.
    """
    gone = [key for key, value in change.items() if value is None and key in before]
    new = [key for key in without_none(change) if key not in before]
    moves = []
    if len(gone) == len(new) == 1 and not nested:
        moves = [(gone[0], new[0], change[new[0]])]
        change = without(change, (gone[0], new[0]))
    for key, value in change.items():
        if value is not None or key in before:
            moves.append((key, key, value))
    return moves


def _root(text: str) -> yaml.MappingNode | None:
    # the slow loader, because its marks count characters
    node = yaml.compose(text, yaml.SafeLoader)
    if isinstance(node, yaml.MappingNode):
        return node
    return None


def _entries(section: yaml.MappingNode, name: str) -> list[Entry]:
    return [(key, value) for key, value in section.value if str(key.value) == name]


def _rename(text: str, old: str, new: str) -> str | None:
    root = _root(text)
    if root is None:
        return None
    entries = _entries(root, old)
    if len(entries) != 1:
        return None
    key, _ = entries[0]
    return text[: key.start_mark.index] + new + text[key.end_mark.index :]


def _set(text: str, path: list[str], value: Any, nested: bool, is_same: bool) -> str | None:
    """Set one key in place, or add it to the deepest existing section. Duplicates of it in a flat
    file are removed.
    """
    section = _root(text)
    rest = list(path)
    if section is None or (section.flow_style and not nested):
        return None
    while len(rest) > 1 and (inner := _entries(section, rest[0])):
        if not isinstance(inner[-1][1], yaml.MappingNode):
            return None
        section = inner[-1][1]
        rest = rest[1:]
    entries: list[Entry] = []
    if len(rest) == 1:
        entries = _entries(section, rest[0])
    superfluous: list[Entry] = []
    if value is None and nested:
        superfluous = entries[-1:]
    elif value is None:
        superfluous = entries
    elif not nested:
        superfluous = entries[:-1]
    # from the end, so that earlier marks stay valid
    for entry in reversed(superfluous):
        shorter = _without(text, section, entry)
        if shorter is None:
            return None
        text = shorter
    if value is None:
        return text
    if not entries:
        return _append(text, section, rest, value, nested)
    if superfluous:
        return _set(text, path, value, nested, is_same)
    if is_same:
        return text
    old = entries[-1][1]
    start = text[: old.start_mark.index]
    # an empty value
    if old.start_mark.index == old.end_mark.index:
        start += " "
    return start + render_value(value) + text[_end(old) :]


def _end(node: yaml.Node) -> int:
    """Return the position after a value's last character; a block's mark is where the next key
    starts.
    """
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        if isinstance(last, tuple):
            last = last[1]
        return _end(last)
    return int(node.end_mark.index)


def _line_end(text: str, entry: Entry) -> int:
    """Return the position after an entry's last line."""
    key, value = entry
    end = max(_end(value), key.end_mark.index)
    while end > key.end_mark.index and text[end - 1] in " \t\r\n":
        # a block scalar ends where the next key starts
        end -= 1
    newline = text.find("\n", end)
    if newline < 0:
        return len(text)
    return newline + 1


def _without(text: str, section: yaml.MappingNode, entry: Entry) -> str | None:
    """Return the text without the lines of one key; None if these lines hold anything else."""
    at = entry[0].start_mark.index
    start = text.rfind("\n", 0, at) + 1
    end = _line_end(text, entry)
    starts = [key.start_mark.index for key, _ in section.value if key is not entry[0]]
    is_shared = any(start <= other < end for other in starts)
    if is_shared or section.flow_style or text[start:at].strip(" \t"):
        return None
    return text[:start] + text[end:]


def _append(
    text: str, section: yaml.MappingNode, path: list[str], value: Any, nested: bool
) -> str | None:
    """Add lines after a section's last entry at its indentation; in a flat file at the end."""
    if nested and (section.flow_style or not section.value):
        return None
    end, indent = len(text), 0
    if nested:
        end = _line_end(text, section.value[-1])
        indent = section.value[0][0].start_mark.column
    newline = "\n"
    if "\r\n" in text:
        newline = "\r\n"
    before = text[:end]
    if before and not before.endswith("\n"):
        before += newline
    lines = [" " * (indent + depth * STEP) + f"{name}:" for depth, name in enumerate(path)]
    return before + newline.join(lines) + f" {render_value(value)}{newline}" + text[end:]


def render_value(value: Any) -> str:
    """Return a value as YAML 1.1 reads it back: floats with a dot, quotes around words that would
    otherwise change meaning.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return re.sub(r"^([^.e]+)e", r"\1.0e", repr(value))
    if isinstance(value, str):
        is_word = value.translate(PLAIN).isalnum() and value.isascii()
        if is_word and yaml.safe_load(value) == value:
            return value
        return _dump(value, default_style='"')
    if isinstance(value, (list, dict)):
        return _dump(value, default_flow_style=True)
    return str(value)


def _dump(value: Any, **style: Any) -> str:
    return str(
        yaml.safe_dump(value, width=10**6, allow_unicode=True, sort_keys=False, **style)
    ).strip()
