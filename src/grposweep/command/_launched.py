"""Find the launch of a framework in the user's command, and start it with a trial's values.

The text of the command and of its shell scripts is read as lint reads it. Nothing runs for it.
"""

import json
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from grporecipe.errors import UserError
from grporecipe.fields.recipes import read_recipe
from grporecipe.files import Json, absolute, only, read_json, without
from grporecipe.model.framework import FRAMEWORKS as READS
from grporecipe.model.recipe import Recipe
from grporecipe.model.values import flatten
from grporecipe.reading.load import Options, parse_recipes
from grposweep.command._contract import ExternalProgram, RayCluster, Trial
from grposweep.command._environment import LAUNCH, SHELL, launch_texts
from grposweep.command._frameworks import FRAMEWORKS, LaunchedFramework
from grposweep.command._script import command_line, placeholders
from grposweep.schema import Trainer
from grposweep.schema.registries import is_opaque
from grposweep.storage import paths

_ARGUMENTS = r'"?\$(?:[@*]|\{[@*]\})"?'


def find_launch(trainer: Trainer) -> Recipe | None:
    """Return what the command's launch states if it is one of ms-swift, EasyR1 or verl; None for
    any other command.

    Raises UserError if it launches several trainings, or if there is no folder to run it in.
    """
    folder = Path(trainer.workdir or ".")
    if not folder.is_dir():
        raise UserError(
            f"trainer.workdir={folder}: there is no such folder. Name the one that the program "
            "runs in."
        )
    if trainer.command is None or is_opaque(trainer):
        return None
    return _find(tuple(launch_texts(trainer.command, folder)), absolute(folder))


@lru_cache(maxsize=16)
def _find(texts: tuple[tuple[str, str], ...], folder: Path) -> Recipe | None:
    command = texts[0][1]
    for name, text in texts:
        try:
            recipes = parse_recipes(
                folder / (name or "launch.sh"), _with_arguments(text, name, command), Options()
            )
        except UserError:
            # no launch of a GRPO training
            continue
        launches = list(filter(_is_launch, recipes))
        if len(launches) > 1:
            raise UserError(
                f"{name or command}: it launches {len(launches)} trainings, and a trial is one "
                "training. Give a command that "
                "trains once, and sweep what the others change, such as seed=1,2,3."
            )
        return launches[0] if launches else None
    return None


def _is_launch(recipe: Recipe) -> bool:
    """Return whether a recipe is of a framework here by its program or its keys, and not only by
    the name of a folder.
    """
    if recipe.framework not in FRAMEWORKS or not recipe.launch:
        return False
    programs = READS[recipe.framework].programs
    has_keys = any("." in key for key in recipe.config)
    return has_keys or bool(programs and programs.search(recipe.launch.program))


def _with_arguments(text: str, name: str, command: str) -> str:
    """Return a script with the words that the command gives it in the place of ``"$@"``."""
    given = command.partition(name)[2] if name else ""
    return re.sub(_ARGUMENTS, lambda _: given, text)


def native_args(trainer: Trainer, framework: str) -> Json:
    """Return ``trainer.args`` under the framework's keys, without those that have a place in the
    command.
    """
    placed = placeholders(trainer)
    args = without(trainer.args, placed)
    return flatten(args) if READS[framework].is_dotted else args


def with_args(launch: Recipe, trainer: Trainer) -> Recipe:
    """Return a launch with ``trainer.args`` in it. A key keeps the sign of Hydra that the launch
    has for it.
    """
    args = native_args(trainer, launch.framework)
    signs = {key.lstrip("+"): key for key in launch.config}
    own = {signs.get(key, key): value for key, value in args.items()}
    unresolved = without(launch.unresolved, own)
    return replace(launch, config={**launch.config, **own}, unresolved=unresolved)


def stated_processes(launch: Recipe) -> int | None:
    """Return the training processes that a launch states; None if it leaves them open."""
    if launch.processes == 1 and not FRAMEWORKS[launch.framework].ray_cpus:
        # no variable of ms-swift states more, so those of the trial count
        return None
    setting = read_recipe(launch).setting
    return setting.processes if launch.processes or "processes" in setting.given else None


def describe(launch: Recipe) -> Json:
    """Return what a trial notes of its launch: the framework, its program, and the lists that get
    entries of ours.
    """
    row = FRAMEWORKS[launch.framework]
    defaults = READS[launch.framework].takes(launch.version)
    lists = {}
    for key in row.lists:
        default = defaults[key].default if key in defaults else None
        own = launch.config.get(key, default) or []
        lists[key] = own if isinstance(own, list) else [own]
    program = row.program or launch.launch.program
    return {"framework": launch.framework, "program": program, "lists": lists}


def build_launched(trial: Trial, row: LaunchedFramework) -> ExternalProgram:
    """Build the user's command with the words of this trial for the framework's own process."""
    noted = read_json(trial.folder / paths.CHANGED) or {}
    lists = {
        key: list(dict.fromkeys([*noted["lists"][key], *added])) for key, added in row.lists.items()
    }
    keys = {**noted["keys"], **lists, **row.keys_of(trial)}
    launch = {
        "program": noted["program"],
        "words": row.words(keys),
        # only an option cannot be null
        "without": [key for key, value in keys.items() if value is None and row.program],
    }
    trainer = trial.trainer
    context = trial.place
    cluster = RayCluster(trainer.python or "python3", context.nodes, context.gpus, context.cpus)
    places = placeholders(trainer)
    placed = only(noted["options"], places)
    return ExternalProgram(
        (*SHELL, command_line(trainer, placed)),
        row.log(trial),
        {LAUNCH: json.dumps(launch), **row.environment(trial)},
        cluster if row.ray_cpus and context.nodes > 1 else None,
        reports=True,
        resumed_at=row.resumed_at(trial),
    )
