"""A flat YAML recipe as TRL's parser reads it (PyYAML's safe loader, YAML 1.1), with the line of each key.

PyYAML and not a YAML 1.2 reader, because the question is what TRL will see: ``no`` is false there, ``3e-06`` is text.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import yaml

from grposweep.errors import UserError
from grposweep.files import yaml_loader
from grposweep.recipe import Duplicate

LOADER = yaml_loader()
DEEPEST = 100  # levels
MOST_VALUES = 20_000  # keys and values with aliases written out; the longest recipes have hundreds
LONGEST_NUMBER = 4000  # characters of a whole number: Python itself writes no longer ones


class FlatConfig(NamedTuple):
    """A mapping, the line of each of its keys (the last, where there are several), and the keys set twice."""

    config: dict[str, Any]
    lines: dict[str, int]
    duplicates: tuple[Duplicate, ...]


def parse_yaml(text: str) -> FlatConfig:
    """A YAML text that is one mapping; anything else is bad input, said in one line."""
    return parse_with(text, LOADER, _top_level)


def parse_with(text: str, kind: Any, read: Callable[[Any, Any], FlatConfig]) -> FlatConfig:
    """A YAML text that is one mapping, by a loader of this kind; ``read`` makes of loader and node what is wanted."""
    text = text.removeprefix("\ufeff")
    loader = kind(text)
    try:
        _refuse_depth(text)
        node = loader.get_single_node()
        if node is None:
            raise UserError("it is empty: a recipe is a YAML mapping of keys to values.")
        if not isinstance(node, yaml.MappingNode):
            raise UserError(f"it is YAML, but {_kind(node)} and not a mapping of keys to values.")
        if _count_values(node, {}) > MOST_VALUES:
            raise UserError(f"it has more than {MOST_VALUES:,} values, so it is no recipe.")
        return read(loader, node)
    except yaml.YAMLError as error:
        raise UserError(_explain(error)) from None
    except (ValueError, TypeError, RecursionError, AttributeError) as error:  # a date of month 13, a key that is a list
        raise UserError(
            f"it is not YAML that can be read: {' '.join(str(error).split())[:120] or 'nested too deep'}."
        ) from None
    finally:
        loader.dispose()


def _top_level(loader: Any, node: Any) -> FlatConfig:
    """The keys of the mapping itself."""
    keys = [(_name(key), key.start_mark.line + 1) for key, _ in node.value]
    config = loader.construct_document(node)
    lines: dict[str, int] = {}
    duplicates = []
    for name, line in keys:
        if name in lines and name != "<<":
            duplicates.append(Duplicate(name, lines[name], line))
        lines[name] = line
    return FlatConfig({str(key): value for key, value in config.items()}, lines, tuple(duplicates))


def _refuse_depth(text: str) -> None:
    """The reader of libyaml calls itself for each level, and what is nested 100,000 deep ends the whole process."""
    if sum(text.count(sign) for sign in "[{-?") <= DEEPEST:
        return
    depth = 0
    for event in yaml.parse(text, LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise UserError(f"it is nested more than {DEEPEST} levels deep, so it is no recipe.")


def _count_values(node: Any, known: dict[int, int]) -> int:
    """The nodes below a node, and it: a few lines of aliases of aliases stand for more values than fit into memory.

    Raises ValueError for a number that nobody can write, such as one in base 60 over pages.
    """
    if isinstance(node, yaml.ScalarNode):
        if node.tag == "tag:yaml.org,2002:int" and len(node.value) > LONGEST_NUMBER:
            raise ValueError(f"a number of {len(node.value):,} characters")
        return 1
    if id(node) not in known:
        known[id(node)] = 1  # a node may hold itself
        below = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        known[id(node)] = 1 + sum(_count_values(part, known) for part in below)
    return known[id(node)]


def _name(node: Any) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def _kind(node: Any) -> str:
    return "a list" if isinstance(node, yaml.SequenceNode) else "a single value"


def _explain(error: yaml.YAMLError) -> str:
    """The line and the reason, without PyYAML's excerpt."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
    where = f" (line {mark.line + 1})" if mark is not None else ""
    return f"it is not YAML{where}: {' '.join(str(reason).split())[:120]}."
