"""verl: its keys, how its recipes are read and written, and how it is started."""

import re
from pathlib import Path

from grposweep.external import RECIPE, ExternalProgram, ExternalTrainer, Trial
from grposweep.frameworks.base import Framework, Vendor
from grposweep.frameworks.dotted import build_ray
from grposweep.frameworks.verl import keys
from grposweep.frameworks.verl.keys import refusals
from grposweep.frameworks.verl.recipes import DERIVED, SPECIAL, keys_of, render
from grposweep.registries import Lazy


def build(trial: Trial) -> ExternalProgram:
    """Return ``verl.trainer.main_ppo`` on the trial's recipe, a Hydra configuration on top of verl's own."""
    configuration = ["--config-dir", str(trial.folder), "--config-name", Path(RECIPE).stem]
    if trial.place.nodes > 1:  # ray.init() refuses a number of CPUs if the cluster is already running
        configuration.append("ray_kwargs.ray_init.num_cpus=null")
    log = trial.output / "log.jsonl"
    return build_ray(trial, "verl.trainer.main_ppo", configuration, log, {"VERL_FILE_LOGGER_PATH": str(log)})


FRAMEWORK = Framework(
    traits=keys.TRAITS,
    version=keys.VERSION,
    fields=keys.FIELDS,
    takes=keys.known,
    key_table=keys.known_keys,
    keys=frozenset({"actor_rollout_ref"}),
    programs=re.compile(r"\bverl[./](?:[\w./]+[./])?main_\w+|\bmain_(?:ppo|dapo)\b|\brecipe[./]\w+[./]main_\w+"),
    trainings=re.compile(r"\bverl[./]trainer[./]main_ppo(?:\.py)?$|\bmain_(?:ppo|dapo)(?:\.py)?$"),
    sections=("data", "algorithm", "trainer", "actor_rollout_ref", "critic", "reward", "ray_kwargs"),
    releases=keys.releases,
    keys_of=keys_of,
    derived=DERIVED,
    render=render,
    special=SPECIAL,
    misfits=lambda recipe: (refused.written for refused in refusals(recipe, keys.known_keys(recipe))),
    packages=("verl",),
    vendor=Vendor("verl/trainer/config/ppo_trainer.yaml", Lazy("frameworks.verl.source:read_source")),
    base_config=lambda *_: {},  # verl's own configuration, or a missing one, which GV405 reports
    config_defaults=("ppo_trainer", "_self_"),
    memory=Lazy("frameworks.memory:read_verl"),
    trainer=ExternalTrainer(build, output="trainer.default_local_dir", ray_cpus=4),
)
