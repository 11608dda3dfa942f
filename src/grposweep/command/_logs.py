"""Read the logs of the programs that run as trials: transformers' state, ms-swift's, and those of
EasyR1 and verl.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from grporecipe.files import Json, count_or_none, finite_or_none, objects, read_json
from grporecipe.model.values import flatten
from grposweep.command._contract import Entry

# Either framework's name of the held-out reward, eval_reward in this project.
MEASURED = ("val/reward_score", "val-core/")
STATE = "trainer_state.json"
# of ms-swift: "7/20"
STEP = "global_step/max_steps"


@dataclass
class LogTail:
    """Reads a file of JSON lines as it grows.

    A program that resumes continues the file or starts it again. Its steps up to ``resumed_at`` are
    known already.
    """

    path: Path
    entries_of: Callable[[bytes], Iterator[Entry]]
    resumed_at: int | None
    seen: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # by an earlier attempt
        self.seen = self._content()

    def __call__(self) -> list[Entry]:
        """Return the entries of the complete lines since the last call."""
        content = self._content()
        new = content[len(self.seen) :] if content.startswith(self.seen) else content
        self.seen = content
        entries = [entry for line in new.splitlines() for entry in self.entries_of(line)]
        first = -1 if self.resumed_at is None else self.resumed_at
        return [entry for entry in entries if entry.step > first]

    def _content(self) -> bytes:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return b""
        return content[: content.rfind(b"\n") + 1]


def rollout_entries(line: bytes, factor: float) -> Iterator[Entry]:
    """Yield a line's training metrics, and its evaluation if it has one. A rollout is ``factor``
    optimizer steps.
    """
    content = next(objects([line]), {})
    step = round((finite_or_none(content.pop("step", None)) or 0) * factor)
    data = content.get("data")
    # EasyR1 nests what it calls val/reward_score
    leaves = flatten(data if isinstance(data, dict) else content, "/")
    values = {name: value for name, value in leaves.items() if isinstance(value, int | float)}
    measured = {name: value for name, value in values.items() if name.startswith("val")}
    trained = {name: value for name, value in values.items() if name not in measured}
    if trained:
        yield Entry("train", step, trained)
    if measured:
        rewards = [value for name, value in measured.items() if name.startswith(MEASURED)]
        mean = {"eval_reward": sum(rewards) / len(rewards)} if rewards else {}
        yield Entry("eval", step, {**measured, **mean})


def swift_entries(line: bytes) -> Iterator[Entry]:
    """Yield the entry of a step or an evaluation; nothing for the summaries at start and end."""
    values = next(objects([line]), {})
    step = str(values.get(STEP, "")).partition("/")[0]
    if step.isdigit() and "train_runtime" not in values:
        numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
        yield Entry(_kind(values), int(step), numbers)


def _kind(line: Json) -> str:
    """Return whether a line of transformers' log is one of an evaluation."""
    return "eval" if any(name.startswith("eval_") for name in line) else "train"


class TrainerStateTail:
    """Reads the log that transformers' Trainer always writes: the newest trainer_state.json below
    an output folder.

    The file is written with every checkpoint, so entries arrive as often as the recipe saves.
    States from before the program's start are skipped.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        # entries of the history that were returned
        self.seen = 0
        self.before = {path: path.stat().st_mtime_ns for path in self._states()}

    def __call__(self) -> list[Entry]:
        """Return the entries since the last call."""
        changed = [
            path for path in self._states() if path.stat().st_mtime_ns != self.before.get(path)
        ]
        newest = max(changed, key=lambda path: path.stat().st_mtime_ns, default=None)
        if newest is None:
            return []
        try:
            history = (read_json(newest) or {}).get("log_history")
        except OSError:
            # the file was just rotated
            return []
        if not isinstance(history, list):
            return []
        new, self.seen = history[self.seen :], max(self.seen, len(history))
        # a run's last line has times and the mean loss, and is not a step
        return [
            state_entry(line)
            for line in new
            if isinstance(line, dict) and "train_runtime" not in line
        ]

    def _states(self) -> list[Path]:
        return [*self.output.glob(STATE), *self.output.glob(f"checkpoint-*/{STATE}")]


def state_entry(line: Json) -> Entry:
    """Convert a line of the history; the keys of evaluations identify them."""
    values = dict(line)
    step = count_or_none(values.pop("step", None)) or 0
    return Entry(_kind(values), step, values)
