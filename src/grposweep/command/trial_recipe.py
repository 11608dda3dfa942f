"""A user's recipe as the base of a sweep: a point's numbers are written back under the recipe's
keys.

Only what a point changes is written; all other keys stay as they are. A trial's folder gets the
point's recipe, the list of changes and the command.
"""

import shlex
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path

from grporecipe.fields.recipes import read_recipe, spell_keys
from grporecipe.fields.writing import in_completions, in_prompts, render_keys
from grporecipe.files import Json, only, read_json, without, write_json, write_text
from grporecipe.frameworks.trl.recipes import native_keys as trl_keys
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.planning import micro_steps_per_generation
from grporecipe.model.recipe import KeySpecs, Recipe
from grporecipe.model.releases import parse_release, text
from grporecipe.model.setting import Setting
from grporecipe.model.values import without_none
from grporecipe.reading.load import Options, load_recipe
from grporecipe.terminal import comment
from grposweep.command._contract import ExternalProgram, NodeContext, Trial, node_cpus
from grposweep.command._frameworks import FRAMEWORKS as LAUNCHED
from grposweep.command._frameworks import LaunchedFramework
from grposweep.command._launched import build_launched, describe, native_args
from grposweep.command._script import build_script, placeholders
from grposweep.command.any_program import build_command, options_of
from grposweep.command.base import Base
from grposweep.config.compose import to_experiment
from grposweep.config.fields import KEYS
from grposweep.config.to_setting import own_values, read_setting
from grposweep.config.trl_args import homes
from grposweep.schema import Experiment, Trainer
from grposweep.schema.registries import is_opaque
from grposweep.storage import paths

# Two keys for the size of a rollout, which TRL refuses together: once sizes change, it is written
# in micro-steps.
SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")


def point_keys(recipe: Recipe, before: Setting, after: Setting) -> Json:
    """Return the keys of TRL that differ between two settings, for a recipe; None for one that
    gets its default.
    """
    framework = FRAMEWORKS["trl"]
    old, new = (trl_keys(framework, s, recipe.version) for s in (before, after))
    changed = {name: new.get(name) for name in {**old, **new} if old.get(name) != new.get(name)}
    return changed | _sizes(recipe, changed, after)


def _sizes(recipe: Recipe, changed: Collection[str], setting: Setting) -> Json:
    """Return a rollout's size as micro-steps, for a recipe that has it in completions."""
    if "generation_batch_size" not in recipe.config or set(SIZES).isdisjoint(changed):
        return {}
    return {
        "steps_per_generation": micro_steps_per_generation(setting),
        "generation_batch_size": None,
    }


def with_keys(recipe: Recipe, keys: Json) -> Json:
    """Return a recipe with other keys, which may have a sign of Hydra in it."""
    config = {name: value for name, value in recipe.config.items() if name.lstrip("+") not in keys}
    return without_none({**config, **keys})


def load_trial_recipe(folder: Path, experiment: Experiment) -> Recipe:
    """Read the recipe in a trial's folder, as it was when the trial was written; empty if its
    command is all that is known.
    """
    if is_opaque(experiment.trainer):
        return Base.of(experiment).recipe
    noted = read_json(folder / paths.CHANGED) or {}
    version = parse_release(noted["version"]) if "version" in noted else None
    options = Options(
        noted.get("framework", "trl"),
        version,
        experiment.cluster.processes,
        experiment.task.train_prompts,
    )
    return load_recipe(folder / paths.RECIPE, options)


def trial_setting(folder: Path, experiment: Experiment) -> Setting:
    """Read the numbers of the recipe in a trial's folder."""
    if is_opaque(experiment.trainer):
        return read_setting(experiment)
    setting = read_recipe(load_trial_recipe(folder, experiment)).setting
    return setting if setting.framework.unit == "prompts" else in_completions(setting)


def build_program(trial: Trial) -> ExternalProgram:
    """Return the program of a trial, with the values that are in its folder."""
    if is_opaque(trial.trainer):
        return build_command(trial)
    framework = framework_of(trial.folder)
    return build_script(trial) if framework is None else build_launched(trial, framework)


def framework_of(folder: Path) -> LaunchedFramework | None:
    """Return the framework that a trial's command launches; None if its command was asked."""
    noted = read_json(folder / paths.CHANGED) or {}
    return LAUNCHED.get(str(noted.get("framework")))


def write_program(
    folder: Path,
    experiment: Experiment,
    setting: Setting,
    named: Collection[str] = (),
    start: Trainer | None = None,
) -> None:
    """Write recipe.yaml, changed.json (the keys that the point set, and for which release) and
    program.sh.

    program.sh is to read, or to repeat the trial by hand. It has the command of each node; in a Ray
    cluster that of the head. ``named`` are the keys and groups that command and point set: the
    user's command gets them even if they are its own values. ``start`` is the sweep's own trainer:
    values that follow from a point's options and variables are left to the command.
    """
    trainer = experiment.trainer
    cluster = experiment.cluster
    base = Base.of(experiment)
    context = NodeContext(
        cluster.processes,
        nodes=cluster.nodes,
        gpus=cluster.gpus_per_node,
        cpus=node_cpus(cluster),
    )
    before = experiment if start is None else replace(experiment, trainer=start)
    trial = Trial(trainer, folder.resolve(), base.recipe, context)
    options = options_of(experiment, named, _plain(experiment))
    noted: Json = {}
    if base.launch is not None:
        noted, recipe = _of_launch(base.launch, trainer, unchanged(before), setting, named)
    elif not is_opaque(trainer):
        noted, recipe = _of_asked(base, unchanged(before), setting, named)
    own = placeholders(trainer)
    if base.launch is None:
        own |= base.options.keys()
    noted["options"] = only(options, own)
    if not is_opaque(trainer):
        noted |= {"version": text(base.recipe.version), "processes": cluster.processes}
        output = LAUNCHED[noted["framework"]].output if "framework" in noted else "output_dir"
        write_text(
            folder / paths.RECIPE,
            render_keys(base.framework, {**recipe, output: str(trial.output)}),
        )
    write_json(folder / paths.CHANGED, noted)
    program = build_program(trial)
    hook = f"export PYTHONPATH={shlex.quote(str(trial.folder / 'package'))}:$PYTHONPATH"
    lines = [hook] if program.reports else []
    lines += [
        f"export {name}={shlex.quote(value)}"
        for name, value in {**trainer.environment, **program.environment}.items()
    ]
    enter = f"cd {shlex.quote(str(Path(trainer.workdir or '.').resolve()))}"
    lines = ["#!/bin/sh", enter, *lines, *_ray_lines(program), shlex.join(program.command)]
    write_text(folder / "program.sh", "\n".join(lines) + "\n")


def _of_launch(
    launch: Recipe, trainer: Trainer, before: Setting, setting: Setting, named: Collection[str]
) -> tuple[Json, Json]:
    """Return what a trial of a framework's launch notes, and its recipe.

    What command and point name enters even if it is the launch's own value, which a running shell
    may change. A key that the point takes back gets its default.
    """
    framework = FRAMEWORKS[launch.framework]
    if framework.traits.unit == "prompts":
        before = in_prompts(before)[0]
        setting = in_prompts(setting)[0]
    setting = setting.replace({"framework": framework.traits, "version": launch.version})
    setting = setting.replace({"keys": framework.keys_at(launch.version)})
    changed: Json = {}
    for name in (*framework.special, *framework.by_name):
        value = getattr(setting, name)
        if value != getattr(before, name) or _names(named, KEYS.get(name, "")):
            changed |= spell_keys({name: value}, launch, setting) or {}
    changed |= _sizes(launch, changed, setting)
    entered = _entered(changed, framework.takes(launch.version))
    keys = {**entered, **native_args(trainer, launch.framework)}
    return {**describe(launch), "keys": keys}, with_keys(launch, keys)


def _of_asked(
    base: Base, before: Setting, setting: Setting, named: Collection[str]
) -> tuple[Json, Json]:
    """Return what a trial of a command that was asked notes, and its recipe."""
    changed = point_keys(base.recipe, before, setting)
    native = trl_keys(FRAMEWORKS["trl"], setting, base.recipe.version)
    keys: Json = {}
    for name, value in native.items():
        # sizes follow from each other
        is_size = name in (*SIZES, "generation_batch_size")
        if not is_size and _names(named, homes().get(name, "")):
            keys[name] = value
    keys |= changed
    entered = without(base.trainer.args, base.options)
    given = _entered(keys, base.framework.takes(base.recipe.version))
    return {"keys": {**given, **entered}}, with_keys(base.recipe, keys)


def _entered(keys: Json, takes: KeySpecs) -> Json:
    """Return the keys that enter. A null of one that always has a value (num_train_epochs) means
    the trainer's default.
    """
    entered = dict(keys)
    for name, value in keys.items():
        if value is None and name in takes and takes[name].type[-1] != "?":
            entered[name] = takes[name].default
    return entered


def _names(named: Collection[str], key: str) -> bool:
    """Return whether a key, or its group, is among these."""
    return key in named or key.partition(".")[0] in named


def _ray_lines(program: ExternalProgram) -> list[str]:
    """Return comments on what a job runs around a program on several nodes."""
    if program.ray is None:
        return []
    head = program.ray.start_head("/tmp/FOLDER")
    worker = program.ray.start_worker("HEAD:PORT")
    explained = comment(
        f"The job starts Ray on its {program.ray.nodes} nodes, waits for all of them, and runs "
        "the last line on the first:",
        f"  first node:  {shlex.join(head)}",
        f"  other nodes: {shlex.join(worker)}",
    )
    return [f"{explained}export RAY_ADDRESS=HEAD:PORT"]


def unchanged(experiment: Experiment) -> Setting:
    """Return the setting of the recipe itself, for a point that changes nothing."""
    return read_setting(_plain(experiment))


def _plain(experiment: Experiment) -> Experiment:
    """Return the experiment with the values of its base."""
    own = own_values(Base.of(experiment).setting)
    kept = {
        name: asdict(getattr(experiment, name)) for name in ("trainer", "cluster", "task", "model")
    }
    return to_experiment({**own, **kept})
