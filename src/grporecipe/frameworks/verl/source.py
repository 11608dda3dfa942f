"""Read verl's own source in a repository: compose a program's configuration from YAML files,
without executing anything.

It is composed here and not by Hydra for two reasons. It takes 0.1 s instead of about 1 s, and no
interpolation or resolver of a foreign file is executed. The result equals Hydra's in 49 of 49
compositions (benchmarks/wild/compose_verl.py).

Defaults lists are followed as in Hydra, with the features that verl and its forks use: groups with
packages and interpolated options, ``_self_``, ``@package`` headers, ``optional``, ``override``, and
search paths. Source: hydra 1.3 _internal/defaults_list.py, core/default_element.py.
"""

import ast
import posixpath
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from grporecipe.errors import UserError
from grporecipe.files import Config, absolute, without
from grporecipe.frameworks.verl.keys import (
    GROUP,
    HOLDS_A_STEP,
    OWN_PROGRAMS,
    engine_of,
    known,
    releases,
    spec_of,
)
from grporecipe.model.framework import Vendored
from grporecipe.model.recipe import Recipe
from grporecipe.model.releases import KeyTable
from grporecipe.model.setting import Version
from grporecipe.model.values import Fields, flatten, nest
from grporecipe.project.repository import LARGEST_SOURCE, head_of
from grporecipe.reading.python.source import parse_python
from grporecipe.reading.python.vendored import code_of, missing_checks, nearest_release
from grporecipe.reading.yaml_text import parse_nested

CONFIG = "verl/trainer/config"
# of one configuration; verl's has about 30
MOST_FILES = 200
# folders above a script or the package in which its program is looked for
ABOVE = 5
_HEADER = r"(?m)^#\s*@package\s+(\S+)"
_CHOICE = r"\$\{([^{}]+)\}"
_VERSION = r"(\d+)\.(\d+)(?:\.(\d+))?(?:\.post\d+)?"


class Main(NamedTuple):
    """The folder and the name of the configuration that a program composes."""

    folder: Path
    name: str


class Composer:
    """Composes one configuration from folders. The first folder with a file wins. ``choices`` are
    options by group.
    """

    def __init__(self, folders: tuple[Path, ...], choices: Mapping[str, str]) -> None:
        self.folders, self.choices, self.files = folders, dict(choices), 0
        self.chosen: dict[str, str] = {}
        self.composed: Fields = {}

    def compose(self, name: str) -> Fields:
        """Return the keys of a configuration with their defaults.

        Raises UserError if a file is missing, is no YAML, or is outside the folders.
        """
        self._include("", name, "")
        self.composed.pop("hydra", None)
        return flatten(self.composed)

    def _include(self, group: str, name: str, package: str, is_optional: bool = False) -> None:
        """Merge a file and the files in its defaults list into a package."""
        path = posixpath.normpath(posixpath.join(group, name))
        text = self._read(path)
        if text is None and is_optional:
            return
        if text is None:
            raise UserError(f"{path}.yaml: the configuration names it, and it is not there.")
        flat = _parse(text)
        content = nest(without(flat.config, ("defaults",)))
        own = posixpath.dirname(path)
        header = re.search(_HEADER, text)
        if header is not None:
            package = header[1].replace("_global_", "").replace("_group_", own.replace("/", "."))
        entries = flat.config.get("defaults") or []
        for name, option in _overridden(entries):
            self.choices.setdefault(name, option)
        if package:
            content = nest({package: content})
        if "_self_" not in entries:
            entries = [*entries, "_self_"]
        for entry in entries:
            if entry == "_self_":
                merge(self.composed, content)
            else:
                self._follow(entry, own, package)

    def _follow(self, entry: Any, group: str, package: str) -> None:
        """Include the file of one entry of a defaults list."""
        if isinstance(entry, str):
            name, _, at = entry.partition("@")
            self._include(group, name, _join(package, at))
            return
        if not isinstance(entry, dict) or len(entry) != 1:
            raise UserError(f"defaults: {entry!r}: it is neither a file nor an option of a group.")
        written, option = next(iter(entry.items()))
        *words, name = str(written).split()
        inner, _, at = name.partition("@")
        if "override" in words or inner.startswith("hydra/"):
            return
        option = self.choices.get(name, option)
        into = _join(package, at or inner.strip("./").replace("/", "."))
        options = option if isinstance(option, list) else [option or ""]
        for one in options:
            self.chosen[inner] = chosen = re.sub(
                _CHOICE, lambda match: self.chosen.get(match[1], match[0]), str(one)
            )
            if chosen:
                place = inner.lstrip("/") if inner.startswith("/") else posixpath.join(group, inner)
                self._include(place, chosen, into, "optional" in words)

    def _read(self, path: str) -> str | None:
        self.files += 1
        if self.files > MOST_FILES:
            raise UserError(
                f"it has more than {MOST_FILES} files, so it is no configuration of verl."
            )
        if path.startswith((".", "/")):
            raise UserError(f"{path}.yaml: it is outside the folder of the configuration.")
        name = path if path.endswith((".yaml", ".yml")) else f"{path}.yaml"
        for folder in self.folders:
            if (folder / name).is_file():
                return head_of(folder / name, LARGEST_SOURCE)
        return None


# the recipes of a repository compose the same files
_parse = lru_cache(maxsize=MOST_FILES)(parse_nested)


def _overridden(entries: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield the groups whose option a defaults list changes, at any level."""
    for entry in entries:
        options = entry if isinstance(entry, dict) else {}
        for written, option in options.items():
            if str(written).startswith("override "):
                yield str(written).split()[-1].lstrip("/"), str(option)


def _join(package: str, name: str) -> str:
    if name.startswith("_global_"):
        return name.removeprefix("_global_").lstrip(".")
    return ".".join(filter(None, (package, name)))


def merge(into: Fields, other: Config) -> None:
    """Merge a nested mapping into another one. A list or a scalar replaces the old value."""
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = _copy(value)


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(inner) for key, inner in value.items()}
    return value


def read_source(folder: Path, recipe: Recipe) -> Vendored:
    """Return the keys of the configuration that a recipe's program composes, and the version of the
    source.

    ``folder`` holds the package ``verl``. The keys are None if the configuration cannot be
    composed. A source without a version, or with a development version, gets that of the release
    whose keys are most similar.
    """
    choices = {
        key.lstrip("+"): str(value)
        for key, value in recipe.config.items()
        if "." not in key.partition("@")[0]
    }
    keys = _keys(folder, find_main(folder, recipe), choices)
    version = _version(folder)
    own = keys
    if version is None and own is None:
        own = _keys(folder, Main(folder / CONFIG, "ppo_trainer"), {})
    if version is None and own is not None:
        version = nearest_release(own, partial(known, engine=engine_of(recipe)), releases())
    return Vendored(keys, version, *_evidence(folder))


# The code on which a rule rests: the files that may hold it in some release, and what it looks like
# there.
CHECKS = {
    "GB401": r"\breal_train_batch_size\s*%",
    "GB402": HOLDS_A_STEP,
    "GB413": r"\bassert\s+max_token_len\s*>=\s*max_seq_len",
}
_ALONE = r"\bassert\s+[\w.]*\bactor_rollout_ref\.rollout\.n\s*==\s*1\b"
CHECKED_IN = (
    "verl/trainer/*.py",
    "verl/trainer/ppo/*.py",
    "verl/trainer/ppo/v1/*.py",
    "verl/utils/config.py",
    "verl/utils/seqlen_balancing.py",
    "verl/workers/config/*.py",
)
_REPEATED = r"\brepeat_times\s*=\s*self\.config\.([\w.]+)"
OF_VALIDATION = "actor_rollout_ref.rollout.val_kwargs.n"


@lru_cache(maxsize=8)
def _evidence(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return where this source does other things than verl: the key that sizes groups, and checks
    that it does not have.
    """
    texts = code_of(folder, CHECKED_IN)
    places = []
    for name, text in texts.items():
        keys = [key for key in re.findall(_REPEATED, text) if key not in (GROUP, OF_VALIDATION)]
        places += [f"{name} sizes groups by {key}" for key in keys]
    alone = [name for name, text in texts.items() if re.search(_ALONE, text)]
    places += [f"{name} wants it to be 1" for name in alone]
    assumed = {GROUP: places[0]} if places else {}
    return assumed, missing_checks(texts, CHECKS, "ray_trainer.py")


def _keys(folder: Path, main: Main | None, choices: Mapping[str, str]) -> KeyTable | None:
    if main is None or "$" in main.name:
        return None
    try:
        values = Composer((main.folder, folder / CONFIG), choices).compose(main.name)
    except (UserError, RecursionError, OSError, ValueError):
        return None
    return KeyTable((name, spec_of(value)) for name, value in values.items())


def _version(folder: Path) -> Version | None:
    # 0.8.0.dev may be as 0.7
    match = re.fullmatch(_VERSION, head_of(folder / "verl" / "version" / "version").strip())
    if match:
        return (int(match[1]), int(match[2]), int(match[3] or 0))
    return None


def find_main(folder: Path, recipe: Recipe) -> Main | None:
    """Return the configuration of a recipe's program: that of its ``hydra.main``, or the one on its
    command line.
    """
    program = recipe.launch.program or "verl.trainer.main_ppo"
    file = next((path for path in _programs(folder, program, recipe) if path.is_file()), None)
    if file is None:
        own = Path(recipe.base).stem or "ppo_trainer"
        if program.endswith(OWN_PROGRAMS):
            return Main(folder / CONFIG, own)
        return None
    stated = _decorated(head_of(file, LARGEST_SOURCE))
    if stated is None and not recipe.base:
        return None
    configured, name = stated or ("config", "")
    named = Path(recipe.base.removesuffix(".yaml")) if recipe.base else Path(name)
    places = [file.parent / configured, named.parent, folder / named.parent]
    if len(named.parts) > 1:
        places.insert(0, file.parent / named.parent)
    place = next((place for place in places if (place / f"{named.name}.yaml").is_file()), places[0])
    if named.name:
        return Main(place, named.name)
    return None


def _programs(folder: Path, program: str, recipe: Recipe) -> Iterator[Path]:
    """Yield the possible paths of a program: below the package's folder, folders above it, or
    folders above the script.
    """
    name = program if program.endswith(".py") else program.replace(".", "/") + ".py"
    script = list(absolute(recipe.file).parents)
    for place in (folder, *list(absolute(folder).parents)[:2], Path(), *script[:ABOVE]):
        yield place / name


def _decorated(text: str) -> tuple[str, str] | None:
    """Return the folder and the name in the decorator ``hydra.main``."""
    tree = parse_python(text)
    if tree is None:
        return None
    calls: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            calls += node.decorator_list
    for call in calls:
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("main"):
            given = {
                word.arg: word.value.value
                for word in call.keywords
                if isinstance(word.value, ast.Constant)
            }
            return str(given.get("config_path") or "."), str(
                given.get("config_name") or ""
            ).removesuffix(".yaml")
    return None
