"""Frameworks that read a training's values on their own command line: EasyR1, verl and ms-swift.

The user's command stays as it is: a trial's values become the last words of the framework's own
process (`grposweep.command.inside.argv`). A row says how they are written, and where its log and
its checkpoints are.

Sources: verl 0.9.1 trainer/main_ppo.py (Hydra), utils/tracking.py (FileLogger,
``VERL_FILE_LOGGER_PATH``) and utils/checkpoint/checkpoint_manager.py; EasyR1 verl/trainer/main.py
(OmegaConf.from_cli), utils/logger/logger.py (``experiment_log.jsonl`` in the checkpoints' folder)
and utils/checkpoint/checkpoint_manager.py; ms-swift 4.6.0 cli/main.py (``swift rlhf`` starts
rlhf.py with the keys of its YAML as options; NPROC_PER_NODE, NNODES and the like are variables) and
trainers/patcher.py (``logging.jsonl`` in the output folder).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from grporecipe.fields.recipes import read_recipe
from grporecipe.files import Config, Json
from grporecipe.model.planning import steps_per_rollout
from grposweep.command._contract import Log, Trial, meeting
from grposweep.command._logs import LogTail, rollout_entries, swift_entries
from grposweep.command._script import words_of
from grposweep.storage.checkpoints import newest_checkpoint

PLUGIN = Path(__file__).resolve().parent / "ms_swift_plugin" / "grposweep_in_ms_swift.py"
_LAST_STEP = r'(?:"last_global_step": *|\A)(\d+)'


@dataclass(frozen=True)
class OnRay:
    """How EasyR1 or verl takes a trial's values.

    ``output`` is the key of its output folder, ``prefix`` what Hydra needs before a key that may
    exist or not. ``tracker`` is the file that names the last checkpoint, written after it.
    ``variable`` names the log. ``again`` are keys of a resumed trial (the checkpoint's path where
    the value is None), ``on_nodes`` those in a cluster that runs already. ``ray_cpus`` are the CPUs
    per GPU that it reserves; with fewer it would wait forever.
    """

    output: str
    log_file: str
    tracker: str
    ray_cpus: int
    again: Mapping[str, str | None]
    on_nodes: Config = field(default_factory=dict)
    prefix: str = ""
    variable: str = ""
    program = ""
    # keys whose list gets further entries of ours
    lists: Mapping[str, Sequence[str]] = field(default_factory=lambda: {"trainer.logger": ["file"]})

    def words(self, keys: Config) -> list[str]:
        """Return the words that set these keys."""
        return [
            f"{self.prefix}{key.lstrip('+')}={json.dumps(value)}" for key, value in keys.items()
        ]

    def keys_of(self, trial: Trial) -> Json:
        """Return the keys that follow from the trial's folder, its place and its checkpoint."""
        place = trial.place
        keys: Json = {
            self.output: str(trial.output),
            "trainer.nnodes": place.nodes,
            "trainer.n_gpus_per_node": place.ranks,
        }
        if trial.checkpoint:
            keys |= {key: value or str(trial.checkpoint) for key, value in self.again.items()}
        if place.nodes > 1:
            keys |= self.on_nodes
        return keys

    def environment(self, trial: Trial) -> dict[str, str]:
        """Return the variables that the command gets."""
        return {self.variable: str(trial.output / self.log_file)} if self.variable else {}

    def log(self, trial: Trial) -> Log:
        """Return the reader of its log, which counts rollouts."""
        read = partial(rollout_entries, factor=_steps_of_rollout(trial))
        return LogTail(trial.output / self.log_file, read, self.resumed_at(trial))

    def resumed_at(self, trial: Trial) -> int | None:
        """Return the optimizer step of the checkpoint to resume from."""
        if trial.checkpoint is None:
            return None
        return round(_step_of(trial.checkpoint) * _steps_of_rollout(trial))

    def newest(self, output: Path, _: int) -> Path | None:
        """Return the newest complete checkpoint in an output folder."""
        tracker = output / self.tracker
        if not tracker.is_file():
            return None
        noted = re.search(_LAST_STEP, tracker.read_text(encoding="utf-8"))
        step = noted[1] if noted else ""
        checkpoint = output / f"global_step_{step}"
        return checkpoint if checkpoint.is_dir() else None


class MsSwift:
    """How ms-swift takes a trial's values; the names are as in `OnRay`."""

    output = "output_dir"
    program = "rlhf.py"
    ray_cpus = 0
    lists: Mapping[str, Sequence[str]] = {
        "external_plugins": [str(PLUGIN)],
        "callbacks": ["grposweep"],
    }

    def words(self, keys: Config) -> list[str]:
        """Return the words that set these keys."""
        words = list[str]()
        for name, value in keys.items():
            if value is not None:
                words += [f"--{name}", *words_of(value)]
        return words

    def keys_of(self, trial: Trial) -> Json:
        """Return the keys that follow from the trial's folder and its checkpoint."""
        # A new folder for each start would hide checkpoints and log.
        keys: Json = {"add_version": False, self.output: str(trial.output)}
        if trial.checkpoint:
            keys["resume_from_checkpoint"] = str(trial.checkpoint)
        return keys

    def environment(self, trial: Trial) -> dict[str, str]:
        """Return the variables that the command gets."""
        place = trial.place
        # a single process needs no torchrun
        ranks = {"NPROC_PER_NODE": str(place.ranks)} if place.processes > 1 else {}
        return ranks | meeting(place)

    def log(self, trial: Trial) -> Log:
        """Return the reader of its log."""
        return LogTail(trial.output / "logging.jsonl", swift_entries, self.resumed_at(trial))

    def resumed_at(self, trial: Trial) -> int | None:
        """Return the step of the checkpoint to resume from."""
        return _step_of(trial.checkpoint) if trial.checkpoint else None

    def newest(self, output: Path, ranks: int) -> Path | None:
        """Return the newest complete checkpoint in an output folder."""
        return newest_saved(output, ranks)


def newest_saved(output: Path, ranks: int) -> Path | None:
    """Return the newest complete checkpoint of transformers in an output folder."""
    newest = newest_checkpoint(output, ranks)
    return newest.path if newest else None


def _step_of(checkpoint: Path) -> int:
    return int(re.split(r"\D", checkpoint.name)[-1])


def _steps_of_rollout(trial: Trial) -> float:
    return float(steps_per_rollout(read_recipe(trial.recipe).setting))


LaunchedFramework = OnRay | MsSwift
FRAMEWORKS: dict[str, LaunchedFramework] = {
    "easyr1": OnRay(
        output="trainer.save_checkpoint_path",
        log_file="experiment_log.jsonl",
        tracker="checkpoint_tracker.json",
        ray_cpus=3,
        again={"trainer.load_checkpoint_path": None},
    ),
    "verl": OnRay(
        output="trainer.default_local_dir",
        log_file="log.jsonl",
        tracker="latest_checkpointed_iteration.txt",
        ray_cpus=4,
        again={"trainer.resume_mode": "auto"},
        # ray.init() refuses a number of CPUs if the cluster is already running
        on_nodes={"ray_kwargs.ray_init.num_cpus": None},
        prefix="++",
        variable="VERL_FILE_LOGGER_PATH",
    ),
    "ms-swift": MsSwift(),
}
