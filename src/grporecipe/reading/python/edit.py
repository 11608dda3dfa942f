"""Compute a change of the arguments of a ``GRPOConfig(...)`` call, for the diff that lint shows. No
file is written.

Only literals in the call itself are changed: the value of a variable may be used elsewhere.
"""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from grporecipe.errors import UserError
from grporecipe.files import Config, parse_json, without
from grporecipe.model.values import without_none
from grporecipe.reading.python._configs import PythonConfig, find_configs
from grporecipe.reading.python.source import NOTEBOOK, code_cells

# start, end, replacement
Edit = tuple[int, int, str]
_COMMA = re.compile(r"[ \t]*,[ \t]*")
_LINE_END = re.compile(r"[ \t]*(?:#[^\n]*)?\n")


def edit_call(path: Path, text: str, index: int, change: Config) -> str | None:
    """Return a file or notebook after a change of keys (None removes one) in the configuration with
    this index.

    The result is read back and compared. None if a value is no literal in the call, or if anything
    else would change.
    """
    try:
        before = find_configs(path, text)
        made = before[index]
        edited = _edited(path, text, made, change)
        after = find_configs(path, edited)
    except (UserError, ValueError, RecursionError):
        return None
    before[index] = replace(made, config={**without(made.config, change), **without_none(change)})
    if before != after:
        return None
    return edited


def _edited(path: Path, text: str, made: PythonConfig, change: Config) -> str:
    """Return the text with the call changed. Raises ValueError for a value that is no literal."""
    if path.suffix != NOTEBOOK:
        return _with_edits(text, 1, made, change)
    number, first = max(cell for cell in made.cells if cell.line <= made.call.lineno)
    notebook = parse_json(text.removeprefix("\ufeff"))
    source = dict(code_cells(text))[number]
    notebook["cells"][number - 1]["source"] = _with_edits(source, first, made, change)
    return json.dumps(notebook)


def _with_edits(source: str, first: int, made: PythonConfig, change: Config) -> str:
    for start, end, instead in sorted(_edits(source, first, made, change), reverse=True):
        source = source[:start] + instead + source[end:]
    return source


def _edits(source: str, first: int, made: PythonConfig, change: Config) -> Iterator[Edit]:
    """Yield the changes of a source whose first line has this number. One removed and one added key
    are a rename.
    """
    call = made.call
    starts = [0, *(match.end() for match in re.finditer("\n", source))]

    def at(line: int | None, column: int | None) -> int:
        start = starts[(line or first) - first]
        line_text = source[start:].partition("\n")[0]
        return start + len(line_text.encode()[:column].decode(errors="ignore"))

    keywords = {keyword.arg: keyword for keyword in call.keywords if keyword.arg is not None}
    gone = [key for key, value in change.items() if value is None and key in keywords]
    new = [key for key, value in change.items() if value is not None and key not in made.config]
    renamed: dict[str, str] = {}
    if len(gone) == len(new) == 1:
        renamed = {gone[0]: new[0]}
    for key, keyword in keywords.items():
        start = at(keyword.lineno, keyword.col_offset)
        end = at(keyword.end_lineno, keyword.end_col_offset)
        name = renamed.get(key)
        if name is not None:
            yield start, start + len(key), name
        elif key in gone:
            yield _removed(source, start, end)
        value = change.get(name or key)
        if value is not None and value != made.config[key]:
            ast.literal_eval(keyword.value)
            value_start = at(keyword.value.lineno, keyword.value.col_offset)
            yield value_start, end, _render(value, source[value_start])
    added = [f"{key}={_render(change[key])}" for key in new if key not in renamed.values()]
    if added:
        arguments: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
        ends = [at(each.end_lineno, each.end_col_offset) for each in arguments]
        end = max(ends, default=at(call.end_lineno, call.end_col_offset) - 1)
        # behind the last argument
        if ends:
            added = ["", *added]
        yield end, end, ", ".join(added)


def _render(value: Any, quote: str = '"') -> str:
    """Return a value as Python code, with the quotes of the old value."""
    if isinstance(value, str) and quote != "'":
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def _removed(source: str, start: int, end: int) -> Edit:
    """Return the removal of an argument: of its lines and their comment if nothing else is on
    them.
    """
    comma = _COMMA.match(source, end)
    after = end
    if comma:
        after = comma.end()
    line_start = source.rfind("\n", 0, start) + 1
    line_end = _LINE_END.match(source, after)
    if line_end and not source[line_start:start].strip():
        return line_start, line_end.end(), ""
    if comma:
        return start, after, ""
    return len(source[:start].rstrip().removesuffix(",")), end, ""
