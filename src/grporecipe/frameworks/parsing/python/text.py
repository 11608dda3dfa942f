"""Read the text and the syntax tree of a Python file, or of a notebook's code cells joined in order.

A notebook is read as one file: line numbers continue from cell to cell, and `Source.cells` has the first line of each cell.
Lines for IPython itself (``%magic``, ``!command``) become ``pass``, so all other lines keep their number. Sources: nbformat 4;
IPython inputtransformer2.py.
"""

import ast
import json
import re
from typing import Any, NamedTuple

from grporecipe.errors import UserError
from grporecipe.files import parse_json
from grporecipe.frameworks.parsing.python.modules import parse_python

NOTEBOOK = ".ipynb"
PYTHON_CELLS = (
    "%%capture",
    "%%time",
    "%%timeit",
    "%%prun",
    "%%python",
    "%%py3",
)  # magics whose cell still contains Python
_MAGIC = re.compile(r"(\s*)(?:[%!?]|.*\?\s*$)")
_ASSIGNED = re.compile(r"(\s*[\w., ]+=\s*)[%!]")


class Cell(NamedTuple):
    """A code cell: its number among all cells from 1, and its first line in the text."""

    number: int
    line: int


class Source(NamedTuple):
    """Python code (``text``), its tree, and the cells of a notebook (empty for a file)."""

    text: str
    tree: ast.Module
    cells: tuple[Cell, ...] = ()


def read_source(text: str, is_notebook: bool) -> Source:
    """Return the Python of a file or notebook.

    Raises UserError if it is neither, or nested too deeply.
    """
    if is_notebook:
        return _read_cells(text)
    tree = parse_python(text) or parse_python(_without_magics(text))
    if tree is None:
        raise UserError(f"it is no Python that can be read{_where(text)}.")
    return Source(text, tree)


def _where(text: str) -> str:
    try:
        ast.parse(text)
    except SyntaxError as error:
        return f" (line {error.lineno}: {error.msg})" if error.lineno else f" ({error.msg})"
    except (ValueError, RecursionError, MemoryError):
        pass
    return ": it is nested too deeply, or has null bytes"


def _read_cells(text: str) -> Source:
    shown: list[str] = []
    parsed: list[str] = []
    cells: list[Cell] = []
    line = 1
    for number, source in code_cells(text):
        python = _python_of(source)
        cells.append(Cell(number, line))
        shown.append(source)
        parsed.append(python)
        line += source.count("\n") + 1
    tree = parse_python("\n".join(parsed))
    if tree is None:
        raise UserError("its code cells are no Python that can be read together.")
    return Source("\n".join(shown), tree, tuple(cells))


def code_cells(text: str) -> list[tuple[int, str]]:
    """Return the code cells of a notebook: number among all cells, and text.

    Raises UserError if it is no notebook.
    """
    try:
        notebook = parse_json(text.removeprefix("\ufeff"))
    except ValueError as error:
        raise UserError(f"it is no notebook: {str(error)[:120]}.") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise UserError("it is no notebook of format 4: it has no cells. Open and save it with Jupyter.")
    found = []
    for number, cell in enumerate(cells, 1):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            found.append((number, _joined(cell.get("source"))))
    return found


def _joined(source: Any) -> str:
    lines = source if isinstance(source, list) else [source]
    return "".join(line for line in lines if isinstance(line, str))


def _python_of(source: str) -> str:
    """Return a cell as Python with the same number of lines. Cells that are no valid Python become blank lines."""
    first = source.lstrip().partition("\n")[0].strip()
    is_python = first.startswith(PYTHON_CELLS) or (first.startswith("%%writefile") and first.endswith(".py"))
    if not first.startswith("%%") or is_python:
        for text in (source, _without_magics(source)):
            if parse_python(text) is not None:
                return text
    return "\n" * source.count("\n")


def _without_magics(source: str) -> str:
    """Replace a cell's lines for IPython or a shell by ``pass``."""
    lines, continues = [], False
    for line in source.split("\n"):
        magic = _MAGIC.match(line)
        assigned = _ASSIGNED.match(line)
        is_foreign = continues or magic or assigned
        if continues:
            lines.append("")
        elif assigned:
            lines.append(f"{assigned[1]}None")
        else:
            lines.append(f"{magic[1]}pass" if magic else line)
        continues = bool(is_foreign) and line.rstrip().endswith("\\")
    return "\n".join(lines)


def replace_cell(text: str, number: int, source: str) -> str | None:
    """Return a notebook with another text in one cell; every other byte stays. None if the cell's source is not found."""
    spans = _source_spans(text, number)
    if not spans:
        return None
    raw = [text[start:end] for start, end in spans]
    old = [parse_json(token) for token in raw]
    is_list = text[: spans[0][0]].rstrip().endswith("[")
    new = source.splitlines(keepends=True) if is_list else [source]
    first = 0
    while first < min(len(old), len(new)) and old[first] == new[first]:
        first += 1
    last = 0
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    middle = raw[first : len(raw) - last]
    is_escaped = any("\\u" in token for token in raw)
    tokens = [json.dumps(line, ensure_ascii=is_escaped) for line in new[first : len(new) - last]]
    if not tokens or not middle:  # lines are only added or removed: replace them together with a neighbour
        if first == 0:
            return None
        first -= 1
        middle, tokens = raw[first : len(raw) - last], [raw[first], *tokens]
    gap = text[spans[0][1] : spans[1][0]] if len(spans) > 1 else ",\n    "
    start, end = spans[first][0], spans[first + len(middle) - 1][1]
    return text[:start] + gap.join(tokens) + text[end:]


def _source_spans(text: str, number: int) -> list[tuple[int, int]]:
    """Return the positions of a cell's source strings in the JSON text."""
    found: list[tuple[int, int]] = []
    path: list[Any] = []  # of the open containers: the key or index that is being read
    decoder = json.JSONDecoder()
    at = 0
    expects_key = False
    while at < len(text):
        char = text[at]
        if char == '"':
            word, end = decoder.raw_decode(text, at)
            if expects_key and path and isinstance(path[-1], str):
                path[-1], expects_key = word, False
            elif path[:3] == ["cells", number - 1, "source"]:
                found.append((at, end))
            at = end
            continue
        if char in "{[":
            path.append("" if char == "{" else 0)
            expects_key = char == "{"
        elif char in "}]":
            path.pop()
            expects_key = False
        elif char == ",":
            if isinstance(path[-1], int):
                path[-1] += 1
            else:
                expects_key = True
        at += 1
    return found
