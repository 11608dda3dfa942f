"""Build a recipe from what a reader found in a file: its version is found, then the recipe is
made.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grporecipe.errors import UserError
from grporecipe.files import Config, absolute, open_file
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.recipe import NO_CODE, NO_LAUNCH, Recipe
from grporecipe.model.setting import Version
from grporecipe.model.values import flatten
from grporecipe.project.repository import set_by_program
from grporecipe.project.settings import settings_for
from grporecipe.project.versions import Judged, find_replacement, find_version
from grporecipe.reading._detect import detect_framework, recognise_recipe

# bytes; recipes have kilobytes
LARGEST = 2 * 2**20
# a notebook may contain pictures
LARGEST_NOTEBOOK = 20 * 2**20
FEW_KEYS = 12
# verl's longest configuration has about 700
MOST_KEYS = 2000


@dataclass(frozen=True)
class Options:
    """The options of the command line.

    ``own_version`` is the version as stated (``--framework-version``), ``version`` a parsed release
    of the named framework. ``judged`` is a version found before, by which an edited text of the
    same file is judged again.
    """

    framework: str = "auto"
    version: Version | None = None
    processes: int | None = None
    train_prompts: int | None = None
    own_version: str | None = None
    # memory of the GPU to judge by
    gpu_gib: float | None = None
    # its name
    gpu: str | None = None
    judged: Judged | None = None

    def find_version(
        self,
        framework: str,
        config: Config,
        path: Path | None,
        folder: str = "",
        **more: Any,
    ) -> Judged:
        """Return the version to judge a recipe by, and its source."""
        if self.judged is not None:
            return self.judged
        return find_version(framework, config, self.own_version, self.version, path, folder, **more)


def load_text(path: Path) -> str:
    """Return a file's text with its line ends. Raises UserError if it is no text."""
    try:
        if path.is_dir():
            raise UserError("it is a folder. Name the files in it.")
        with open_file(path) as file:
            largest = LARGEST_NOTEBOOK if path.suffix == ".ipynb" else LARGEST
            data = file.read(largest + 1)
    except OSError as error:
        raise UserError(f"it cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        # a null byte in the name, or a pipe or device
        raise UserError(f"it cannot be read: {error}.") from None
    if len(data) > largest:
        raise UserError(f"it has more than {largest // 2**20} MiB, so it is not a recipe.")
    if b"\0" in data:
        raise UserError("it is binary, not text.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"it is not UTF-8 (byte {error.start}). Save it as UTF-8.") from None


def build_recipe(
    config: Config, options: Options, paths: tuple[str, ...] = (), **more: Any
) -> Recipe:
    """Return a recipe with its version, for the given framework or the one detected by keys and
    paths.
    """
    framework = options.framework
    # a small object made by a program is for TRL unless its keys show another framework
    if framework == "auto" and len(config) <= FEW_KEYS:
        framework = detect_framework(config, *paths)
    elif framework == "auto":
        framework = recognise_recipe(config, paths)
    processes = more.pop("processes", None)
    if options.processes is not None:
        processes = options.processes
    if FRAMEWORKS[framework].is_dotted:
        config = flatten(config)
    if len(config) > MOST_KEYS:
        raise UserError(f"it has {len(config):,} keys, so it is not a recipe.")
    path = None
    if "file" in more:
        path = Path(more["file"])
        if processes is None:
            processes = settings_for(path).processes
    launch = more.get("launch", NO_LAUNCH)
    judged = options.find_version(
        framework,
        config,
        path,
        more.pop("folder", ""),
        base=more.get("base", ""),
        code=more.get("code", NO_CODE),
        launch=launch,
    )
    own = {}
    if path is not None and FRAMEWORKS[framework].is_dotted:
        own = set_by_program(path, launch.program)
    is_stated = judged.source.kind in ("asked", "project", "vendored")
    replaced = ""
    if path is not None and not is_stated:
        replaced = find_replacement(framework, path)
        if "external_plugins" in config:
            from grporecipe.reading.python._launched import find_patch

            replaced = replaced or find_patch(config["external_plugins"], path)
    recipe = Recipe(
        framework,
        judged.version,
        config,
        processes,
        options.train_prompts,
        options.gpu_gib,
        options.gpu,
        version_source=judged.source,
        vendored=judged.vendored,
        assumed={**own, **judged.assumed},
        unchecked=judged.unchecked,
        replaced=replaced,
        **more,
    )
    return replace(recipe, assumed=FRAMEWORKS[framework].assume(recipe))


def find_near(name: str, file: Path, folder: str = "") -> Path | None:
    """Return a file that another file names. Relative paths start at its working directory, its
    folder or a folder above.
    """
    own, *above = list(absolute(file).parents)[:5]
    places = [own, Path(), *above]
    if folder:
        places = [Path(folder), *places]
    try:
        for place in places:
            # of an absolute name, the file itself
            if (place / name).is_file():
                return place / name
    except (OSError, ValueError):
        # a name that no file can have
        pass
    return None
