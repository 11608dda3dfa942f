"""Read a recipe by a framework's table of fields.

A complete table needs no further code. Otherwise small functions belong to a row, or derive several
fields at once.
"""

from collections import ChainMap
from collections.abc import Callable, Mapping, Set
from dataclasses import fields as fields_of
from dataclasses import replace
from functools import cache, lru_cache
from math import ceil
from typing import Any

from grporecipe.fields.writing import rollout_steps
from grporecipe.files import Config, without
from grporecipe.model import planning
from grporecipe.model.framework import (
    ABSENT,
    FRAMEWORKS,
    RELEASE,
    Field,
    Framework,
    ParsedRecipe,
    Values,
)
from grporecipe.model.recipe import KeySpec, Recipe
from grporecipe.model.releases import KeyTable
from grporecipe.model.setting import Setting, Version
from grporecipe.model.values import Fields, Names, Value, convert, model_size

WORDS = frozenset(known.name for known in fields_of(Setting) if known.type in (str, str | None))


def values_of(recipe: Recipe) -> Values:
    """Return the values behind a recipe's keys.

    The reader and many rules need them, so they are cached with the recipe.
    """
    if "values" not in recipe.derived:
        framework = FRAMEWORKS[recipe.framework]
        recipe.derived["values"] = (framework.collect or collect)(framework, recipe)
    values: Values = recipe.derived["values"]
    return values


def collect(framework: Framework, recipe: Recipe) -> Values:
    """Return the values of a recipe under present names, without the signs of overrides. A deleted
    key has no default.
    """
    takes = framework.known_keys(recipe)
    if not isinstance(takes, KeyTable):
        takes = KeyTable(takes)
    # older names that the release does not take
    renamed = without(framework.renamed, takes)
    given: Fields = {}
    for written, value in recipe.config.items():
        key = written.lstrip("+")
        if key.startswith("~"):
            given[key[1:]] = None
        # the newer name wins
        elif key not in renamed or renamed[key] not in recipe.config:
            given[renamed.get(key, key)] = value
    unknown = (key.lstrip("+") for key in recipe.unresolved)
    bad = {renamed.get(key, key) for key in unknown}
    stated = without(given, bad)
    for name, value in given.items():
        if name in takes and not _fits(value, takes[name]):
            bad.add(name)
    values = ChainMap(stated, takes.defaults)
    return Values(recipe, values, stated, frozenset(given), frozenset(bad), recipe.lines)


def _fits(value: Any, key: KeySpec) -> bool:
    """Return whether a key can hold a value."""
    if isinstance(value, str) and "${" in value:
        return True
    return convert(value, key.type.removeprefix("auto ")).trouble != "type"


def collect_converted(
    framework: Framework,
    recipe: Recipe,
    takes: KeyTable,
    renamed: Mapping[str, str],
    convert: Callable[[Any, str], Value],
    spell: Callable[[str], str] = str,
) -> Values:
    """Return the values of a flat recipe as the framework's parser converts them, under present
    names.

    ``convert`` converts a value to a key's type, and ``spell`` returns the key for a spelling. A
    null keeps its older name.
    """
    stated: Fields = {}
    unresolved = {renamed.get(key, key) for key in map(spell, map(str, recipe.unresolved))}
    bad = {spell(str(key)) for key in recipe.unresolved}
    for written, value in recipe.config.items():
        key = spell(str(written))
        name = key
        if value is not None:
            name = renamed.get(key, key)
        spec = takes.get(name) or takes.get(key)
        if spec is None or (name != key and recipe.config.get(name) is not None):
            # nothing reads it, or the newer name wins
            continue
        converted = convert(value, spec.type)
        if converted.trouble == "type" or (
            converted.value is None and name in framework.never_null
        ):
            # an annotation may allow None although the arithmetic does not
            bad.add(name)
        else:
            stated[name] = converted.value
    lines = {spell(key): line for key, line in recipe.lines.items()}
    given = frozenset(stated)
    # a word of the script's own is no value
    for name in unresolved:
        stated.pop(name, None)
    return Values(recipe, ChainMap(stated, takes.defaults), stated, given, frozenset(bad), lines)


CASTS = {"float": float, "str": str}


def read_rows(framework: Framework, values: Values, keys: Mapping[str, str]) -> Fields:
    """Return the fields of a table's rows for one recipe. Rows that follow the release are read
    only if the recipe sets them.
    """
    fields = {}
    by_key, deriving, typed = _sorted_rows(framework)
    for key in by_key.keys() & values.stated.keys():
        for row in by_key[key]:
            value = values.stated[key]
            if row.read is not None:
                value = row.read(value)
            elif row.name in WORDS and value is not None:
                value = str(value)
            fields[row.name] = value
    for row, derive in deriving:
        value = derive(values)
        if value is not ABSENT:
            fields[row.name] = value
    for row in typed:
        value = values.get(keys[row.name], row.type.rstrip("?"), row.default)
        if row.type in CASTS:
            value = CASTS[row.type](value)
        if row.read is not None:
            value = row.read(value)
        fields[row.name] = value
    return fields


@cache
def _sorted_rows(
    framework: Framework,
) -> tuple[dict[str, list[Field]], list[tuple[Field, Callable[[Values], Any]]], list[Field]]:
    """Return a table's rows in three groups: rows that follow the release (by key), rows with
    ``derive``, rows with a type.
    """
    by_key: dict[str, list[Field]] = {}
    deriving = []
    typed = []
    for row in framework.fields:
        if row.derive is not None:
            deriving.append((row, row.derive))
        if row.type == RELEASE:
            by_key.setdefault(row.key, []).append(row)
        elif row.type and row.name:
            typed.append(row)
    return by_key, deriving, typed


@lru_cache(maxsize=128)
def release_defaults(framework: Framework, version: Version) -> Config:
    """Return the fields of an empty recipe, for a framework whose rows follow the release."""
    return _fields_unstated(framework, version, framework.takes(version))


def _fields_unstated(
    framework: Framework, version: Version, takes: Mapping[str, KeySpec]
) -> Config:
    if framework.unstated is None:
        return {}
    values = {
        name: key.default
        for name, key in takes.items()
        if key.default is not None or key.type.endswith("?")
    }
    empty = Recipe(framework.name, version, {})
    present = {row.key_at(version): row.key for row in framework.fields if row.before}
    named = {present.get(name, name): value for name, value in values.items()}
    unstated = Values(empty, named, named, frozenset(), frozenset())
    return {**read_rows(framework, unstated, {}), **framework.unstated(values, version)}


def read_table(framework: Framework, recipe: Recipe) -> ParsedRecipe:
    """Return the setting of a recipe by its framework's table, and the fields that are unknown.

    A field is unknown if its key has an unreadable value, or if it follows from such a key: it then
    differs between readings with other values of these keys.
    """
    reading = _read(framework, recipe)
    keys = {*values_of(recipe).bad, *recipe.assumed, *_dropped(framework, recipe)}
    if not keys:
        return reading
    return reading._replace(unknown=reading.unknown | fields_behind(framework, recipe, keys))


def fields_behind(framework: Framework, recipe: Recipe, keys: Set[str]) -> frozenset[str]:
    """Return the fields of a recipe's setting that depend on keys: they differ between readings
    with other values of these.
    """
    stated = _read(framework, recipe).setting
    differing = set[str]()
    for which in range(3):
        other = _read(framework, _with_values(framework, recipe, keys, which)).setting
        for each in fields_of(Setting):
            values = getattr(stated, each.name), getattr(other, each.name)
            if each.compare and repr(values[0]) != repr(values[1]):
                differing.add(each.name)
    # Without a number of processes, rules judge all numbers.
    if stated.processes is None:
        differing.discard("processes")
    return frozenset(differing - {"given"})


def _dropped(framework: Framework, recipe: Recipe) -> Set[str]:
    """Return the keys of a release that the framework's own source in the repository does not have,
    and that are not set.
    """
    if recipe.vendored is None:
        return frozenset()
    keys = _typed_keys(framework, recipe).keys() & framework.takes(recipe.version).keys()
    return keys - recipe.vendored.keys() - values_of(recipe).given


def _typed_keys(framework: Framework, recipe: Recipe) -> dict[str, str]:
    """Return the types of the keys whose rows do not follow the release."""
    rows = [row for row in framework.fields if row.type not in ("", RELEASE)]
    return {row.key_at(recipe.version): row.type for row in rows}


def with_other_values(framework: Framework, recipe: Recipe) -> list[Recipe]:
    """Return the recipe with several values of each key that only the run knows. What is true for
    all of them is certain.
    """
    takes = framework.known_keys(recipe)
    hidden = {*(key.lstrip("+") for key in recipe.unresolved), *recipe.assumed}
    keys = hidden & takes.keys()
    if not keys:
        return []
    return [_with_values(framework, recipe, keys, which) for which in range(len(SAMPLES["int"]))]


# Values of each type. The first three differ, so that a field that follows from a key differs from
# one reading to another.
# A key without a default may hold a word or a number.
SAMPLES = {
    "int": (2, 7, 1, 64),
    "float": (0.25, 3.0, 0.0, 1.0),
    "bool": (True, False, True, False),
    "any": (None, "another", 7, 1),
}


def _with_values(framework: Framework, recipe: Recipe, keys: Set[str], which: int) -> Recipe:
    """Return the recipe with other values of these keys."""
    takes = framework.known_keys(recipe)
    types = _typed_keys(framework, recipe)
    written = {key.lstrip("+"): key for key in recipe.config}
    config = dict(recipe.config)
    for key in keys:
        kind = "any"
        if key in types:
            kind = types[key]
        elif key in takes:
            kind = takes[key].type
        kind = kind.removeprefix("auto ").rstrip("?")
        samples = SAMPLES.get(kind, (None, "another", "other", None))
        config[written.get(key, key)] = samples[which]
    return replace(recipe, config=config, unresolved={}, assumed={})


def _read(framework: Framework, recipe: Recipe) -> ParsedRecipe:
    values = values_of(recipe)
    keys = framework.keys_at(recipe.version)
    own: Mapping[str, str] = {}
    if framework.keys_of:
        own = framework.keys_of(values)
    keys |= own
    stated = read_rows(framework, values, keys)
    defaults = release_defaults(framework, recipe.version)
    if recipe.vendored is not None:
        defaults = _fields_unstated(framework, recipe.version, recipe.vendored)
    fields = {**defaults, **stated}
    fields.setdefault("processes", None)
    if recipe.processes is not None:
        fields["processes"] = recipe.processes
    for derive in framework.derived:
        fields |= derive(values, fields)
    if "sharding" in recipe.launch_fields:
        fields["sharding"] = recipe.launch_fields["sharding"]
    unstated = {row.name for row, _ in _sorted_rows(framework)[1] if stated.get(row.name) is None}
    if not framework.unstated:
        fields = _completed(fields)
    held = _holders(framework, recipe.version, tuple(own.items()))
    return _build_setting(framework, values, keys, held, fields, unstated)


def _completed(fields: Fields) -> Fields:
    """Fill in unset fields that follow from others."""
    if "parameters" not in fields:
        fields["parameters"] = model_size(str(fields.get("model_name_or_path") or ""))
    for name, steps in (("eval_strategy", "eval_steps"), ("save_strategy", "save_steps")):
        if fields.get(steps) is not None:
            fields.setdefault(name, "steps")
        elif steps in fields:
            fields.setdefault(name, "no")
    fields.setdefault("evaluates", fields.get("eval_steps") is not None)
    return fields


def _build_setting(
    framework: Framework,
    values: Values,
    keys: Mapping[str, str],
    held: Mapping[str, Names],
    fields: Config,
    unstated: Set[str],
) -> ParsedRecipe:
    """Return the setting of these fields. Compute derived sizes, and convert counts of rollouts to
    optimizer steps.

    ``held`` has the fields of each key that a recipe sets; for a mapping, those of all keys in it.
    ``unstated`` are fields that the recipe does not state, although it sets their key.
    """
    recipe = values.recipe
    given = set[str]()
    lines: dict[str, int] = {}
    for key in values.given:
        for name in held.get(key, ()):
            if name not in unstated:
                given.add(name)
                if key in values.lines:
                    lines[name] = values.lines[key]
    counts = {name: fields[name] for name in _counted(framework) & fields.keys()}
    setting = _blank(framework, recipe.version).replace(
        {
            "launcher": recipe.launch.launcher or None,
            # never empty, which would mean an experiment of this project
            "given": frozenset(("framework", *given)),
            "keys": keys,
            "lines": lines,
            "train_prompts": recipe.train_prompts,
            **without(fields, counts),
        }
    )
    if framework.traits.unit == "prompts":
        setting = planning.resize(setting)
    if counts:
        each = 1.0
        if setting.gradient_accumulation_steps > 0:
            each = rollout_steps(setting)
        for name, count in counts.items():
            if count is not None and abs(count) >= 1:
                counts[name] = ceil(count * each)
        setting = setting.replace(counts)
    if not values.bad and not recipe.may_have_more:
        return ParsedRecipe(setting)
    unknown = {name for name, row in framework.by_name.items() if values.bad & row.also}
    for key in values.bad:
        unknown.update(held.get(key, ()))
    # unset keys may be set by words known only to a running shell
    if recipe.may_have_more:
        unknown |= {"given", *framework.by_name} - given
        if recipe.processes is not None:
            unknown.discard("processes")
    return ParsedRecipe(setting, frozenset(unknown))


@lru_cache(maxsize=128)
def _blank(framework: Framework, version: Version) -> Setting:
    """Return a setting to copy: creating one takes ten times as long as a copy."""
    return Setting(framework=framework.traits, version=version)


@cache
def _counted(framework: Framework) -> frozenset[str]:
    """Return the fields whose key counts rollouts."""
    return frozenset(row.name for row in framework.fields if row.rollouts)


@lru_cache(maxsize=128)
def _holders(
    framework: Framework, version: Version, own: tuple[tuple[str, str], ...]
) -> Mapping[str, Names]:
    """Return the fields of each key that a recipe sets. ``own`` are fields with another key in this
    recipe.
    """
    keys = framework.keys_at(version)
    if not framework.is_dotted:
        takes = framework.takes(version)
        for name, key in keys.items():
            # the name of an option may have dots
            if key not in takes:
                keys[name] = key.partition(".")[0]
    holders: dict[str, Names] = {}
    # the values of a recipe are read under the present names
    present = [(row.name, row.key) for row in framework.fields if row.before and row.name]
    for name, key in (*{**keys, **dict(own)}.items(), *present):
        if name not in holders.get(key, ()):
            holders[key] = (*holders.get(key, ()), name)
    return holders
