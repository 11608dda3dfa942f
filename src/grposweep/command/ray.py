"""Start EasyR1 and verl, which run on Ray, and read their logs, which count rollouts.

Sources: EasyR1 verl/trainer/main.py and utils/logger/logger.py (``experiment_log.jsonl`` in the
checkpoints' folder, nested); verl 0.9.1 trainer/main_ppo.py (Hydra) and utils/tracking.py
(FileLogger, ``VERL_FILE_LOGGER_PATH``).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from grporecipe.fields.recipes import read_recipe
from grporecipe.files import file_stamp, finite_or_none, objects
from grporecipe.model.planning import steps_per_rollout
from grporecipe.model.values import flatten
from grporecipe.reading.load import Options, load_recipe
from grposweep.command._contract import Entry, ExternalProgram, RayCluster, Trial, interpreter
from grposweep.storage import paths

# Either framework's name of the held-out reward, eval_reward in this project.
MEASURED = ("val/reward_score", "val-core/")


def build_easyr1(trial: Trial) -> ExternalProgram:
    """Return EasyR1's ``verl.trainer.main`` on the trial's recipe."""
    return build_ray(
        trial, "verl.trainer.main", [f"config={trial.file}"], trial.output / "experiment_log.jsonl"
    )


def build_verl(trial: Trial) -> ExternalProgram:
    """Return ``verl.trainer.main_ppo`` on the trial's recipe, a Hydra configuration on top of
    verl's own.
    """
    configuration = ["--config-dir", str(trial.folder), "--config-name", Path(paths.RECIPE).stem]
    # ray.init() refuses a number of CPUs if the cluster is already running
    if trial.place.nodes > 1:
        configuration.append("ray_kwargs.ray_init.num_cpus=null")
    log = trial.output / "log.jsonl"
    return build_ray(
        trial, "verl.trainer.main_ppo", configuration, log, {"VERL_FILE_LOGGER_PATH": str(log)}
    )


def build_ray(
    trial: Trial,
    module: str,
    configuration: list[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
) -> ExternalProgram:
    """Return the command of a module on the trial's recipe; it resumes from its last checkpoint by
    itself.

    On one node it starts Ray itself.
    """
    python, place = interpreter(trial.trainer), trial.place
    shape = [f"trainer.nnodes={place.nodes}", f"trainer.n_gpus_per_node={place.ranks}"]
    own = [*configuration, *shape, "trainer.logger=[console,file]"]
    command = [python, "-m", module, *own, *trial.trainer.arguments]
    cluster = RayCluster(python, place.nodes, place.gpus, place.cpus) if place.nodes > 1 else None
    return ExternalProgram(tuple(command), RayLogTail(log, trial), environment or {}, cluster)


class RayLogTail:
    """Reads a file of JSON lines, one per rollout, and converts rollouts to optimizer steps."""

    def __init__(self, path: Path, trial: Trial) -> None:
        self.path, self.trial = path, trial
        # bytes
        self.read = 0
        # of an earlier attempt's file
        self.stamp = file_stamp(path)

    def __call__(self) -> list[Entry]:
        """Return the complete lines since the last call, once the program has opened the file
        again.
        """
        if not self.path.is_file() or (self.read == 0 and file_stamp(self.path) == self.stamp):
            return []
        with self.path.open("rb") as file:
            file.seek(self.read)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self.read += len(data)
        return [entry for line in data.splitlines() for entry in as_entries(line, self.factor)]

    @property
    def factor(self) -> float:
        """Optimizer steps per rollout."""
        options = Options(self.trial.trainer.kind, None, self.trial.place.processes)
        return float(steps_per_rollout(read_recipe(load_recipe(self.trial.file, options)).setting))


def as_entries(line: bytes, factor: float) -> Iterator[Entry]:
    """Yield a line's training metrics, and its evaluation if it has one."""
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
