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
from grporecipe.files import Config
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
    renamed = framework.renamed
    given: Fields = {}
    for written, value in recipe.config.items():
        key = written.lstrip("+")
        if key.startswith("~"):
            given[key[1:]] = None
            continue
        name = renamed.get(key, key) if key not in takes else key
        if name != key and name in recipe.config:
            # the newer name wins
            continue
        given[name] = value
    unknown = (key.lstrip("+") for key in recipe.unresolved)
    unresolved = frozenset(key if key in takes else renamed.get(key, key) for key in unknown)
    stated = {name: value for name, value in given.items() if name not in unresolved}
    bad = unresolved | {
        name for name, value in given.items() if name in takes and not _fits(value, takes[name])
    }
    defaults = takes.defaults if isinstance(takes, KeyTable) else KeyTable(takes).defaults
    return Values(recipe, ChainMap(stated, defaults), stated, frozenset(given), bad, recipe.lines)


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
        name = renamed.get(key, key) if value is not None else key
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
        value = values.stated[key]
        for row in by_key[key]:
            if row.read is not None:
                fields[row.name] = row.read(value)
            else:
                fields[row.name] = str(value) if row.name in WORDS and value is not None else value
    for row, derive in deriving:
        if (value := derive(values)) is not ABSENT:
            fields[row.name] = value
    for row in typed:
        value = values.get(keys[row.name], row.type.rstrip("?"), row.default)
        value = CASTS[row.type](value) if row.type in CASTS else value
        fields[row.name] = value if row.read is None else row.read(value)
    return fields


@cache
def _sorted_rows(
    framework: Framework,
) -> tuple[dict[str, list[Field]], list[tuple[Field, Callable[[Values], Any]]], list[Field]]:
    """Return a table's rows in three groups: rows that follow the release (by key), rows with
    ``derive``, rows with a type.
    """
    by_key: dict[str, list[Field]] = {}
    for row in framework.fields:
        if row.type == RELEASE:
            by_key.setdefault(row.key, []).append(row)
    deriving = [(row, row.derive) for row in framework.fields if row.derive is not None]
    return (
        by_key,
        deriving,
        [row for row in framework.fields if row.type not in ("", RELEASE) and row.name],
    )


@lru_cache(maxsize=128)
def release_defaults(framework: Framework, version: Version) -> Config:
    """Return the fields of an empty recipe, for a framework whose rows follow the release."""
    return (
        {}
        if framework.unstated is None
        else _fields_unstated(framework, version, framework.takes(version))
    )


def _fields_unstated(
    framework: Framework, version: Version, takes: Mapping[str, KeySpec]
) -> Config:
    assert framework.unstated is not None
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
    return (
        reading._replace(unknown=reading.unknown | fields_behind(framework, recipe, keys))
        if keys
        else reading
    )


def fields_behind(framework: Framework, recipe: Recipe, keys: Set[str]) -> frozenset[str]:
    """Return the fields of a recipe's setting that depend on keys: they differ between readings
    with other values of these.
    """
    values = (recipe, *(_with_values(framework, recipe, keys, which) for which in range(3)))
    settings = [_read(framework, each).setting for each in values]
    differing = {
        each.name
        for each in fields_of(Setting)
        if each.compare and len({repr(getattr(s, each.name)) for s in settings}) > 1
    }
    # Without a number of processes, rules judge all numbers.
    return frozenset(
        differing - {"given", *({"processes"} if settings[0].processes is None else ())}
    )


def _dropped(framework: Framework, recipe: Recipe) -> Set[str]:
    """Return the keys of a release that the framework's own source in the repository does not have,
    and that are not set.
    """
    if recipe.vendored is None:
        return frozenset()
    rows = {row.key_at(recipe.version) for row in framework.fields if row.type not in ("", RELEASE)}
    return (
        (rows & framework.takes(recipe.version).keys())
        - recipe.vendored.keys()
        - values_of(recipe).given
    )


def with_other_values(framework: Framework, recipe: Recipe) -> list[Recipe]:
    """Return the recipe with several values of each key that only the run knows. What is true for
    all of them is certain.
    """
    takes = framework.known_keys(recipe)
    hidden = {*(key.lstrip("+") for key in recipe.unresolved), *recipe.assumed}
    keys = hidden & takes.keys()
    return (
        [_with_values(framework, recipe, keys, which) for which in range(len(SAMPLES["int"]))]
        if keys
        else []
    )


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
    rows = {
        row.key_at(recipe.version): row.type
        for row in framework.fields
        if row.type not in ("", RELEASE)
    }
    written = {key.lstrip("+"): key for key in recipe.config}
    config = dict(recipe.config)
    for key in keys:
        kind = rows.get(key) or (takes[key].type if key in takes else "any")
        sample = SAMPLES.get(
            kind.removeprefix("auto ").rstrip("?"), (None, "another", "other", None)
        )[which]
        config[written.get(key, key)] = sample
    return replace(recipe, config=config, unresolved={}, assumed={})


def _read(framework: Framework, recipe: Recipe) -> ParsedRecipe:
    values = values_of(recipe)
    keys = framework.keys_at(recipe.version)
    own = framework.keys_of(values) if framework.keys_of else {}
    keys |= own
    stated = read_rows(framework, values, keys)
    defaults = release_defaults(framework, recipe.version)
    if recipe.vendored is not None and framework.unstated is not None:
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
    fields = fields if framework.unstated else _completed(fields)
    held = _holders(framework, recipe.version, tuple(own.items()))
    return _build_setting(framework, values, keys, held, fields, unstated)


def _completed(fields: Fields) -> Fields:
    """Fill in unset fields that follow from others."""
    if "parameters" not in fields:
        fields["parameters"] = model_size(str(fields.get("model_name_or_path") or ""))
    for name, steps in (("eval_strategy", "eval_steps"), ("save_strategy", "save_steps")):
        if steps in fields:
            fields.setdefault(name, "no" if fields[steps] is None else "steps")
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
    lines = values.lines
    counted = _counted(framework)
    given = {
        name: key for key in values.given for name in held.get(key, ()) if name not in unstated
    }
    setting = _blank(framework, recipe.version).replace(
        {
            "launcher": recipe.launch.launcher or None,
            # never empty, which would mean an experiment of this project
            "given": frozenset(("framework", *given)),
            "keys": keys,
            "lines": {name: lines[key] for name, key in given.items() if key in lines}
            if lines
            else {},
            "train_prompts": recipe.train_prompts,
            **({name: fields[name] for name in fields.keys() - counted} if counted else fields),
        }
    )
    if framework.traits.unit == "prompts":
        setting = planning.resize(setting)
    if counted:
        each = rollout_steps(setting) if setting.gradient_accumulation_steps > 0 else 1.0
        counts = {name: fields[name] for name in counted & fields.keys()}
        whole = {
            name: ceil(count * each)
            for name, count in counts.items()
            if count is not None and abs(count) >= 1
        }
        setting = setting.replace({**counts, **whole})
    if not values.bad and not recipe.may_have_more:
        return ParsedRecipe(setting)
    unknown = {name for key in values.bad for name in held.get(key, ())}
    unknown |= {name for name, row in framework.by_name.items() if values.bad & row.also}
    # unset keys may be set by words known only to a running shell
    if recipe.may_have_more:
        unknown |= {"given", *(name for name in framework.by_name if name not in given)}
        unknown -= {"processes"} if recipe.processes is not None else set()
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
        # the name of an option may have dots
        takes = framework.takes(version)
        keys = {name: key if key in takes else key.partition(".")[0] for name, key in keys.items()}
    holders: dict[str, Names] = {}
    # the values of a recipe are read under the present names
    present = {row.name: row.key for row in framework.fields if row.before and row.name}
    for name, key in (*{**keys, **dict(own)}.items(), *present.items()):
        if name not in holders.get(key, ()):
            holders[key] = (*holders.get(key, ()), name)
    return holders
