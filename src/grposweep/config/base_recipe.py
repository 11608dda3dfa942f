"""The recipe that an external trainer starts from, and TRL's keys in ``trainer.args``."""

import subprocess
import sys
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from grporecipe.errors import UserError
from grporecipe.fields.reading import read_rows, values_of
from grporecipe.fields.recipes import read_recipe, write_recipe
from grporecipe.fields.writing import in_completions
from grporecipe.frameworks.trl.keys import parse_version
from grporecipe.model.framework import FRAMEWORKS, Framework, version_of
from grporecipe.model.recipe import Recipe
from grporecipe.model.setting import TRL, Setting, Version
from grporecipe.reading.load import Options, load_recipe, parse_recipe
from grposweep.config.asked import asked_recipe, asks, file_stamp
from grposweep.redaction import refuse_secrets
from grposweep.registries import EXTERNAL, is_opaque
from grposweep.schema import Trainer

ASKED = "from importlib.metadata import version; print(version('{package}'))"


def framework_of(trainer: Trainer) -> Framework:
    """Return the framework of an external trainer's recipes."""
    return FRAMEWORKS[EXTERNAL[trainer.kind].framework]


def read_args(trainer: Trainer) -> dict[str, Any]:
    """Return the setting's fields that ``trainer.args`` sets, as in a TRL recipe with these keys."""
    if not trainer.args:
        return {}
    framework = FRAMEWORKS["trl"]
    return read_rows(framework, values_of(Recipe("trl", TRL, dict(trainer.args))), framework.keys_at(TRL))


def load_base(trainer: Trainer, processes: int | None = None, nodes: int = 1) -> Recipe:
    """Read the base recipe; empty if there is none.

    Raises UserError if it cannot be read.
    """
    if asks(trainer):
        return asked_recipe(trainer, processes, nodes)
    if is_opaque(trainer.kind):
        return Recipe(EXTERNAL[trainer.kind].framework, TRL, {})
    framework = EXTERNAL[trainer.kind].framework
    version = installed_version(trainer.python or sys.executable, framework)
    if trainer.recipe is None:
        return Recipe(framework, version, dict(trainer.args), processes)
    path = Path(trainer.recipe)
    try:
        found = _loaded(path, file_stamp(path), Options(framework, version, processes))
        return replace(found, config={**found.config, **trainer.args}) if trainer.args else found
    except UserError as error:
        # lint's option is no key of a sweep, whose trainer decides whose recipe it is
        program = FRAMEWORKS[framework].traits.display_name
        advice = f"It is read as a recipe of {program}: set a key of GRPO in it, such as num_generations."
        said = str(error).replace("Name its framework with --framework if it is one.", advice)
        raise UserError(f"trainer.recipe={trainer.recipe}: {said}") from error


@lru_cache(maxsize=16)
def _loaded(path: Path, stamp: tuple[int, int], options: Options) -> Recipe:  # noqa: ARG001 - a key of the cache
    """Read a recipe under the program's keys; a recipe of another framework is translated."""
    theirs = load_recipe(path, replace(options, framework="auto", version=None))
    refuse_secrets(theirs.config)
    one, other = (FRAMEWORKS[name].traits for name in (theirs.framework, options.framework))
    if one == other or (one.follows_trl and other.follows_trl):
        return load_recipe(path, options)
    written = write_recipe(read_recipe(theirs).setting, options.framework)
    return parse_recipe(Path(written.file_name), written.recipe, options)


@lru_cache(maxsize=16)
def installed_version(python: str, framework: str) -> Version:
    """Return the TRL that an interpreter would import, for frameworks built on TRL; otherwise the framework's version."""
    known = version_of(framework)
    if not FRAMEWORKS[framework].traits.follows_trl:
        return known
    try:
        asked = [python, "-c", ASKED.format(package="trl")]
        answer = subprocess.run(asked, capture_output=True, text=True, errors="replace", check=False, timeout=60)
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"trainer.python={python}: it gave no answer in 60 s. Name a Python interpreter that starts faster."
        ) from error
    except OSError as error:
        raise UserError(
            f"trainer.python={python}: it cannot be started ({error.strerror}). Name a Python interpreter."
        ) from error
    said = answer.stdout.split()  # a sitecustomize of that environment may print before it
    return parse_version(said[-1]) if answer.returncode == 0 and said else known


def base_of(trainer: Trainer, processes: int, nodes: int = 1) -> Setting:
    """Return the base's numbers with sizes in completions.

    No field counts as set by the user, because a point sets all. What a command's trainer takes from data is unknown. So is
    everything about a program of which only the command is known, apart from the length that the user states.
    """
    recipe = load_base(trainer, processes, nodes)
    parsed = read_recipe(recipe)
    setting, _ = in_completions(parsed.setting)
    if is_opaque(trainer.kind):
        every = frozenset(field.name for field in fields(Setting)) - {"max_steps"}
        return setting.replace({"given": frozenset(), "lines": {}, "processes": None, "unknown": every})
    unknown = (
        (parsed.unknown | (set() if recipe.version_source.known else {"version"})) if asks(trainer) else frozenset()
    )
    return setting.replace({"given": frozenset(), "lines": {}, "processes": processes, "unknown": unknown})
