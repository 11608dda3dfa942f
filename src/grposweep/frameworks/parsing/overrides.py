"""Nested configurations as OmegaConf reads them: dotted keys from a YAML text and from the overrides of a command line.

Sources: omegaconf 2.3 _utils.py (its YAML loader takes ``1e-6`` for a number), omegaconf.py from_dotlist; hydra 1.3
core/override_parser (``+key``, ``++key``, ``~key``, quotes, ``null``).

The overrides on the command line of EasyR1 (``config=x.yaml a.b=c``) and of verl (``--config-name=x +a.b=c``).

Sources: EasyR1 verl/trainer/main.py (OmegaConf.from_cli), hydra 1.3 main's own options; in both the last of two wins, but
Hydra refuses ``+key`` for a key that exists.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

from grposweep.errors import UserError
from grposweep.frameworks.parsing.bash import Word
from grposweep.frameworks.parsing.launch import LaunchCommand
from grposweep.frameworks.parsing.yaml_text import DEEPEST, LOADER, FlatConfig, parse_with
from grposweep.recipe import Duplicate

OVERRIDE = re.compile(r"(\+\+|\+|~)?([A-Za-z_][\w@/-]*(?:\.[\w@/-]+)*)(?:=(.*))?", re.DOTALL)
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:\s*,\s*([^{}]*))?\}")
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*(?:[eE][-+]?[0-9]+)|\.[0-9_]+(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
MOST_REFERENCES = 10  # followed one after the other


class Override(NamedTuple):
    """One word of a command line: ``+a.b=1`` has the sign ``+``; without ``=`` there is no value."""

    sign: str
    key: str
    value: Any


class _Loader(LOADER):  # type: ignore[misc]  # PyYAML's, with or without libyaml
    """PyYAML's safe loader with OmegaConf's idea of a number."""


_Loader.yaml_implicit_resolvers = {
    start: [(tag, regexp) for tag, regexp in pairs if tag != "tag:yaml.org,2002:timestamp"]
    for start, pairs in LOADER.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(f"^(?:{_FLOAT.pattern})$"), list("-+0123456789."))


def parse_nested(text: str) -> FlatConfig:
    """A nested YAML with dotted keys, the line of each, and the keys that are set twice."""
    return parse_with(text, _Loader, flatten_node)


def flatten_node(loader: Any, node: Any) -> FlatConfig:
    """The leaves below a mapping node; a list, an empty mapping and a scalar are leaves."""
    config: dict[str, Any] = {}
    lines: dict[str, int] = {}
    twice: list[Duplicate] = []
    for key, line, value in _leaves(loader, node, ""):
        if key in lines:
            twice.append(Duplicate(key, lines[key], line))
        config[key], lines[key] = value, line
    return FlatConfig(config, lines, tuple(twice))


def _leaves(loader: Any, node: Any, prefix: str) -> Iterator[tuple[str, int, Any]]:
    loader.flatten_mapping(node)
    for key_node, value_node in node.value:
        key = f"{prefix}{key_node.value}"
        if isinstance(value_node, yaml.MappingNode) and value_node.value:
            yield from _leaves(loader, value_node, f"{key}.")
        else:
            yield key, key_node.start_mark.line + 1, loader.construct_object(value_node, deep=True)


def flatten(config: Mapping[str, Any], separator: str = ".", depth: int = 0) -> dict[str, Any]:
    """Return the leaves of a mapping that may be nested, or dotted already, by joined keys.

    Raises UserError for a mapping that is nested deeper than any recipe.
    """
    if depth > DEEPEST:
        raise UserError(f"it is nested more than {DEEPEST} levels deep, so it is no recipe.")
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            inner = flatten(value, separator, depth + 1)
            found |= {f"{key}{separator}{name}": leaf for name, leaf in inner.items()}
        else:
            found[str(key)] = value
    return found


def nest(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted keys as a nested mapping."""
    found: dict[str, Any] = {}
    for key, value in keys.items():
        *sections, last = key.split(".")
        inner = found
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return found


def parse_override(word: str) -> Override | None:
    """``a.b=c`` with its sign; None for a word that is none."""
    match = OVERRIDE.fullmatch(word)
    if match is None or (match[3] is None and match[1] != "~"):
        return None
    return Override(match[1] or "", match[2], None if match[3] is None else parse_value(match[3]))


def parse_value(text: str) -> Any:
    """A value of a command line, as a YAML scalar or flow; what is none is text."""
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, AttributeError):
        return text
    finally:
        loader.dispose()


def resolve(values: Mapping[str, Any], key: str) -> Any:
    """A key's value, references to other keys followed; None where they lead nowhere."""
    value = values.get(key)
    for _ in range(MOST_REFERENCES):
        match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            return None if isinstance(value, str) and "${" in value else value
        found = values.get(match[1])
        value = parse_value(match[2]) if found is None and match[2] is not None else found
    return None


FILE_OPTIONS = ("--config-name", "-cn", "--config-path", "-cp", "--config-dir", "-cd")


@dataclass
class Overrides:
    """What a command line sets: keys with their signs, where, and the configuration file under them (empty: none)."""

    config: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    duplicates: tuple[Duplicate, ...] = ()
    unresolved: dict[str, str] = field(default_factory=dict)
    base: str = ""


def read_overrides(start: LaunchCommand) -> Overrides:
    """The overrides behind the program's name, in order."""
    said = Overrides()
    options: dict[str, str] = {}
    words = iter(start.after)
    for word in words:
        name, equals, value = word.text.partition("=")
        if name in FILE_OPTIONS:
            options[name] = value if equals else getattr(next(words, None), "text", "")
        elif name == "config":
            said.base = value
        else:
            _take(said, word)
    said.base = said.base or _named(options)
    return said


def _take(said: Overrides, word: Word) -> None:
    override = parse_override(word.text)
    if override is None:
        if word.unknown:
            said.unresolved[word.text] = word.text  # "$@" and the like may hold overrides
        return
    key = ("~" if override.sign == "~" else override.sign) + override.key
    for before in [known for known in said.config if known.lstrip("+") == override.key]:
        said.duplicates += (Duplicate(override.key, said.lines[before], word.line),)
        del said.config[before], said.lines[before]
    said.config[key], said.lines[key] = override.value, word.line
    said.unresolved.pop(key, None)
    if word.unknown and "${" + "oc." not in word.text:
        said.unresolved[key] = word.text.partition("=")[2]


def _named(options: Mapping[str, str]) -> str:
    """The file that Hydra's own options name; with neither path nor name it is verl's own."""
    name = options.get("--config-name") or options.get("-cn") or ""
    folder = (
        options.get("--config-path") or options.get("-cp") or options.get("--config-dir") or options.get("-cd") or ""
    )
    if not name:
        return ""
    name = name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"
    return f"{folder.rstrip('/')}/{name}" if folder else name
