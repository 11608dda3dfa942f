"""Rows of JSON lines as a list with the methods that training scripts call; source: datasets 5.2
arrow_dataset.py.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Dataset(list[dict[str, Any]]):
    """Rows."""

    @classmethod
    def from_list(cls, rows: list[dict[str, Any]]) -> "Dataset":
        """Return rows as they are."""
        return cls(rows)

    def map(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> "Dataset":
        """Return rows with further columns."""
        return Dataset({**row, **change(row)} for row in self)

    def select(self, places: range) -> "Dataset":
        """Return some of the rows."""
        return Dataset(self[place] for place in places)

    def shuffle(self, seed: int = 0) -> "Dataset":  # noqa: ARG002 - the name that scripts use
        """Return the rows."""
        return self


def load_dataset(_kind: str, data_files: str, split: str = "train") -> Dataset:
    """Read JSON lines."""
    return Dataset(json.loads(line) for line in Path(data_files).read_text().splitlines())
