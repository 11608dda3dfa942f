"""Change the arguments of a ``GRPOConfig(...)`` call in place. Only literals in the call itself are changed.

Every other byte stays. The value of a variable is not changed, because it may be used elsewhere.
"""

import ast
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from grporecipe.errors import UserError
from grporecipe.reading.python.configs import PythonConfig, find_configs
from grporecipe.reading.python.source import NOTEBOOK, code_cells, replace_cell

Edit = tuple[int, int, str]  # start, end, replacement


def edit_call(path: Path, text: str, index: int, change: Mapping[str, Any]) -> str | None:
    """Return a file or notebook after a change of keys (None removes one) in the configuration with this index.

    The result is read back and compared. None if a value is no literal in the call, or if anything else would change.
    """
    try:
        before = find_configs(path, text)
        made = before[index]
        wanted = {key: value for key, value in made.config.items() if key not in change}
        wanted |= {key: value for key, value in change.items() if value is not None}
        edited: str | None = text
        for one in _steps(made, change):
            edited = None if edited is None else _edit(path, edited, index, one)
        if edited is None:
            return None
        after = find_configs(path, edited)
    except (UserError, RecursionError):
        return None
    kept = [replace(config, call=made.call, code=None, lines={}, line=0, cells=()) for config in (*before, *after)]
    kept[index] = replace(kept[index], config=wanted)
    return edited if kept[: len(before)] == kept[len(before) :] else None


def _steps(made: PythonConfig, change: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """Return the single steps: old key, new key, value. One removed and one added key are a rename in place."""
    gone = [key for key, value in change.items() if value is None and key in made.config]
    new = [key for key, value in change.items() if value is not None and key not in made.config]
    steps = [(key, key, value) for key, value in change.items() if key in made.config and value is not None]
    if len(gone) == len(new) == 1:
        return [(gone[0], new[0], change[new[0]]), *steps]
    return [*steps, *((key, key, None) for key in gone), *((key, key, change[key]) for key in new)]


def _edit(path: Path, text: str, index: int, step: tuple[str, str, Any]) -> str | None:
    made = find_configs(path, text)[index]
    call, (old, new, value) = made.call, step
    number, first, source = _holder(path, text, made)
    offset = _Offsets(source, first)
    keyword = next((word for word in call.keywords if word.arg == old), None)
    if keyword is None:
        name = f"{new}{_equals(source, offset, call)}"
        edit = None if old in made.config else _added(source, offset, call, name, value)
    elif value is None:
        edit = _removed(source, offset, call, keyword)
    else:
        edit = _replaced(source, offset, keyword, new, value, is_same=made.config[old] == value)
    if edit is None:
        return None
    start, end, instead = edit
    edited = source[:start] + instead + source[end:]
    return edited if number is None else replace_cell(text, number, edited)


def _holder(path: Path, text: str, made: PythonConfig) -> tuple[int | None, int, str]:
    """Return the cell with a call (None in a file), its first line and its text."""
    if path.suffix != NOTEBOOK:
        return None, 1, text
    number, first = max(cell for cell in made.cells if cell.line <= made.line)
    return number, first, dict(code_cells(text))[number]


class _Offsets:
    """Converts positions of nodes (lines, and UTF-8 bytes within them) to positions in the text."""

    def __init__(self, source: str, first: int) -> None:
        self._lines = source.split("\n")
        self._first = first
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

    def _at(self, line: int, column: int) -> int:
        n = line - self._first
        return self._starts[n] + len(self._lines[n].encode()[:column].decode(errors="ignore"))

    def start(self, node: ast.expr | ast.keyword) -> int:
        """Return the position of a node's first character."""
        return self._at(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.keyword) -> int:
        """Return the position after a node's last character."""
        return self._at(node.end_lineno or node.lineno, node.end_col_offset or 0)


def _replaced(source: str, offset: _Offsets, word: ast.keyword, new: str, value: Any, is_same: bool) -> Edit | None:
    start, end = offset.start(word), offset.end(word)
    value_start = offset.start(word.value)
    stated = source[value_start : offset.end(word.value)]
    if not is_same:
        try:
            ast.literal_eval(word.value)
        except ValueError:
            return None
        stated = _render(value, stated)
    assert word.arg is not None
    return start, end, new + source[start + len(word.arg) : value_start] + stated


def _render(value: Any, old: str = '"') -> str:
    """Return a value as Python code, with the quotes of the old value."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) and not old.startswith("'") else repr(value)


def _removed(source: str, offset: _Offsets, call: ast.Call, word: ast.keyword) -> Edit:
    """Remove an argument. Remove its lines and their comment too if nothing else is on them."""
    start, end = offset.start(word), offset.end(word)
    behind = end + len(source[end:]) - len(source[end:].lstrip(" \t"))
    has_comma = source[behind : behind + 1] == ","
    after = behind + 1 if has_comma else end
    line_start, line_end = source.rfind("\n", 0, start) + 1, source.find("\n", after)
    rest = source[after : line_end if line_end >= 0 else len(source)].strip()
    if not source[line_start:start].strip() and line_end >= 0 and (not rest or rest.startswith("#")):
        return line_start, line_end + 1, ""
    if has_comma:
        return start, after + len(source[after:]) - len(source[after:].lstrip(" \t")), ""
    before = source[:start].rstrip()
    is_first = not before.endswith(",") or len(call.args) + len(call.keywords) == 1
    return (start if is_first else len(before) - 1), end, ""


def _equals(source: str, offset: _Offsets, call: ast.Call) -> str:
    """Return the equals sign with the spacing of the call's other arguments."""
    word = next((word for word in call.keywords if word.arg is not None), None)
    if word is None or word.lineno != word.value.lineno:
        return "="
    return source[offset.start(word) + len(word.arg or "") : offset.start(word.value)]


def _added(source: str, offset: _Offsets, call: ast.Call, name: str, value: Any) -> Edit | None:
    """Add an argument after the last one, on its own line if the last one has its own."""
    words: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    text = f"{name}{_render(value)}"
    if not words:
        at = offset.end(call) - 1
        return at, at, text
    last = max(words, key=offset.end)
    start, end = offset.start(last), offset.end(last)
    line_start = source.rfind("\n", 0, start) + 1
    indent = source[line_start:start]
    if indent.strip():  # arguments share a line
        return end, end, f", {text}"
    comma = source[end:].lstrip(" \t").startswith(",")
    line_end = source.find("\n", end)
    rest = source[end : line_end if line_end >= 0 else len(source)].rstrip("\r")
    if line_end < 0 or rest.strip(" \t,")[:1] not in ("", "#"):
        return end, end, f", {text}"
    newline = "\r\n" if "\r\n" in source else "\n"
    return end, end + len(rest), f"{'' if comma else ','}{rest}{newline}{indent}{text}{',' * comma}"
