"""Read files as recipes: find the kind of file and the files that it names. Other files get a
one-sentence error.
"""

from dataclasses import replace
from json import JSONDecodeError
from pathlib import Path

from grporecipe.errors import UserError
from grporecipe.fields.recipes import read_recipe
from grporecipe.files import parse_json
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.recipe import NO_CODE, Recipe
from grporecipe.project.repository import find_root
from grporecipe.project.settings import settings_for
from grporecipe.reading._detect import by_words, recognise_recipe
from grporecipe.reading.build import Options, build_recipe, find_near, load_text
from grporecipe.reading.launcher_files import read_keys
from grporecipe.reading.signs import refuse_toml
from grporecipe.reading.yaml_text import FlatConfig, parse_nested, parse_yaml

# Also what callers need with these functions.
__all__ = [
    "Options",
    "build_recipe",
    "load_recipe",
    "load_recipes",
    "load_text",
    "parse_recipe",
    "stated_processes",
]
PYTHON = (".py", ".ipynb")
# a YAML of theirs may be for a program with keys of its own
OWN_READERS = ("trl", "open-r1")
SHELLS = (".sh", ".bash", ".slurm", ".sbatch", ".zsh")


def load_recipe(path: Path, options: Options) -> Recipe:
    """Return the recipe in a file: a flat YAML (JSON is YAML), or the last launch in a shell
    script.

    Raises UserError also if a script's base recipe is missing, because most of the keys are then
    unknown.
    """
    recipe = parse_recipe(path, load_text(path), options)
    named = recipe.unresolved.get("config")
    if named is not None:
        why = "no such file from here or from the script's folders"
        if "$" in named:
            why = "only a running shell knows this file"
        raise UserError(f"--config {named}: {why}. Name the recipe itself.")
    return recipe


def stated_processes(path: Path) -> int | None:
    """Return the training processes that a recipe states itself if these are several; None if it
    cannot be read.
    """
    try:
        recipe = load_recipe(path, Options())
        setting = read_recipe(recipe).setting
    except UserError:
        return None
    is_stated = bool(recipe.processes) or "processes" in setting.given
    if is_stated and (setting.processes or 1) > 1:
        return setting.processes
    return None


def load_recipes(path: Path, options: Options) -> list[Recipe]:
    """Return every recipe in a file, in order."""
    return parse_recipes(path, load_text(path), options)


def parse_recipes(path: Path, text: str, options: Options) -> list[Recipe]:
    """Return every recipe in the present or future text of a file; at least one."""
    options = _of_project(path, options)
    if path.suffix in PYTHON:
        from grporecipe.reading.python._configs import recipes_of

        return recipes_of(path, text, options)
    if path.suffix in SHELLS or text.startswith("#!"):
        from grporecipe.reading._scripts import recipes_of_script

        return recipes_of_script(path, text, options)
    return [_parse_mapping(path, text, options)]


def shown_text(path: Path, text: str) -> str:
    """Return the text to which a recipe's line numbers refer: for a notebook, the code of its
    cells.
    """
    if path.suffix != ".ipynb":
        return text
    from grporecipe.reading.python.source import code_cells

    return "\n".join(source for _, source in code_cells(text))


def parse_recipe(path: Path, text: str, options: Options) -> Recipe:
    """Return the recipe in the present or future text of a file: the first in Python, the last
    launch in a script.
    """
    recipes = parse_recipes(path, text, options)
    if path.suffix in PYTHON:
        return recipes[0]
    return recipes[-1]


def _parse_mapping(path: Path, text: str, options: Options) -> Recipe:
    """Return the recipe in a file that is one mapping."""
    if path.suffix == ".toml":
        refuse_toml(text)
    flat = parse_yaml(text)
    framework = options.framework
    if framework == "auto":
        framework = recognise_recipe(flat.config, [str(path)])
        if framework == next(iter(FRAMEWORKS)) and find_root(path) is None:
            framework = by_words(flat.config) or framework
    if path.suffix == ".json":
        _refuse_bad_json(text)
    if FRAMEWORKS[framework].is_dotted:
        flat = parse_nested(text)
    return _from_yaml(path, flat, replace(options, framework=framework))


def _refuse_bad_json(text: str) -> None:
    """Raise UserError for JSON that only YAML reads, such as with a comma behind the last key."""
    try:
        parse_json(text.removeprefix("\ufeff"))
    except JSONDecodeError as error:
        raise UserError(
            f"line {error.lineno}: it is not JSON ({error.msg}). Correct it, or name it .yaml."
        ) from None
    except ValueError:
        # too deep, which the reader of YAML tells
        return


def _of_project(path: Path, options: Options) -> Options:
    """Return the options. If no framework is given, take it from the project's settings."""
    if options.framework != "auto":
        return options
    return replace(options, framework=settings_for(path).framework or "auto")


def _from_yaml(path: Path, flat: FlatConfig, options: Options) -> Recipe:
    if {"distributed_type", "compute_environment"} & flat.config.keys():
        raise UserError(
            "it is an accelerate configuration, not a recipe. Name the recipe, and --processes."
        )
    fields = read_keys(flat.config, lambda name: find_near(name, path))
    code = NO_CODE
    framework = FRAMEWORKS[options.framework]
    if (
        framework.name in OWN_READERS
        and flat.config.keys() - framework.takes(framework.version).keys()
    ):
        from grporecipe.reading._scripts import read_launching
        from grporecipe.reading.python._launched import read_launched, read_nearest, read_opening

        code = read_nearest(path) or read_launching(path) or read_opening(path)
        if not code and framework.program:
            code = read_launched(framework.program, path)
    return build_recipe(
        flat.config,
        options,
        (str(path),),
        file=str(path),
        lines=flat.lines,
        duplicates=flat.duplicates,
        launch_fields=fields,
        code=code,
    )
