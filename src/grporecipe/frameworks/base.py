"""Define a framework: its traits, its keys, how a recipe is read and written, and how it is started.

`Framework` is the contract. A framework is one folder that defines ``FRAMEWORK``; the registry is
``registries.FRAMEWORKS``. Fields in its table (`grporecipe.frameworks.reading`) need no code of their own.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property, lru_cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from grporecipe import registries
from grporecipe.files import parse_json
from grporecipe.frameworks.parsing.shell import Word
from grporecipe.frameworks.parsing.yaml_text import convert, resolve
from grporecipe.recipe import KeySpec, Recipe
from grporecipe.rules.registry import spell
from grporecipe.setting import FrameworkTraits, Setting, Version

RELEASE = "release"  # as the type of a row: type and default are those of the release's key
ABSENT = object()  # the result of ``derive`` if the recipe does not state the field


class KeyTable(dict[str, KeySpec]):
    """The keys of one framework and release."""

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The default of each key."""
        return {name: key.default for name, key in self.items()}

    @cached_property
    def sections(self) -> frozenset[str]:
        """The sections of dotted keys."""
        return frozenset(name[:at] for name in self for at, letter in enumerate(name) if letter == ".")

    @cached_property
    def below(self) -> dict[str, list[str]]:
        """For each word, the dotted keys that have it among their sections."""
        found: dict[str, list[str]] = {}
        for name in self:
            for word in set(name.split(".")[:-1]):
                found.setdefault(word, []).append(name)
        return found


class ParsedRecipe(NamedTuple):
    """A setting, and its fields that the recipe sets to unreadable values (they hold a default)."""

    setting: Setting
    unknown: frozenset[str] = frozenset()


@dataclass(frozen=True)
class TranslatedRecipe:
    """A native recipe with every default that differs between frameworks made explicit.

    ``recipe`` is the text of the native file ``file_name`` (a YAML, or a script). ``command`` launches it from the folder
    it is in, with ``environment`` added. ``losses`` list what the framework cannot do or does differently, and why.
    """

    recipe: str
    file_name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    losses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Values:
    """The values behind a recipe's keys.

    ``values`` includes the release's defaults. ``stated`` holds only the readable values that the recipe sets. ``given`` are the
    keys that it sets, ``bad`` those with an unreadable value, and ``lines`` their lines.
    """

    recipe: Recipe
    values: Mapping[str, Any]
    stated: Mapping[str, Any]
    given: frozenset[str]
    bad: frozenset[str]
    lines: Mapping[str, int] = field(default_factory=dict)

    def get(self, key: str, kind: str = "any", default: Any = None) -> Any:
        """Return a key's value as a type, with references followed. The default replaces a missing or unreadable value."""
        found = convert(resolve(self.values, key), f"{kind}?")
        return default if found.value is None or found.trouble == "type" else found.value

    def whole(self, key: str, default: int = 0) -> int:
        """Return a count."""
        return int(self.get(key, "int", default))

    def number(self, key: str, default: float = 0.0) -> float:
        """Return a number."""
        return float(self.get(key, "float", default))

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a switch."""
        return bool(self.get(key, "bool", default))

    def word(self, key: str, default: str = "") -> str:
        """Return a word."""
        return str(self.get(key, "any", default))


@dataclass(frozen=True)
class Field:
    """A row of a framework's table: a field of the setting and its native key.

    A row with a ``type`` (as in `KeySpec`, or ``RELEASE``) is read as this type through ``read``, and written through
    ``write``. ``default`` is the value if recipe and release have none. A row that needs several keys has a
    ``derive``, which returns ``ABSENT`` if they do not state the field. If one of ``also`` cannot be read, the field is unknown.
    A row with neither only names the key: the framework's own functions read and write it. A row without a name reserves
    the place of a key that they write.

    ``rollouts``: the key counts rollouts, the field optimizer steps. ``before`` maps a release to the key that was used
    until then. ``fixable``: a fix may set the key. ``judged``: a rule or the plan depends on the key. Of the rows of a
    release, those with ``always`` are written even with their default value, and those without ``plain`` by functions only.
    """

    name: str
    key: str
    type: str = ""
    default: Any = None
    read: Callable[[Any], Any] | None = None
    write: Callable[[Any], Any] | None = None
    derive: Callable[[Values], Any] | None = None
    also: frozenset[str] = frozenset()
    rollouts: bool = False
    before: Mapping[Version, str] = field(default_factory=dict)
    fixable: bool = True
    judged: bool = True
    always: bool = False
    plain: bool = True

    def key_at(self, version: Version) -> str:
        """Return the native key in a release."""
        return next((key for until, key in sorted(self.before.items()) if version < until), self.key)

    def native(self, value: Any) -> Any:
        """Return a value of the setting in the key's form."""
        return value if self.write is None else self.write(value)


@dataclass(frozen=True)
class Command:
    """A command of the framework that starts a training: ``swift rlhf``, ``trl grpo``.

    ``word`` follows the command's name, and ``program`` is what it runs. ``takes_file``: the recipe may follow the word
    without an option. ``counts`` is how the number of processes is stated: by the options of another launcher, or by
    environment variables ("environment"). ``passes_on``: options of accelerate may be mixed with the recipe's.
    """

    word: str
    program: str
    takes_file: bool = False
    counts: str = "environment"
    passes_on: bool = False


class Vendored(NamedTuple):
    """The version and the readable keys and defaults in a framework's own source."""

    keys: Mapping[str, KeySpec] | None
    version: Version | None = None


@dataclass(frozen=True)
class Vendor:
    """How a framework's own source is recognised and read in a repository, without executing it.

    ``marker`` is the path of a file (or a pattern) that only this source has, below the folder that holds the package.
    ``read`` gets that folder and the recipe, whose version is the default.
    """

    marker: str
    read: Callable[[Path, Recipe], Vendored]


@dataclass(frozen=True, eq=False)
class Framework:
    """Everything that a framework needs to be detected, read, judged, planned, fixed and translated.

    Args:
        traits: its properties for the plan and the rules.
        version: the default release.
        fields: its table of fields.
        takes: the keys of a release, with types and defaults.
        keys: keys that no other framework has; for dotted keys, their first parts.
        programs: matches its programs and paths.
        trainings: matches the programs that are certain to be a GRPO training with dotted overrides.
        sections: the first words of its dotted keys.
        renamed: older names of keys, read as the present ones.
        commands: its commands by name.
        expand: returns the launch in a wrapper script, and the number of its GPUs that a vLLM server may take.
        releases: the releases for ``--framework-version``; None if there is no choice.
        key_table: the keys that a recipe may set, if they depend on more than the release.
        collect: returns the values of a recipe's keys; by default under present names, with the release's defaults.
        unstated: the fields of an empty recipe for which the release has no key with a default.
        keys_of: the native keys of one recipe, if they depend on its other keys.
        derived: functions for fields that follow from several keys, in order. Each gets the values and the fields so far.
        render: writes a setting as a recipe; by default from the table.
        native_keys: returns a setting in completions as keys and values of a release; by default those of ``render``.
        special: for fixes, fields whose change sets more than their own key.
        base_config: returns the base configuration of a name if its file is missing; None if it is unknown.
        config_defaults: the Hydra defaults list of a written recipe.
        environment_key: the key of a recipe that holds variables of the environment.
        misfits: returns the keys of a recipe that its release refuses, if the table alone does not show them.
        passed_on: keys that a recipe may set for its launcher, in addition to those of any release.
        packages: the PyPI packages that a repository pins for it.
        vendor: how its own source is found and read in a repository that contains it.
        memory: returns the fields for the memory estimate, from a recipe's values and its setting; None if unknown.
        counts_itself: its recipes state the number of training GPUs, and its command does not.
        own_configs: matches the paths of its programs' own default configurations, which are complete only with a launch.
        is_composed: whether the configuration below a launch's overrides is known; None if it always is.

    """

    traits: FrameworkTraits
    version: Version
    fields: tuple[Field, ...]
    takes: Callable[[Version], Mapping[str, KeySpec]]
    keys: frozenset[str] = frozenset()
    programs: re.Pattern[str] | None = None
    trainings: re.Pattern[str] | None = None
    sections: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, Command] = field(default_factory=dict)
    expand: Callable[[list[Word]], tuple[list[Word], int] | None] | None = None
    releases: Callable[[], Sequence[Version]] | None = None
    key_table: Callable[[Recipe], Mapping[str, KeySpec]] | None = None
    collect: "Callable[[Framework, Recipe], Values] | None" = None
    unstated: Callable[[Mapping[str, Any], Version], Mapping[str, Any]] | None = None
    keys_of: Callable[[Values], Mapping[str, str]] | None = None
    derived: tuple[Callable[[Values, Mapping[str, Any]], Mapping[str, Any]], ...] = ()
    render: "Callable[[Framework, Setting], TranslatedRecipe] | None" = None
    native_keys: "Callable[[Framework, Setting, Version], Mapping[str, Any]] | None" = None
    special: "Mapping[str, NativeChange]" = field(default_factory=dict)
    base_config: Callable[[str, Version], Mapping[str, Any] | None] | None = None
    config_defaults: tuple[str, ...] = ()
    environment_key: str = ""
    misfits: Callable[[Recipe], Iterable[str]] | None = None
    passed_on: frozenset[str] = frozenset()
    packages: tuple[str, ...] = ()
    vendor: "Vendor | None" = None
    memory: "Callable[..., dict[str, Any] | None] | None" = None
    counts_itself: bool = False
    own_configs: re.Pattern[str] | None = None
    is_composed: "Callable[[Recipe], bool] | None" = None

    def __post_init__(self) -> None:
        spell(self.traits)

    @property
    def name(self) -> str:
        """The name on command lines."""
        return self.traits.name

    @property
    def is_dotted(self) -> bool:
        """Return whether keys are dotted, and overridden as ``a.b=c``."""
        return self.traits.syntax == "dotted"

    @cached_property
    def by_name(self) -> dict[str, Field]:
        """The rows of the table by the setting's field."""
        return {row.name: row for row in self.fields if row.name}

    @cached_property
    def never_null(self) -> frozenset[str]:
        """The keys whose namesake in the setting always has a value."""
        nullable = {known.name for known in fields(Setting) if "None" in str(known.type)}
        return frozenset(row.key for row in self.fields if row.key == row.name) - nullable

    def known_keys(self, recipe: Recipe) -> Mapping[str, KeySpec]:
        """Return the keys that a recipe may set: of the framework's source in the repository, otherwise of its release."""
        if recipe.vendored is not None:
            return recipe.vendored
        return self.key_table(recipe) if self.key_table else self.takes(recipe.version)

    def keys_at(self, version: Version) -> dict[str, str]:
        """Return a new mapping from each field to its native key in a release."""
        return dict(_keys_at(self, version))

    def is_judged(self, key: str, version: Version) -> bool:
        """Return whether a rule or the plan depends on a native key in a release, or on a key inside its mapping."""
        keys = {row.key_at(version) for row in self.fields if row.judged}
        inside = set() if self.is_dotted else {name.partition(".")[0] for name in keys} | self.renamed.keys()
        return key in keys | inside


class Frameworks(Mapping[str, Framework]):
    """The frameworks of `grporecipe.registries` by name. A folder is imported at its first use."""

    def __init__(self) -> None:
        self._loaded: dict[str, Framework] = {}

    def __getitem__(self, name: str) -> Framework:
        module = registries.FRAMEWORKS[name]
        if module not in self._loaded:
            self._loaded[module] = import_module(module).FRAMEWORK
        return self._loaded[module]

    def __contains__(self, name: object) -> bool:
        return name in registries.FRAMEWORKS

    def __iter__(self) -> Iterator[str]:
        return iter(registries.FRAMEWORKS)

    def __len__(self) -> int:
        return len(registries.FRAMEWORKS)


FRAMEWORKS = Frameworks()


@lru_cache(maxsize=64)
def _keys_at(framework: Framework, version: Version) -> dict[str, str]:
    return {row.name: row.key_at(version) for row in framework.fields if row.name}


# Returns the changes of keys for a field's new value, from the value, the recipe, its setting and the changes so far.
NativeChange = Callable[[Any, Recipe, Setting, Mapping[str, Any]], dict[str, Any] | None]


@cache
def load_table(package: str) -> dict[str, Any]:
    """Return the table of keys (keys.json) in a framework's folder."""
    return dict(json.loads(files(package).joinpath("keys.json").read_text(encoding="utf-8")))


def keys_at_release(history: Mapping[str, Sequence[Sequence[Any]]], version: Version) -> KeyTable:
    """Return the keys of the newest release that is not newer than a version.

    ``history`` holds, for each key, the releases that changed it: ``[release, type, default]``, or ``[release]`` alone if
    that release removed it.
    """
    found = KeyTable()
    for name, changes in history.items():
        last = change_at(changes, version)
        if len(last) == 3:
            found[name] = KeySpec(last[1], last[2])
    return found


def change_at(changes: Sequence[Sequence[Any]], version: Version) -> Sequence[Any]:
    """Return the newest entry of a history that is not newer than a version; empty before the first one."""
    return next((change for change in reversed(changes) if parse_release(change[0]) <= version), ())


def key_span(changes: Sequence[Sequence[Any]] | None) -> tuple[Version, Version | None] | None:
    """Return the releases in which a key came and left (None: still there); None for a key that never existed."""
    if changes is None:
        return None
    last = changes[-1]
    return parse_release(changes[0][0]), parse_release(last[0]) if len(last) == 1 else None


class ReleaseTable:
    """The keys of a framework by release, read from the ``keys.json`` of its folder when they are first needed.

    ``data["releases"]`` lists its releases in ascending order. ``data["keys"]`` has the history of each key (`keys_at_release`).
    """

    def __init__(self, package: str, newest: Version) -> None:
        self.package, self.newest = package, newest
        self._known: dict[Version, KeyTable] = {}

    @cached_property
    def data(self) -> dict[str, Any]:
        """The table."""
        return load_table(self.package)

    def releases(self) -> tuple[Version, ...]:
        """Return every release that the table knows, ascending."""
        return tuple(parse_release(name) for name in self.data["releases"])

    def known(self, version: Version | None = None) -> KeyTable:
        """Return the keys of a release (None: the newest one)."""
        version = version or self.newest
        if version not in self._known:
            self._known[version] = keys_at_release(self.data["keys"], version)
        return self._known[version]

    def choices(self, version: Version) -> dict[str, tuple[str, ...]]:
        """Return the words of each key of a release that takes only some."""
        changes = ((name, change_at(history, version)) for name, history in self.data["choices"].items())
        return {name: tuple(change[1]) for name, change in changes if len(change) > 1}

    def span(self, name: str) -> tuple[Version, Version | None] | None:
        """Return the releases in which a key came and left (None: still there); None for a key that never existed."""
        return key_span(self.data["keys"].get(name))


@cache
def parse_release(name: str) -> Version:
    """Parse a release of a table, which has three numbers."""
    major, minor, patch = (int(part) for part in name.split("."))
    return major, minor, patch


def text(version: Version) -> str:
    """Return a version as text."""
    return ".".join(map(str, version))


def closest_keys(name: str, names: Iterable[str]) -> list[str]:
    """Return up to two flat keys similar to a misspelt one, nearest first."""
    from difflib import get_close_matches  # only a mistake needs it

    plain = name.replace("-", "_").lower()
    return get_close_matches(plain, list(names), n=2, cutoff=0.8)


def read_mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping, given as such or as JSON text. Other values give an empty mapping."""
    if isinstance(value, str) and value.startswith("{"):
        try:
            value = parse_json(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)([BbMm])(?![A-Za-z0-9])")


def model_size(name: str) -> int | None:
    """Return the number of weights in a model's name (``Qwen2.5-7B-Instruct``)."""
    size = _SIZE.search(name.rsplit("/", 1)[-1])
    return int(float(size[1]) * (1e9 if size[2] in "Bb" else 1e6)) if size else None
