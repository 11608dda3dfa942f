"""Read YAML texts and overrides as the frameworks' parsers do, with the line of each key.

Flat recipes are read by PyYAML's safe loader (YAML 1.1), because TRL uses it: ``no`` is false
there, and ``3e-06`` is text, which argparse then converts to the key's type. Nested recipes are
read as OmegaConf does, with dotted keys. Sources: trl scripts/utils.py TrlParser (a YAML's values
become argparse defaults; argparse converts defaults that are strings); hydra 1.3
core/override_parser (``+key``, ``++key``, ``~key``, quotes, ``null``).
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import yaml

from grporecipe.errors import UserError
from grporecipe.files import DEEPEST, Json, count_yaml_values, is_deep_yaml
from grporecipe.model.recipe import Duplicate
from grporecipe.model.values import LOADER, NestedLoader, parse_value

# keys and values with aliases expanded; the longest recipes have hundreds
MOST_VALUES = 20_000


class FlatConfig(NamedTuple):
    """A mapping, the (last) line of each of its keys, and the keys that are set twice."""

    config: Json
    lines: dict[str, int]
    duplicates: tuple[Duplicate, ...]


def parse_yaml(text: str) -> FlatConfig:
    """Parse a YAML text that is one mapping. Raises UserError for anything else."""
    return parse_with(text, LOADER, _top_level)


def parse_with(text: str, loader_class: Any, read: Callable[[Any, Any], FlatConfig]) -> FlatConfig:
    """Parse a YAML text that is one mapping with a loader of this class. ``read`` gets the loader
    and the node.
    """
    text = text.removeprefix("\ufeff")
    loader = loader_class(text)
    try:
        if is_deep_yaml(text):
            raise UserError(f"it is nested more than {DEEPEST} levels deep, so it is no recipe.")
        node = loader.get_single_node()
        if node is None:
            raise UserError("it is empty: a recipe is a YAML mapping of keys to values.")
        if not isinstance(node, yaml.MappingNode):
            kind = "a single value"
            if isinstance(node, yaml.SequenceNode):
                kind = "a list"
            raise UserError(f"it is YAML, but {kind} and not a mapping of keys to values.")
        if count_yaml_values(node, {}) > MOST_VALUES:
            raise UserError(f"it has more than {MOST_VALUES:,} values, so it is no recipe.")
        return read(loader, node)
    except yaml.YAMLError as error:
        raise UserError(_explain(error, text)) from None
    except (ValueError, TypeError, RecursionError, AttributeError) as error:
        # a date of month 13, a key that is a list
        reason = " ".join(str(error).split())[:120] or "nested too deep"
        raise UserError(f"it is not YAML that can be read: {reason}.") from None
    finally:
        loader.dispose()


def _top_level(loader: Any, node: Any) -> FlatConfig:
    """Return the keys of the top-level mapping."""
    entries = [(str(key.value), key.start_mark.line + 1, value.value) for key, value in node.value]
    config = loader.construct_document(node)
    _, lines, duplicates = _last_of_each(entries)
    return FlatConfig(
        {str(key): value for key, value in config.items()},
        lines,
        tuple(twice for twice in duplicates if twice.key != "<<"),
    )


def _last_of_each(entries: Iterable[tuple[str, int, Any]]) -> FlatConfig:
    """Return the last value and line of each key, and the keys with several values."""
    config: Json = {}
    lines: dict[str, int] = {}
    twice: list[Duplicate] = []
    for key, line, value in entries:
        if key in lines and config[key] != value:
            twice.append(Duplicate(key, lines[key], line, config[key]))
        config[key], lines[key] = value, line
    return FlatConfig(config, lines, tuple(twice))


INDENTATION = (
    "Indent the line with spaces as its neighbours, close its brackets and quotes, "
    "and quote a text that holds a colon."
)


# an input method's forms of ASCII, outside of comments and quotes
FULL_WIDTH = "[^#'\"]*?([\uff01-\uff5e])"


def _explain(error: yaml.YAMLError, text: str) -> str:
    """Return the line and the reason of an error, without PyYAML's excerpt."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    reason = (
        getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
    )
    if not isinstance(error, yaml.MarkedYAMLError) or mark is None:
        return f"it is not YAML: {' '.join(str(reason).split())[:120]}."
    said = f"it is not YAML (line {mark.line + 1}): {' '.join(str(reason).split())[:120]}."
    for number, line in reversed([*enumerate(text.split("\n")[: mark.line + 1], 1)][-2:]):
        if wide := re.match(FULL_WIDTH, line):
            return (
                f"{said} Line {number} has a full-width {wide[1]!r}: write "
                f"{unicodedata.normalize('NFKC', wide[1])!r}."
            )
    return f"{said} {INDENTATION}"


OVERRIDE = r"(?s)(\+\+|\+|~)?([A-Za-z_][\w@/-]*(?:\.[\w@/-]+)*)(?:=(.*))?"


class Override(NamedTuple):
    """One word of a command line: ``+a.b=1`` has the sign ``+``; without ``=`` there is no
    value.
    """

    sign: str
    key: str
    value: Any


def parse_nested(text: str) -> FlatConfig:
    """Parse a nested YAML into dotted keys, the line of each, and the keys that are set twice."""
    return parse_with(text, NestedLoader, flatten_node)


def flatten_node(loader: Any, node: Any) -> FlatConfig:
    """Return the leaves below a mapping node. Lists, empty mappings and scalars are leaves."""
    return _last_of_each(_leaves(loader, node, ""))


def _leaves(loader: Any, node: Any, prefix: str) -> Iterator[tuple[str, int, Any]]:
    loader.flatten_mapping(node)
    for key_node, value_node in node.value:
        key = f"{prefix}{key_node.value}"
        if isinstance(value_node, yaml.MappingNode) and value_node.value:
            yield from _leaves(loader, value_node, f"{key}.")
        else:
            yield key, key_node.start_mark.line + 1, loader.construct_object(value_node, deep=True)


# a placeholder: YAML reads a key without a value, Hydra refuses it
IN_BRACES = re.compile(r"\{[^{}:,$'\"]+\}")


def parse_override(word: str) -> Override | None:
    """Parse ``a.b=c`` with its sign; None if a word is no override."""
    match = re.fullmatch(OVERRIDE, word)
    if match is None or (match[3] is None and match[1] != "~"):
        return None
    value = match[3]
    if value is not None and not IN_BRACES.fullmatch(value):
        value = parse_value(value)
    return Override(match[1] or "", match[2], value)
