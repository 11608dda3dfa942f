"""Define a framework: its traits, its keys, how a recipe is read and written, and how it is
started.

`Framework` is the contract. A framework is one folder that defines ``FRAMEWORK``; the registry is
``registries.FRAMEWORKS``. Fields in its table (`grporecipe.fields.reading`) need no code of their
own.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from grporecipe import registries
from grporecipe.errors import UserError
from grporecipe.files import Config, Json
from grporecipe.model.recipe import KeySpecs, Recipe
from grporecipe.model.releases import parse_release
from grporecipe.model.setting import FrameworkTraits, Setting, Version
from grporecipe.model.values import CommandLine, Names, convert, resolve

# as the type of a row: type and default are those of the release's key
RELEASE = "release"
# how users spell the frameworks that were imported, by their names in identifiers
FRAMEWORK_NAMES: dict[str, str] = {}
# the result of ``derive`` if the recipe does not state the field
ABSENT = object()


class ParsedRecipe(NamedTuple):
    """A setting, and its unknown fields (they hold a default): from unreadable values, and what
    follows from these.
    """

    setting: Setting
    unknown: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Values:
    """The values behind a recipe's keys.

    ``values`` includes the release's defaults. ``stated`` holds only the readable values that the
    recipe sets. ``given`` are the keys that it sets, ``bad`` those with an unreadable value, and
    ``lines`` their lines.
    """

    recipe: Recipe
    values: Config
    stated: Config
    given: frozenset[str]
    bad: frozenset[str]
    lines: Mapping[str, int] = field(default_factory=dict)

    def get(self, key: str, kind: str = "any", default: Any = None) -> Any:
        """Return a key's value as a type, with references followed. The default replaces a missing
        or unreadable value.
        """
        converted = convert(resolve(self.values, key), f"{kind}?")
        if converted.value is None or converted.trouble == "type":
            return default
        return converted.value

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

    A row with a ``type`` (as in `KeySpec`, or ``RELEASE``) is read as this type through ``read``,
    and written through ``write``. ``default`` is the value if recipe and release have none. A row
    that needs several keys has a ``derive``, which returns ``ABSENT`` if they do not state the
    field. If one of ``also`` cannot be read, the field is unknown. A row with neither only names
    the key: the framework's own functions read and write it. A row without a name reserves the
    place of a key that they write.

    ``rollouts``: the key counts rollouts, the field optimizer steps. ``before`` maps a release to
    the key that was used
    until then. ``fixable``: a fix may set the key. ``judged``: a rule or the plan depends on the
    key. Of the rows of a release, those with ``always`` are written even with their default value,
    and those without ``plain`` by functions only.
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
        return next(
            (key for until, key in sorted(self.before.items()) if version < until), self.key
        )

    def native(self, value: Any) -> Any:
        """Return a value of the setting in the key's form."""
        return value if self.write is None else self.write(value)


def table_of(rows: Iterable[Config], own: Iterable[Field]) -> tuple[Field, ...]:
    """Return a framework's table: the rows of its file, those with a name only from its code."""
    by_name = {each.name: each for each in own}
    return tuple(by_name.get(row["name"]) or Field(**row) for row in rows)


@dataclass(frozen=True)
class Command:
    """A command of the framework that starts a training: ``swift rlhf``, ``trl grpo``.

    ``word`` follows the command's name, and ``program`` is what it runs. ``takes_file``: the recipe
    may follow the word without an option. ``counts`` is how the number of processes is stated: by
    the options of another launcher, or by environment variables ("environment"). ``passes_on``:
    options of accelerate may be mixed with the recipe's.
    """

    word: str
    program: str
    takes_file: bool = False
    counts: str = "environment"
    passes_on: bool = False


class Vendored(NamedTuple):
    """The version and the readable keys and defaults in a framework's own source.

    ``assumed`` are keys that do not mean there what they mean in a release, and ``unchecked`` codes
    of rules on checks that it does not have; each with the place that shows it.
    """

    keys: KeySpecs | None
    version: Version | None = None
    assumed: Mapping[str, str] = MappingProxyType({})
    unchecked: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Vendor:
    """How a framework's own source is recognised and read in a repository, without executing it.

    ``marker`` is the path of a file (or a pattern) that only this source has, below the folder that
    holds the package. ``read`` gets that folder and the recipe, whose version is the default.
    """

    marker: str
    read: Callable[[Path, Recipe], Vendored]


@dataclass(frozen=True, eq=False)
class Framework:
    """Everything that a framework needs to be detected, read, judged, planned and fixed.

    Args:
        traits: its properties for the plan and the rules.
        version: the default release.
        fields: its table of fields.
        takes: the keys of a release, with types and defaults.
        keys: keys that no other framework has; for dotted keys, their first parts.
        words: by key, words that a recipe outside of any repository has for this framework only.
        programs: matches its programs and paths.
        program: its training program in a checkout of it, which reads the recipes that no launch
            names.
        trainings: matches the programs that are certain to be a GRPO training with dotted
            overrides.
        sections: the first words of its dotted keys.
        renamed: older names of keys, read as the present ones.
        commands: its commands by name.
        expand: returns the launch in a wrapper script, and the number of its GPUs that a vLLM
            server may take.
        parse_version: reads a stated release; by default two or three numbers.
        is_familiar: whether a flat key is one of any release, or a habit of users.
        releases: the releases for ``--framework-version``; None if there is no choice.
        key_table: the keys that a recipe may set, if they depend on more than the release.
        collect: returns the values of a recipe's keys; by default under present names, with the
            release's defaults.
        unstated: the fields of an empty recipe for which the release has no key with a default.
        keys_of: the native keys of one recipe, if they depend on its other keys.
        derived: functions for fields that follow from several keys, in order. Each gets the values
            and the fields so far.
        special: for fixes, fields whose change sets more than their own key.
        base_config: returns the base configuration of a name if its file is missing; None if it is
            unknown.
        config_defaults: the Hydra defaults list of a written recipe.
        environment_key: the key of a recipe that holds variables of the environment.
        misfits: returns the keys of a recipe that its release refuses, if the table alone does not
            show them.
        passed_on: keys that a recipe may set for its launcher, in addition to those of any release.
        packages: the PyPI packages that a repository pins for it.
        vendor: how its own source is found and read in a repository that contains it.
        memory: returns the fields for the memory estimate, from a recipe's values and its setting;
            None if unknown.
        own_configs: matches the paths of its programs' own default configurations, which are
            complete only with a launch.
        only_evaluates: the key that ends a run after its first validation.
        is_asynchronous: whether a recipe is for a trainer that generates while it trains; only a
            note says so.
        is_composed: whether the configuration below a launch's overrides is known; by default it
            always is.
        assume: returns the keys whose meaning the trainer's own source changes, with the place; by
            default those that were found in the repository.

    """

    traits: FrameworkTraits
    version: Version
    fields: tuple[Field, ...]
    takes: Callable[[Version], KeySpecs]
    keys: frozenset[str] = frozenset()
    words: Mapping[str, frozenset[str]] = field(default_factory=dict)
    programs: re.Pattern[str] | None = None
    program: str = ""
    trainings: re.Pattern[str] | None = None
    sections: Names = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, Command] = field(default_factory=dict)
    expand: Callable[[CommandLine], tuple[CommandLine, int] | None] | None = None
    parse_version: Callable[[str], Version] | None = None
    is_familiar: Callable[[str], bool] | None = None
    releases: Callable[[], Sequence[Version]] | None = None
    key_table: Callable[[Recipe], KeySpecs] | None = None
    collect: "Callable[[Framework, Recipe], Values] | None" = None
    unstated: Callable[[Config, Version], Config] | None = None
    keys_of: Callable[[Values], Mapping[str, str]] | None = None
    derived: tuple[Callable[[Values, Config], Config], ...] = ()
    special: "Mapping[str, NativeChange]" = field(default_factory=dict)
    base_config: Callable[[str, Version], Config | None] | None = None
    config_defaults: Names = ()
    environment_key: str = ""
    misfits: Callable[[Recipe], Iterable[str]] | None = None
    passed_on: frozenset[str] = frozenset()
    packages: Names = ()
    vendor: "Vendor | None" = None
    memory: "Callable[..., Json | None] | None" = None
    own_configs: re.Pattern[str] | None = None
    only_evaluates: str = ""
    is_asynchronous: "Callable[[Recipe], bool]" = lambda _: False
    is_composed: "Callable[[Recipe], bool]" = lambda _: True
    assume: "Callable[[Recipe], Mapping[str, str]]" = lambda recipe: recipe.assumed

    def __post_init__(self) -> None:
        spelled = self.traits.display_name
        FRAMEWORK_NAMES[self.name.replace("-", "_")] = (
            spelled if spelled.lower() == self.name else self.name
        )

    @property
    def name(self) -> str:
        """The name on command lines."""
        return self.traits.name

    @property
    def is_dotted(self) -> bool:
        """Return whether keys are dotted, and overridden as ``a.b=c``."""
        return self.traits.syntax == "dotted"

    @property
    def known_releases(self) -> Sequence[Version]:
        """Return the releases in the table, ascending; without a table, the default."""
        return self.releases() if self.releases else (self.version,)

    @cached_property
    def by_name(self) -> dict[str, Field]:
        """The rows of the table by the setting's field."""
        return {row.name: row for row in self.fields if row.name}

    @cached_property
    def never_null(self) -> frozenset[str]:
        """The keys whose namesake in the setting always has a value."""
        nullable = {field.name for field in fields(Setting) if "None" in str(field.type)}
        return frozenset(row.key for row in self.fields if row.key == row.name) - nullable

    def known_keys(self, recipe: Recipe) -> KeySpecs:
        """Return the keys that a recipe may set: of the framework's source in the repository,
        otherwise of its release.
        """
        if recipe.vendored is not None:
            return recipe.vendored
        return self.key_table(recipe) if self.key_table else self.takes(recipe.version)

    def keys_at(self, version: Version) -> dict[str, str]:
        """Return a new mapping from each field to its native key in a release."""
        return dict(_keys_at(self, version))

    def is_judged(self, key: str, version: Version) -> bool:
        """Return whether a rule or the plan depends on a native key in a release, or on a key
        inside its mapping.
        """
        keys = {row.key_at(version) for row in self.fields if row.judged}
        if not self.is_dotted:
            keys |= {name.partition(".")[0] for name in keys} | self.renamed.keys()
        return key in keys


class Frameworks(Mapping[str, Framework]):
    """The frameworks of `grporecipe.registries` by name. A folder is imported at its first use."""

    def __getitem__(self, name: str) -> Framework:
        framework: Framework = registries.FRAMEWORKS[name].load()
        return framework

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


# Returns the changes of keys for a field's new value, from the value, the recipe, its setting and
# the changes so far.
NativeChange = Callable[[Any, Recipe, Setting, Config], Json | None]


def find_framework(name: str) -> Framework:
    """Return a framework by its name.

    Raises UserError for an unknown name.
    """
    if name not in FRAMEWORKS:
        raise UserError(f"framework {name}: grposweep reads {', '.join(sorted(FRAMEWORKS))}.")
    return FRAMEWORKS[name]


def known_keys(recipe: Recipe) -> KeySpecs:
    """Return the keys that a recipe may set: of the framework's source in its repository, otherwise
    of its release.
    """
    return FRAMEWORKS[recipe.framework].known_keys(recipe)


def version_of(name: str, wanted: str | None = None) -> Version:
    """Return the requested release of a framework, or its default.

    Raises UserError for text that is not a version, and for releases before the first that can be
    judged.
    """
    framework = find_framework(name)
    if wanted is None:
        return framework.version
    if framework.parse_version:
        return framework.parse_version(wanted)
    return _own_version(wanted, framework)


def _own_version(text: str, framework: Framework) -> Version:
    """Return a release of a framework other than TRL. Raises UserError if it is older than the
    first known release.
    """
    parts = text.strip().removeprefix("v").split(".")
    if not 2 <= len(parts) <= 4 or not all(part.isdigit() for part in parts[:3]):
        raise UserError(
            f"version {text[:40]!r}: a version has two or three numbers. Write it like 0.3.3."
        )
    version = parse_release(".".join((*parts[:3], "0")[:3]))
    if version < framework.known_releases[0]:
        first = ".".join(map(str, framework.known_releases[0]))
        raise UserError(
            f"{framework.name} {text}: the first release that can be judged is {first}."
        )
    return version
