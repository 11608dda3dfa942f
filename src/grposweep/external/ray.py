"""EasyR1 and verl, started by their own commands on one node; their logs count rollouts.

Sources: EasyR1 verl/trainer/main.py and utils/logger/logger.py (``experiment_log.jsonl`` in the checkpoints' folder, nested);
verl 0.9.1 trainer/main_ppo.py (Hydra) and utils/tracking.py (FileLogger, ``VERL_FILE_LOGGER_PATH``).
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grposweep import frameworks
from grposweep.external.base import RECIPE, Entry, ExternalProgram, Trial
from grposweep.frameworks.parsing.load import Options, load_recipe
from grposweep.plan import steps_per_rollout

EASYR1_LOG, VERL_LOG = "experiment_log.jsonl", "log.jsonl"
MEASURED = ("val/reward_score", "val-core/")  # what either calls its held-out reward; ours calls it eval_reward


def build_easyr1(trial: Trial) -> ExternalProgram:
    """``verl.trainer.main`` on the point's recipe; it goes on from its last checkpoint by itself."""
    own = [*_place(trial), "trainer.logger=[console,file]"]
    command = [_python(trial), "-m", "verl.trainer.main", f"config={trial.file}", *own, *trial.trainer.arguments]
    return ExternalProgram(tuple(command), RayLogTail(trial.output / EASYR1_LOG, trial, "easyr1"))


def build_verl(trial: Trial) -> ExternalProgram:
    """``verl.trainer.main_ppo`` on the point's recipe as a configuration of Hydra's, on top of verl's own."""
    name = Path(RECIPE).stem
    own = ["--config-dir", str(trial.folder), "--config-name", name, *_place(trial), "trainer.logger=[console,file]"]
    command = [_python(trial), "-m", "verl.trainer.main_ppo", *own, *trial.trainer.arguments]
    log = trial.output / VERL_LOG
    return ExternalProgram(tuple(command), RayLogTail(log, trial, "verl"), {"VERL_FILE_LOGGER_PATH": str(log)})


def _python(trial: Trial) -> str:
    return trial.trainer.python or sys.executable


def _place(trial: Trial) -> list[str]:
    return [f"trainer.nnodes={trial.place.nodes}", f"trainer.n_gpus_per_node={trial.place.ranks}"]


class RayLogTail:
    """A file of JSON lines, one a rollout; its steps are made optimizer steps."""

    def __init__(self, path: Path, trial: Trial, framework: str) -> None:
        self.path, self.trial, self.framework = path, trial, framework
        self.read = 0  # bytes
        self.stamp = _identity(path)  # of what an earlier attempt left

    def __call__(self) -> list[Entry]:
        """The whole lines since the last call, once the program has opened the file anew."""
        if not self.path.is_file() or (self.read == 0 and _identity(self.path) == self.stamp):
            return []
        with self.path.open("rb") as file:
            file.seek(self.read)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self.read += len(data)
        return [entry for line in data.splitlines() for entry in as_entries(line, self.factor)]

    @property
    def factor(self) -> float:
        """Optimizer steps a rollout."""
        options = Options(self.framework, None, self.trial.place.processes)
        return float(steps_per_rollout(frameworks.read(load_recipe(self.trial.file, options)).setting))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def as_entries(line: bytes, factor: float) -> Iterator[Entry]:
    """A line's training and its evaluation, where it has one."""
    try:
        content: dict[str, Any] = json.loads(line)
    except ValueError:
        return
    step = round(int(content.pop("step", 0)) * factor)
    values = {name: value for name, value in flat(content.get("data", content)) if isinstance(value, int | float)}
    measured = {name: value for name, value in values.items() if name.startswith("val")}
    trained = {name: value for name, value in values.items() if name not in measured}
    if trained:
        yield Entry("train", step, trained)
    if measured:
        rewards = [value for name, value in measured.items() if name.startswith(MEASURED)]
        mean = {"eval_reward": sum(rewards) / len(rewards)} if rewards else {}
        yield Entry("eval", step, {**measured, **mean})


def flat(content: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """EasyR1 nests what it calls ``val/reward_score``."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value
