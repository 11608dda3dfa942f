"""Learning curves read from trials' metrics.jsonl, a tail at a time: a tick looks at every running trial."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from grposweep.files import as_number, objects, read_json
from grposweep.search.curves import Curve, State
from grposweep.search.space import Point

SIGNALS: Mapping[str, str] = {  # a curve's name for a training signal: TRL's
    "train_reward": "reward",
    "kl": "kl",
    "entropy": "entropy",
    "grad_norm": "grad_norm",
    "zero_std": "frac_reward_zero_std",
    "truncated": "completions/clipped_ratio",
    "update_size": "update_size",
}
BROKEN = "broken"  # the share of training steps whose loss was not a number

Line = Mapping[str, Any]


@dataclass
class Tail:
    """The new lines of a file that somebody appends to, and that an attempt replaces when it goes on from a checkpoint."""

    path: Path
    _file: int = -1  # inode
    _seen: int = 0  # bytes

    def read(self) -> tuple[bool, list[dict[str, Any]]]:
        """Whether the file is another one than before, and its whole lines since the last look."""
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            return False, []
        anew = stat.st_ino != self._file or stat.st_size < self._seen
        if anew:
            self._file, self._seen = stat.st_ino, 0
        if stat.st_size == self._seen:
            return anew, []
        with self.path.open("rb") as file:
            file.seek(self._seen)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._seen += len(whole)
        return anew, list(objects(whole.split(b"\n")))


@dataclass
class CurveReader:
    """One trial's evaluations and training signals as far as its file tells them; ``sign`` -1 where less is better."""

    path: Path
    metric: str
    sign: float = 1.0
    start: float | None = None
    steps: list[int] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    completions: list[float] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)
    errors: list[float | None] = field(default_factory=list)
    signals: dict[str, list[float | None]] = field(default_factory=dict)
    _tail: Tail | None = None
    _stretch: list[Line] = field(default_factory=list)  # training steps since the last evaluation

    def update(self) -> bool:
        """Read what is new; whether anything was."""
        self._tail = self._tail or Tail(self.path)
        anew, lines = self._tail.read()
        if anew:
            self._begin()
        for line in lines:
            if line.get("kind") == "train":
                self._stretch.append(line)
            elif line.get("kind") == "eval":
                self._evaluate(line)
        return anew or bool(lines)

    def curve(self, number: int, point: Point, state: State, total: float | None) -> Curve:
        """What is known, as a curve; ``total`` completions of a whole training, as far as anybody knows."""
        known = self.completions[-1] if self.completions else 0.0
        return Curve(
            number, point, state, max(total or 0.0, known), tuple(self.completions), tuple(self.held_out), self.start,
            tuple(self.errors), {name: tuple(values) for name, values in self.signals.items()},
        )  # fmt: skip

    def _begin(self) -> None:
        """Forget all: the attempt has taken back the steps after its checkpoint."""
        self.start = None
        for values in (self.steps, self.attempts, self.completions, self.held_out, self.errors, self._stretch):
            values.clear()
        self.signals.clear()

    def _evaluate(self, line: Line) -> None:
        value, step = as_number(line.get(self.metric)), line.get("step")
        if value is None or not isinstance(step, int):
            return
        if step == 0:
            self.start = self.sign * value
            return
        means = {
            **{ours: mean(self._stretch, theirs) for ours, theirs in SIGNALS.items()},
            BROKEN: broken(self._stretch),
        }
        for name, signal in means.items():
            self.signals.setdefault(name, []).append(signal)
        self.steps.append(step)
        attempt = line.get("attempt")
        self.attempts.append(attempt if isinstance(attempt, int) else 0)
        self.completions.append(as_number(line.get("completions")) or 0.0)
        self.held_out.append(self.sign * value)
        self.errors.append(as_number(line.get(f"{self.metric}_se")))
        self._stretch = []


def whole_completions(trial: Path, reached: float, step: int) -> float | None:
    """Completions of a trial's whole training: by its plan, or where only its program knows, by its heartbeat's steps."""
    planned = as_number((read_json(trial / "plan.json") or {}).get("total_completions"))
    if planned:
        return planned
    steps = as_number((read_json(trial / "heartbeat") or {}).get("total"))
    return reached / step * steps if steps and step else None


def mean(stretch: Sequence[Line], name: str) -> float | None:
    """A signal's mean over training steps; None where it was not logged, or once not a number."""
    values = [as_number(line[name]) for line in stretch if name in line]
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers and len(numbers) == len(values) else None


def broken(stretch: Sequence[Line]) -> float | None:
    """The share of training steps whose loss was not a number, which metrics.jsonl holds as null."""
    logged = [line["loss"] is None for line in stretch if "loss" in line]
    return fmean(logged) if logged else None
