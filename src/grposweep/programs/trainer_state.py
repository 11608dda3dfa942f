"""What transformers' Trainer leaves of its log without being asked: ``log_history`` in trainer_state.json.

It is written with every checkpoint (and by ``trainer.save_state()``), so entries arrive as often as the recipe saves.
"""

import json
from pathlib import Path
from typing import Any

from grposweep.programs.program import Entry

NAME = "trainer_state.json"


class StateLog:
    """The newest state under a program's output folder; states that were there before it started are its past."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.seen = 0  # entries of the history
        self.before = {path: path.stat().st_mtime_ns for path in self._states()}

    def __call__(self) -> list[Entry]:
        """The entries since the last call."""
        changed = [path for path in self._states() if path.stat().st_mtime_ns != self.before.get(path)]
        newest = max(changed, key=lambda path: path.stat().st_mtime_ns, default=None)
        if newest is None:
            return []
        try:
            history = json.loads(newest.read_text(encoding="utf-8")).get("log_history", [])
        except (OSError, ValueError):  # being written, or rotated away just now
            return []
        new, self.seen = history[self.seen :], max(self.seen, len(history))
        return [as_entry(line) for line in new if not is_summary(line)]

    def _states(self) -> list[Path]:
        return [*self.output.glob(NAME), *self.output.glob(f"checkpoint-*/{NAME}")]


def as_entry(line: dict[str, Any]) -> Entry:
    """A line of the history; evaluations are told by their keys."""
    kind = "eval" if any(name.startswith("eval_") for name in line) else "train"
    return Entry(kind, int(line.get("step", 0)), {name: value for name, value in line.items() if name != "step"})


def is_summary(line: dict[str, Any]) -> bool:
    """The last line of a run holds times and the mean loss, and would be taken for a step."""
    return "train_runtime" in line
