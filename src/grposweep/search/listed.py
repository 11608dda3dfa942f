"""Read ``search.points``: the points of a sweep, listed in the configuration or as the rows of a
CSV file.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from grporecipe.errors import UserError, refuse_mistakes
from grporecipe.files import Json, other_delimiter, read_text
from grporecipe.model.values import flatten
from grporecipe.terminal import short
from grposweep.config.validate import collect_messages
from grposweep.schema import AUTO, Search
from grposweep.search.parse import EXAMPLE, POINTS, label_of, parse_cell
from grposweep.search.space import Choice, Parameter, Point, Space, freeze


def list_points(space: Space, search: Search) -> Space:
    """Return the space of the points that ``search.points`` lists, or ``space`` unchanged if it
    lists none.

    Raises UserError with all mistakes: no points, a point twice, other parameters or a sampler that
    chooses points itself.
    """
    if search.points is None:
        return space
    rows = _read_rows(search.points)
    refuse_mistakes(_mistakes(space, search, rows))
    parameters = []
    for name in dict.fromkeys(chain.from_iterable(rows)):
        given = {freeze({name: label_of(row[name])}): row[name] for row in rows if name in row}
        values = tuple(given.values())
        parameters.append(Parameter(name, Choice(tuple(map(label_of, values)), values)))
    return Space(tuple(parameters), tuple(map(_point, rows)))


def _mistakes(space: Space, search: Search, rows: Sequence[Json]) -> Iterator[str]:
    for parameter in space.parameters:
        yield (
            f"{parameter.name} has several values next to {POINTS}, which lists whole points. Put "
            f"{parameter.name} into each point, or leave {POINTS} out."
        )
    if search.sampler not in (AUTO, "grid"):
        yield (
            f"search={search.sampler} with {POINTS}: all points are listed, so a sampler has none "
            f"to choose. Leave search out, or give each parameter its values instead of {POINTS}."
        )
    seen: dict[object, int] = {}
    for number, row in enumerate(rows, 1):
        first = seen.setdefault(freeze(_point(row)), number)
        if not row:
            yield f"{POINTS}: point {number} sets nothing. Give it a key, or leave it out."
        elif first != number:
            yield (
                f"{POINTS}: points {first} and {number} are the same ({short(_point(row))}). "
                "Leave one out."
            )


def _point(row: Json) -> Point:
    return {name: label_of(value) for name, value in row.items()}


def _read_rows(content: Any) -> list[Json]:
    """Return the keys and values of each point. Raises UserError for what is no list of points."""
    if isinstance(content, str):
        return _read_csv(Path(content))
    rows = content if isinstance(content, list) else [content]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise UserError(
            f"{POINTS}={content}: each point is a mapping of keys to values. Write {EXAMPLE}, "
            "or name a CSV file."
        )
    points = []
    for row in rows:
        points.append({str(name): value for name, value in flatten(row).items()})
    return points


def _read_csv(path: Path) -> list[Json]:
    """Return the rows of a CSV file with a header of keys. An empty cell leaves a key as it is
    configured.

    Raises UserError for a file that cannot be read, and with all mistakes in it.
    """
    head = f"{POINTS}={path}"
    try:
        text = read_text(path).removeprefix("\ufeff")
        lines = list(
            filter(None, csv.reader(io.StringIO(text), skipinitialspace=True, strict=True))
        )
    except (OSError, ValueError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(
            f"{head}: this file cannot be read ({reason}). Name a CSV file, or write {EXAMPLE}."
        ) from error
    if len(lines) < 2:
        raise UserError(
            f"{head}: the file has no points. Write a header of keys, such as lr,batch, and a "
            "point a row."
        )
    other = other_delimiter(lines[0])
    if other:
        raise UserError(
            f"{head}: its columns are separated by {other!r}. Write the file with commas."
        )
    names = [name.strip() for name in lines[0]]
    problems = [
        f"{head}: two columns are named {name!r}. Leave one out."
        for name in set(names)
        if names.count(name) > 1
    ]
    points = []
    for number, cells in enumerate(lines[1:], 1):
        if len(cells) != len(names):
            problems.append(
                f"{head}: row {number} has {len(cells)} cells, and the header has {len(names)}. "
                "Text with a comma needs quotes."
            )
        point: Json = {}
        for name, cell in zip(names, cells, strict=False):
            if cell.strip():
                problems += collect_messages(_set_cell, point, name, cell)
        points.append(point)
    refuse_mistakes(problems)
    return points


def _set_cell(point: Json, name: str, cell: str) -> None:
    point[name] = parse_cell(name, cell)
