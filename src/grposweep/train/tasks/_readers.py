"""Read rows from files of JSON lines, CSV and parquet, and from folders of them, with errors that
name the file and the line.
"""

import csv
import io
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from grporecipe.errors import UserError
from grporecipe.files import Json, other_delimiter, parse_json

Row = Json

DELIMITERS = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (".jsonl", ".json", ".parquet", *DELIMITERS)
# wrong rows of a file
MOST_NAMED = 5


# beginnings of the names of files of other splits than the training's
HELD_OUT = ("test", "val", "dev", "eval")


class Line(dict[str, Any]):
    """A row that knows its line, which blank lines before it count for."""

    def __init__(self, row: Row, number: int) -> None:
        super().__init__(row)
        self.number = number


def numbered(rows: Iterable[Row]) -> list[tuple[int, Row]]:
    """Return rows with their numbers in the file."""
    return [(getattr(row, "number", number), row) for number, row in enumerate(rows, start=1)]


def load_rows(path: Path, key: str = "task.path", split: str = "train") -> list[Row]:
    """Return the rows of a file of JSON lines, CSV or parquet, by its suffix, or those of a split
    in a folder; ``key`` is the key that the user edits.
    """
    if path.is_dir():
        rows = load_split(path, key, split)
        if not rows:
            raise UserError(
                f"{key}={path}: this folder has no rows of the split {split}. It takes "
                f"{split}*{', '.join(SUFFIXES)}, or what save_to_disk of datasets writes. Name a "
                "folder or a file with prompts."
            )
        return rows
    if not path.is_file():
        raise UserError(
            f"{key}={path}: there is no such file (seen from {Path.cwd()}). Set {key} to a file "
            "of prompts."
        )
    if path.suffix not in SUFFIXES:
        raise UserError(
            f"{key}={path}: files of prompts end in {', '.join(SUFFIXES)}. Rename JSON lines to "
            ".jsonl. Other kinds are written by Dataset.to_parquet('prompts.parquet') of datasets, "
            "or to_parquet of pandas."
        )
    if path.suffix == ".parquet":
        return _load_parquet(path, key)
    text = _read_text(path, key)
    if path.suffix in DELIMITERS:
        return _parse_table(text, DELIMITERS[path.suffix], f"{key}={path}")
    return _parse_json_lines(text, f"{key}={path}")


def load_split(folder: Path, key: str, split: str) -> list[Row]:
    """Return the rows of a split that save_to_disk wrote, or of its files, as the hub lays them
    out. Files whose name says no split are training rows.
    """
    if (folder / split).is_dir():
        folder = folder / split
    if (folder / "state.json").is_file():
        # half a second that other files do not need
        from datasets import load_from_disk

        return list(load_from_disk(str(folder)).to_list())
    places = (*folder.glob("*"), *folder.glob("data/*"))
    files = sorted(file for file in places if file.suffix in SUFFIXES)
    chosen = [file for file in files if file.name.startswith(split)]
    if not chosen and split == "train":
        chosen = [file for file in files if not file.name.startswith(HELD_OUT)]
    rows = list[Row]()
    for file in chosen:
        rows += load_rows(file, key)
    return rows


def _read_text(path: Path, key: str) -> str:
    try:
        # newlines inside of a CSV value stay as they are
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise UserError(
            f"{key}={path}: line {line} is not UTF-8 (byte {error.start}). Convert the file: "
            f"iconv -f LATIN1 -t UTF-8 {path} > utf8{path.suffix}."
        ) from error


def _parse_table(text: str, delimiter: str, source: str) -> list[Row]:
    """Return the rows of a table whose first line names the columns; all values are text, None
    where there is none.
    """
    # a prompt may be longer than csv's default of 131,072 characters
    csv.field_size_limit(sys.maxsize)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows = list[Row]()
    try:
        if other := other_delimiter(reader.fieldnames or ()):
            raise UserError(
                f"{source}: its columns are separated by {other!r}, and this kind of file has "
                f"{delimiter!r}. Write the file with {delimiter!r}, or JSON lines."
            )
        for row in reader:
            if None in row:
                names = ", ".join(reader.fieldnames or ())
                raise UserError(
                    f"{source}: line {reader.line_num} has more values than there are columns "
                    f"({names}). Put quotes around a value that holds the delimiter."
                )
            rows.append({name: value or None for name, value in row.items()})
    except csv.Error as error:
        raise UserError(
            f"{source}: line {reader.reader.line_num} is not CSV ({error}). Correct it, or "
            "write JSON lines."
        ) from error
    return rows


def _parse_json_lines(text: str, source: str) -> list[Row]:
    if text.lstrip().startswith("["):
        with suppress(ValueError):
            whole = parse_json(text)
            if all(isinstance(row, dict) for row in whole):
                return list(whole)
    rows = list[Row]()
    wrong = dict[int, str]()
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            wrong[number] = f"is not JSON ({error})"
            continue
        if isinstance(row, dict):
            rows.append(Line(row, number))
        else:
            wrong[number] = "is not a JSON object"
    if wrong:
        mistakes = [
            f"line {number} {reason}" for number, reason in list(wrong.items())[:MOST_NAMED]
        ]
        if len(wrong) > MOST_NAMED:
            mistakes.append(f"and {len(wrong) - MOST_NAMED} more lines")
        raise UserError(f"{source}: {'; '.join(mistakes)}. Write one JSON object per line.")
    return rows


def _load_parquet(path: Path, key: str) -> list[Row]:
    import pyarrow.parquet  # type: ignore[import-untyped]  # no stubs; at its only use: JSON lines need no arrow

    try:
        return list(pyarrow.parquet.read_table(path).to_pylist())
    except (OSError, ValueError) as error:
        # arrow's own errors are ValueErrors
        raise UserError(
            f"{key}={path}: not a readable parquet file ({error}). Set {key} to a file of prompts."
        ) from error
