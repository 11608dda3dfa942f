"""Read the logs of the programs that run as trials: ms-swift's, and those of EasyR1 and verl."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from grporecipe.files import finite_or_none, objects, without
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
        first = -1 if self.resumed_at is None else self.resumed_at
        entries = chain.from_iterable(map(self.entries_of, new.splitlines()))
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
    if isinstance(data, dict):
        content = data
    leaves = flatten(content, "/")
    values = {name: value for name, value in leaves.items() if isinstance(value, int | float)}
    measured = {name: value for name, value in values.items() if name.startswith("val")}
    trained = without(values, measured)
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
        kind = "eval" if any(name.startswith("eval_") for name in values) else "train"
        yield Entry(kind, int(step), numbers)


def watch_states(output: Path) -> Callable[[], list[Entry]]:
    """Return what yields an entry once transformers' Trainer has saved a state in an output folder.

    It is a sign that a program trains without our Callback, which reports before that.
    """
    before = _states(output)
    return lambda: [Entry("", 0, {})] if _states(output) - before else []


def _states(output: Path) -> set[tuple[Path, int]]:
    """Return the states in a folder and in its checkpoints, each with the time of its last
    change.
    """
    paths = (*output.glob(STATE), *output.glob(f"checkpoint-*/{STATE}"))
    return {(path, path.stat().st_mtime_ns) for path in paths}
