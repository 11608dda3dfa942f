"""Convert single values as the frameworks' parsers do, and nested mappings to dotted keys and back.

Sources: transformers hf_argparser.py string_to_bool; argparse, which converts defaults that are
text; omegaconf 2.3 _utils.py (its YAML loader takes ``1e-6`` for a number), omegaconf.py
from_dotlist.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml

from grporecipe.errors import UserError
from grporecipe.files import DEEPEST, Config, parse_json, yaml_loader

# new values by the names of a setting's fields, or of native keys
Fields = dict[str, Any]
# of fields or keys, or the words of a choice
Names = tuple[str, ...]
LOADER: Any = yaml_loader()
TRUE = frozenset({"yes", "true", "t", "y", "1"})
FALSE = frozenset({"no", "false", "f", "n", "0"})
# a float is no exact whole number above it; no size or step count comes near, and NaN is not below
LARGEST = 2**53
PLAIN = {"int": int, "float": float, "bool": bool}


def without_none(values: Mapping[str, Any]) -> Fields:
    """Return the values that are set."""
    return {name: value for name, value in values.items() if value is not None}


def listed(value: Any) -> list[Any]:
    """Return the items of a list, or another value as its only item."""
    return value if isinstance(value, list) else [value]


class Value(NamedTuple):
    """A converted value. ``trouble`` is empty, ``string`` (a number given as text) or ``type``
    (unusable).
    """

    value: Any
    trouble: str = ""


def convert(value: Any, kind: str) -> Value:
    """Convert a YAML or JSON value to a key's type; ``kind`` as in `KeySpec`."""
    base = kind.rstrip("?")
    if base not in PLAIN or (value is None and kind.endswith("?")):
        return Value(value)
    if value is None:
        return Value(None, "type")
    if isinstance(value, str):
        return _string(value.strip(), base)
    if base == "bool":
        trouble = "" if isinstance(value, int) and value in (0, 1) else "type"
        return Value(bool(value), trouble)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not abs(value) <= LARGEST:
        return Value(None, "type")
    if base == "int" and isinstance(value, float):
        return Value(int(value), "type")
    # argparse and TRL keep an int for a float
    return Value(value)


def _string(text: str, base: str) -> Value:
    if base == "bool":
        word = text.lower()
        return Value(word in TRUE, "string") if word in TRUE | FALSE else Value(None, "type")
    try:
        number = int(text) if base == "int" else float(text)
    except ValueError:
        return Value(None, "type")
    return Value(number, "string") if abs(number) <= LARGEST else Value(None, "type")


_REFERENCE = r"\$\{(?:oc\.select:)?([\w.]+)(?:\s*,\s*([^{}]*))?\}"
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*(?:[eE][-+]?[0-9]+)"
    r"|\.[0-9_]+(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
# longest chain that is followed
MOST_REFERENCES = 10


class NestedLoader(LOADER):  # type: ignore[misc]  # PyYAML's, with or without libyaml
    """PyYAML's safe loader with OmegaConf's definition of a number."""


NestedLoader.yaml_implicit_resolvers = {}
for _start, _pairs in LOADER.yaml_implicit_resolvers.items():
    _kept = [pair for pair in _pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
    NestedLoader.yaml_implicit_resolvers[_start] = _kept


NestedLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(f"^(?:{_FLOAT.pattern})$"), list("-+0123456789.")
)


def flatten(config: Config, separator: str = ".", depth: int = 0) -> dict[str, Any]:
    """Return the leaves of a nested or dotted mapping by joined keys.

    Raises UserError if it is nested deeper than any recipe.
    """
    if depth > DEEPEST:
        raise UserError(f"it is nested more than {DEEPEST} levels deep, so it is no recipe.")
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            inner = flatten(value, separator, depth + 1)
            flat |= {f"{key}{separator}{name}": leaf for name, leaf in inner.items()}
        else:
            flat[str(key)] = value
    return flat


def nest(keys: Config) -> dict[str, Any]:
    """Return dotted keys as a nested mapping."""
    nested: dict[str, Any] = {}
    for key, value in keys.items():
        *sections, last = key.split(".")
        inner = nested
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return nested


def parse_value(text: str) -> Any:
    """Parse a value of a command line as YAML. Invalid YAML is text."""
    loader = NestedLoader(text)
    try:
        return loader.get_single_data()
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, AttributeError):
        return text
    finally:
        loader.dispose()


def resolve(values: Config, key: str) -> Any:
    """Return a key's value with references followed; None if they lead to no value."""
    value = values.get(key)
    for _ in range(MOST_REFERENCES):
        match = re.fullmatch(_REFERENCE, value) if isinstance(value, str) else None
        if match is None:
            if isinstance(value, str) and "${" in value:
                return None
            return value
        target = values.get(match[1])
        value = parse_value(match[2]) if target is None and match[2] is not None else target
    return None


def read_mapping(value: Any) -> Config:
    """Return a mapping, given as such or as JSON text. Other values give an empty mapping."""
    if isinstance(value, str) and value.startswith("{"):
        try:
            value = parse_json(value)
        except ValueError:
            return {}
    if isinstance(value, dict):
        return value
    return {}


_SIZE = r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)([BbMm])(?![A-Za-z0-9])"


def model_size(name: str) -> int | None:
    """Return the number of weights in a model's name (``Qwen2.5-7B-Instruct``)."""
    size = re.search(_SIZE, name.rsplit("/", 1)[-1])
    if size is None:
        return None
    unit = 1e9 if size[2] in "Bb" else 1e6
    return int(float(size[1]) * unit)


@dataclass
class Word:
    """One word after expansion; ``unknown`` if part of it could not be resolved.

    ``marked`` is its text with marks around the unknown parts. ``span`` is the number of its lines
    minus one.
    """

    text: str
    line: int
    unknown: bool = False
    marked: str = ""
    span: int = 0


# a command, or a part of one
CommandLine = list[Word]
