"""EasyR1: its keys by release, how its recipes are read and written, and how it is started."""

import re

from grposweep.external import ExternalProgram, ExternalTrainer, Trial
from grposweep.frameworks.base import Framework
from grposweep.frameworks.easyr1 import keys
from grposweep.frameworks.easyr1.recipes import DERIVED, SPECIAL, keys_of, render
from grposweep.frameworks.ray import build_ray


def build(trial: Trial) -> ExternalProgram:
    """Return ``verl.trainer.main`` on the trial's recipe."""
    return build_ray(trial, "verl.trainer.main", [f"config={trial.file}"], trial.output / "experiment_log.jsonl")


FRAMEWORK = Framework(
    traits=keys.TRAITS,
    version=keys.VERSION,
    fields=keys.FIELDS,
    takes=keys.known,
    keys=frozenset({"worker", "data.rollout_batch_size"}),
    programs=re.compile(r"\bverl\.trainer\.main$|verl/trainer/main\.py$|(?i:easyr1|easy_r1)"),
    trainings=re.compile(r"\bverl[./]trainer[./]main(?:\.py)?$"),
    sections=("data", "worker", "algorithm", "trainer"),
    renamed=keys.RENAMED,
    releases=keys.releases,
    keys_of=keys_of,
    derived=DERIVED,
    render=render,
    special=SPECIAL,
    base_config=keys.base_config,
    trainer=ExternalTrainer(build, output="trainer.save_checkpoint_path", ray_cpus=3),
)
