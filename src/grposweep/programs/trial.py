"""What a program of its own needs in a trial's folder: the point's recipe, what the point changed in it, and its command."""

import shlex
from dataclasses import asdict
from pathlib import Path

from grposweep.config.compose import to_experiment
from grposweep.config.own import own_values
from grposweep.config.read import read_setting
from grposweep.config.schema import Experiment
from grposweep.files import write_json, write_text
from grposweep.frameworks.keys import text
from grposweep.programs import PROGRAMS, build_program
from grposweep.programs.program import RECIPE, Place, Trial
from grposweep.programs.recipe import base_of, load_base, point_recipe, render_recipe
from grposweep.setting import Setting


def write_program(folder: Path, experiment: Experiment, setting: Setting) -> None:
    """Write recipe.yaml, changed.json (which keys the point set, and for which release) and program.sh (to read, or to
    repeat by hand; several nodes each run their own).
    """
    trainer = experiment.trainer
    base = load_base(trainer, experiment.cluster.processes)
    trial = Trial(trainer, folder.resolve(), {}, Place(experiment.cluster.processes))
    key = PROGRAMS[trainer.kind].output
    recipe, changed = point_recipe(base, unchanged(experiment), setting, key, trial.output)
    write_text(trial.file, render_recipe(recipe, base.framework))
    noted = {"version": text(base.version), "processes": experiment.cluster.processes, "keys": changed}
    write_json(folder / "changed.json", noted)
    program = build_program(Trial(trainer, trial.folder, recipe, trial.place))
    lines = [
        f"export {name}={shlex.quote(value)}" for name, value in {**trainer.environment, **program.environment}.items()
    ]
    start = f"cd {shlex.quote(str(Path(trainer.workdir or '.').resolve()))}"
    write_text(folder / "program.sh", "\n".join(["#!/bin/sh", start, *lines, shlex.join(program.command)]) + "\n")


def unchanged(experiment: Experiment) -> Setting:
    """The setting of the recipe itself, as a point that changes nothing would have it."""
    own = own_values(base_of(experiment.trainer, experiment.cluster.processes))
    own["optimizer"]["learning_rate"] = own["lr"]
    kept = {name: asdict(getattr(experiment, name)) for name in ("trainer", "cluster", "task", "model")}
    return read_setting(to_experiment({**own, **kept}))


__all__ = ["RECIPE", "unchanged", "write_program"]
