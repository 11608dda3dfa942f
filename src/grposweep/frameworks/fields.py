"""What follows from a framework's table of fields: reading a recipe, writing one, and native keys for a fix.

A framework whose table says all needs no code for these. Others read and write some fields themselves: they take what the
table makes and replace parts of it.
"""

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import yaml

from grposweep import plan
from grposweep.frameworks.base import Framework, KeySpec, KeyTable, ParsedRecipe, TranslatedRecipe, model_size
from grposweep.frameworks.parsing.overrides import nest, resolve
from grposweep.frameworks.parsing.values import convert
from grposweep.frameworks.units import in_completions, in_prompts, in_rollouts, steps_a_rollout
from grposweep.recipe import Recipe
from grposweep.setting import Setting


@dataclass(frozen=True)
class Values:
    """The values behind a recipe's keys, defaults filled in; ``given`` are keys that it sets, ``bad`` unreadable ones."""

    values: Mapping[str, Any]
    given: frozenset[str]
    bad: frozenset[str]

    def get(self, key: str, kind: str = "any", default: Any = None) -> Any:
        """Return a key's value as a type, references followed; the default where it has none or cannot be read."""
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


def collect(recipe: Recipe, takes: Mapping[str, KeySpec], renamed: Mapping[str, str]) -> Values:
    """Return the values of a recipe under today's names, whatever sign an override has; a deleted key has no default.

    The parser and many rules ask for them, so they are kept with the recipe.
    """
    if "values" not in recipe.derived:
        recipe.derived["values"] = _collect(recipe, takes, renamed)
    values: Values = recipe.derived["values"]
    return values


def _collect(recipe: Recipe, takes: Mapping[str, KeySpec], renamed: Mapping[str, str]) -> Values:
    given: dict[str, Any] = {}
    for written, value in recipe.config.items():
        key = written.lstrip("+")
        if key.startswith("~"):
            given[key[1:]] = None
            continue
        name = renamed.get(key, key) if key not in takes else key
        if name != key and name in recipe.config:
            continue  # the newer name counts
        given[name] = value
    unresolved = frozenset(renamed.get(key.lstrip("+"), key.lstrip("+")) for key in recipe.unresolved)
    said = {name: value for name, value in given.items() if name not in unresolved}
    bad = unresolved | {name for name, value in given.items() if name in takes and not _fits(value, takes[name])}
    defaults = takes.defaults if isinstance(takes, KeyTable) else KeyTable(takes).defaults
    return Values(ChainMap(said, defaults), frozenset(given), bad)


def _fits(value: Any, key: KeySpec) -> bool:
    """Return whether a key can hold a value."""
    if isinstance(value, str) and "${" in value:
        return True
    return convert(value, key.type.removeprefix("auto ")).trouble != "type"


CASTS = {"float": float, "str": str}


def read_rows(framework: Framework, found: Values, keys: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields behind the plain rows of a table, by the keys of one recipe."""
    fields = {}
    for row in framework.fields:
        if row.type and row.name:
            value = found.get(keys[row.name], row.type.rstrip("?"), row.default)
            value = CASTS[row.type](value) if row.type in CASTS else value
            fields[row.name] = value if row.read is None else row.read(value)
    return fields


def build_setting(
    framework: Framework, recipe: Recipe, found: Values, keys: Mapping[str, str], fields: Mapping[str, Any]
) -> ParsedRecipe:
    """Return the setting of these fields, its derived sizes made and what counts rollouts turned into optimizer steps."""
    given = {name for name, key in keys.items() if key in found.given}
    counted = {name for name, row in framework.by_name.items() if row.rollouts}
    setting = Setting(
        framework=framework.traits,
        version=recipe.version,
        train_prompts=recipe.train_prompts,
        launcher=recipe.launch.launcher if recipe.launch else None,
        given=frozenset({"framework", *given}),  # never empty: that would be an experiment of our own
        keys=dict(keys),
        lines={name: recipe.lines[key] for name, key in keys.items() if key in recipe.lines},
        **{name: value for name, value in fields.items() if name not in counted},
    )
    if framework.traits.unit == "prompts":
        setting = plan.resize(setting)
    each = steps_a_rollout(setting) if setting.gradient_accumulation_steps > 0 else 1.0
    steps = {
        name: value if value is None or abs(value) < 1 else ceil(value * each)
        for name in counted & fields.keys()
        for value in [fields[name]]
    }
    unknown = {name for name, key in keys.items() if key in found.bad}
    return ParsedRecipe(setting.replace(steps), frozenset(unknown))


def read_table(framework: Framework, recipe: Recipe) -> ParsedRecipe:
    """Read a recipe as the table says."""
    found, keys = collect(recipe, framework.known_keys(recipe), framework.renamed), framework.keys_at(recipe.version)
    fields = read_rows(framework, found, keys)
    fields.setdefault("processes", None)
    if recipe.processes is not None:
        fields["processes"] = recipe.processes
    if fields.get("model_name_or_path"):
        fields["parameters"] = model_size(str(fields["model_name_or_path"]))
    for name, steps in (("eval_strategy", "eval_steps"), ("save_strategy", "save_steps")):
        if steps in fields:
            fields.setdefault(name, "no" if fields[steps] is None else "steps")
    fields.setdefault("evaluates", fields.get("eval_steps") is not None)
    return build_setting(framework, recipe, found, keys, fields)


def write_rows(framework: Framework, s: Setting) -> dict[str, Any]:
    """Return the keys of a table in its order; None for those that the framework's own functions write."""
    found: dict[str, Any] = {}
    for row in framework.fields:
        if row.type and (value := getattr(s, row.name)) is not None:
            found[row.key] = row.native(in_rollouts(s, value) if row.rollouts and value >= 1 else value)
        else:
            found.setdefault(row.key, None)
    return found


def overlay(framework: Framework, s: Setting, fields: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a table with other values for some fields and keys; without those that have no value."""
    found = write_rows(framework, s)
    found |= {framework.by_name[name].key: value for name, value in fields.items()} | dict(keys)
    return {key: value for key, value in found.items() if value is not None}


def to_unit(framework: Framework, s: Setting) -> tuple[Setting, tuple[str, ...]]:
    """Return a setting with the sizes that a framework counts in; and what could not be kept."""
    return in_prompts(s) if framework.traits.unit == "prompts" else in_completions(s)


def write_table(framework: Framework, s: Setting) -> TranslatedRecipe:
    """Write a setting as the table says."""
    sized, lost = to_unit(framework, s)
    keys = overlay(framework, sized, {}, {})
    command = next(((name, command) for name, command in framework.commands.items()), None)
    words = (command[0], command[1].word, "recipe.yaml") if command else ()
    environment = {} if s.processes is None else {"NPROC_PER_NODE": str(s.processes)}
    unsaid = (
        f"{name}: {framework.name} has no such key"
        for name in sorted(s.given - framework.by_name.keys() - {"framework"})
    )
    return TranslatedRecipe(render_keys(framework, keys), "recipe.yaml", words, environment, (*lost, *unsaid))


def render_keys(framework: Framework, keys: Mapping[str, Any]) -> str:
    """Return native keys as the text of a recipe; of dotted ones, over the defaults of the framework's configuration."""
    if not framework.is_dotted:
        return yaml.safe_dump(dict(keys), sort_keys=False, allow_unicode=True)
    defaults = {"defaults": list(framework.config_defaults)} if framework.config_defaults else {}
    return yaml.safe_dump({**defaults, **nest(keys)}, sort_keys=False, allow_unicode=True)


def to_native(framework: Framework, change: Mapping[str, Any], recipe: Recipe, s: Setting) -> dict[str, Any] | None:
    """Return a change of fields as a change of native keys, None removing a key; None where a recipe has no words for it.

    ``processes`` stands for the count of the command that starts the recipe.
    """
    found: dict[str, Any] = {}
    for name, value in change.items():
        special, row = framework.special.get(name), framework.by_name.get(name)
        if special is not None:
            said = special(value, recipe, s, found)
        elif name == "processes" and not framework.is_dotted:
            said = {"processes": value}
        elif row is None or not row.fixable:
            said = None
        elif row.rollouts and value is not None and value >= 1:
            said = {s.key(name): row.native(in_rollouts(s, value))}
        else:
            said = {s.key(name): row.native(value) if row.type or row.write else value}
        if said is None:
            return None
        found |= said
    if not framework.is_dotted:
        return found
    return {_spelled(key, recipe.config, framework.renamed): value for key, value in found.items()}


def _spelled(key: str, config: Mapping[str, Any], renamed: Mapping[str, str]) -> str:
    """Return a dotted key as a recipe has it: with the sign of its override, or by an older name."""
    signed = next((written for written in config if written.lstrip("+") == key), None)
    return signed or next((old for old, new in renamed.items() if new == key and old in config), key)
