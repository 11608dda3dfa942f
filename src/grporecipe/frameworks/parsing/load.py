"""Read files as recipes: find the kind of file and the files that it names. Other files get a one-sentence error."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grporecipe.errors import UserError
from grporecipe.frameworks import FRAMEWORKS, detect, recognise
from grporecipe.frameworks.parsing.launcher_files import near, read_keys
from grporecipe.frameworks.parsing.project import settings_for
from grporecipe.frameworks.parsing.version_source import Judged, Wanted, find_version
from grporecipe.frameworks.parsing.yaml_text import FlatConfig, flatten, parse_nested, parse_yaml
from grporecipe.frameworks.signs import refuse_toml
from grporecipe.recipe import Recipe
from grporecipe.setting import Version

PYTHON = (".py", ".ipynb")
SHELLS = (".sh", ".bash", ".slurm", ".sbatch", ".zsh")
LARGEST = 2 * 2**20  # bytes; recipes have kilobytes
LARGEST_NOTEBOOK = 20 * 2**20  # a notebook may contain pictures
FEW_KEYS = 12
MOST_KEYS = 2000  # verl's longest configuration has about 700


@dataclass(frozen=True)
class Options:
    """The options of the command line.

    ``own_version`` is the version of any framework (``--framework-version``), ``trl_version`` that of frameworks that follow
    TRL. ``version`` is a parsed release of the named framework. ``judged`` is a version found before, by which an edited text
    of the same file is judged again.
    """

    framework: str = "auto"
    version: Version | None = None
    processes: int | None = None
    train_prompts: int | None = None
    own_version: str | None = None
    gpu_gib: float | None = None  # memory of the GPU to judge by
    gpu: str | None = None  # its name
    trl_version: str | None = None
    judged: Judged | None = None

    def find_version(self, framework: str, config: Mapping[str, Any], path: Path | None, **more: Any) -> Judged:
        """Return the version to judge a recipe by, and its source."""
        if self.judged is not None:
            return self.judged
        return find_version(framework, config, Wanted(self.own_version, self.trl_version, self.version), path, **more)


def load_recipe(path: Path, options: Options) -> Recipe:
    """Return the recipe in a file: a flat YAML (JSON is YAML), or the last launch in a shell script.

    Raises UserError also if a script's base recipe is missing, because most of the keys are then unknown.
    """
    recipe = parse_recipe(path, load_text(path), options)
    named = recipe.unresolved.get("config")
    if named is not None and "$" in named:
        raise UserError(f"--config {named}: only a running shell knows this file. Name the recipe itself.")
    if named is not None:
        raise UserError(
            f"--config {named}: no such file from here or from the script's folders. Name the recipe itself."
        )
    return recipe


def load_recipes(path: Path, options: Options) -> list[Recipe]:
    """Return every recipe in a file, in order."""
    return parse_recipes(path, load_text(path), options)


def parse_recipes(path: Path, text: str, options: Options) -> list[Recipe]:
    """Return every recipe in the present or future text of a file; at least one."""
    options = _of_project(path, options)
    if path.suffix in PYTHON:
        from grporecipe.frameworks.parsing.python.configs import recipes_of

        return recipes_of(path, text, options)
    if path.suffix in SHELLS or text.startswith("#!"):
        from grporecipe.frameworks.parsing.scripts import recipes_of_script

        return recipes_of_script(path, text, options)
    return [parse_recipe(path, text, options)]


def shown_text(path: Path, text: str) -> str:
    """Return the text to which a recipe's line numbers refer: for a notebook, the code of its cells."""
    if path.suffix != ".ipynb":
        return text
    from grporecipe.frameworks.parsing.python.text import code_cells

    return "\n".join(source for _, source in code_cells(text))


def parse_recipe(path: Path, text: str, options: Options) -> Recipe:
    """Return the recipe in the present or future text of a file: the first in Python, the last launch in a script."""
    options = _of_project(path, options)
    if path.suffix in PYTHON:
        return parse_recipes(path, text, options)[0]
    if path.suffix in SHELLS or text.startswith("#!"):
        return parse_recipes(path, text, options)[-1]
    if path.suffix == ".toml":
        refuse_toml(text)
    flat = parse_yaml(text)
    framework = recognise(flat.config, [str(path)]) if options.framework == "auto" else options.framework
    flat = parse_nested(text) if FRAMEWORKS[framework].is_dotted else flat
    return _from_yaml(path, flat, replace(options, framework=framework))


def _of_project(path: Path, options: Options) -> Options:
    """Return the options. If no framework is given, take it from the project's settings."""
    framework = settings_for(path).framework if options.framework == "auto" else None
    return options if framework is None else replace(options, framework=framework)


def load_text(path: Path) -> str:
    """Return a file's text with its line ends. Raises UserError if it is no text."""
    try:
        if path.is_dir():
            raise UserError("it is a folder. Name the files in it.")
        with path.open("rb") as file:
            largest = LARGEST_NOTEBOOK if path.suffix == ".ipynb" else LARGEST
            data = file.read(largest + 1)
    except OSError as error:
        raise UserError(f"it cannot be read: {error.strerror or error}.") from None
    except ValueError as error:  # a null byte in the name
        raise UserError(f"it cannot be read: {error}.") from None
    if len(data) > largest:
        raise UserError(f"it has more than {largest // 2**20} MiB, so it is not a recipe.")
    if b"\0" in data:
        raise UserError("it is binary, not text.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"it is not UTF-8 (byte {error.start}). Save it as UTF-8.") from None


def build_recipe(config: Mapping[str, Any], options: Options, paths: tuple[str, ...] = (), **more: Any) -> Recipe:
    """Return a recipe with its version, for the given framework or the one detected by keys and paths."""
    framework = options.framework
    if framework == "auto":  # a small object made by a program is for TRL unless its keys show another framework
        framework = detect(config, *paths) if len(config) <= FEW_KEYS else recognise(config, paths)
    processes = options.processes if options.processes is not None else more.pop("processes", None)
    more.pop("processes", None)
    if FRAMEWORKS[framework].is_dotted:
        config = flatten(config)
    if len(config) > MOST_KEYS:
        raise UserError(f"it has {len(config):,} keys, so it is not a recipe.")
    file = more.get("file")
    if processes is None and file is not None:
        processes = settings_for(Path(file)).processes
    judged = options.find_version(framework, config, None if file is None else Path(file),
                                  base=more.get("base", ""), code=more.get("code"), launch=more.get("launch"))  # fmt: skip
    return Recipe(framework, judged.version, config, processes, options.train_prompts, options.gpu_gib, options.gpu,
                  version_source=judged.source, vendored=judged.vendored, **more)  # fmt: skip


def _from_yaml(path: Path, flat: FlatConfig, options: Options) -> Recipe:
    if {"distributed_type", "compute_environment"} & flat.config.keys():
        raise UserError("it is an accelerate configuration, not a recipe. Name the recipe, and --processes.")
    fields = read_keys(flat.config, lambda name: find_near(name, path))
    return build_recipe(
        flat.config,
        options,
        (str(path),),
        file=str(path),
        lines=flat.lines,
        duplicates=flat.duplicates,
        launch_fields=fields,
    )


def find_near(name: str, file: Path, folder: str = "") -> Path | None:
    """Return a file that another file names. Relative paths start at its working directory, its folder or a folder above."""
    own, *above = list(file.absolute().parents)[:5]
    return near([*([Path(folder)] if folder else []), own, Path(), *above])(name)
