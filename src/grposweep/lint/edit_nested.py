"""Edits of a nested YAML at the places of its dotted keys; comments, order and everything else stay as they are.

Every edit is read back and compared before anybody writes it; what stands in a flow mapping (``{a: 1}``) is changed in place,
and otherwise left alone.
"""

from collections.abc import Mapping
from typing import Any

import yaml

from grposweep.errors import BadInput
from grposweep.frameworks.dotted import parse_nested
from grposweep.lint.edit import newline_of, render_value, value_end

STEP = 2  # blanks of a new section's indentation


def edit_nested(text: str, change: Mapping[str, Any]) -> str | None:
    """The text after a change of dotted keys (None removes one); None where it cannot be edited without touching more."""
    try:
        wanted = {key: value for key, value in parse_nested(text).config.items() if key not in change}
        wanted |= {key: value for key, value in change.items() if value is not None}
        edited: str | None = text
        for key, value in change.items():
            edited = None if edited is None else _set(edited, key.split("."), value)
        return edited if edited is not None and parse_nested(edited).config == wanted else None
    except (BadInput, RecursionError):
        return None


def _set(text: str, path: list[str], value: Any) -> str | None:
    """One key to a value: in place, or on a line of its own at the end of the deepest section that is there."""
    section, rest = _root(text), list(path)
    while section is not None and len(rest) > 1 and (inner := _entry(section, rest[0])) is not None:
        if not isinstance(inner[1], yaml.MappingNode):
            return None
        section, rest = inner[1], rest[1:]
    if section is None:
        return None
    found = _entry(section, rest[0]) if len(rest) == 1 else None
    if found is None:
        return text if value is None else _append(text, section, rest, value)
    key, old = found
    if value is None:
        return _without(text, section, key, old)
    gap = " " if old.start_mark.index == old.end_mark.index else ""  # an empty value
    return text[: old.start_mark.index] + gap + render_value(value) + text[value_end(old) :]


def _root(text: str) -> yaml.MappingNode | None:
    node = yaml.compose(text, yaml.SafeLoader)  # the slow loader, whose marks count characters
    return node if isinstance(node, yaml.MappingNode) else None


def _entry(section: yaml.MappingNode, name: str) -> tuple[yaml.Node, yaml.Node] | None:
    """The last key of this name, and its value."""
    return next(((key, value) for key, value in reversed(section.value) if key.value == name), None)


def _without(text: str, section: yaml.MappingNode, key: yaml.Node, value: yaml.Node) -> str | None:
    """The text without a key's lines; None where it shares a line, or is all that its section has."""
    start = text.rfind("\n", 0, key.start_mark.index) + 1
    newline = text.find("\n", max(value_end(value), key.end_mark.index))
    end = len(text) if newline < 0 else newline + 1
    if section.flow_style or len(section.value) == 1 or text[start : key.start_mark.index].strip():
        return None
    return text[:start] + text[end:]


def _append(text: str, section: yaml.MappingNode, path: list[str], value: Any) -> str | None:
    """New lines behind a section's last entry, at its own indentation."""
    if section.flow_style or not section.value:
        return None
    last_key, last = section.value[-1]
    newline = text.find("\n", max(value_end(last), last_key.end_mark.index))
    end = len(text) if newline < 0 else newline + 1
    indent, lines = section.value[0][0].start_mark.column, []
    for depth, name in enumerate(path):
        words = f"{name}: {render_value(value)}" if depth == len(path) - 1 else f"{name}:"
        lines.append(" " * (indent + depth * STEP) + words + newline_of(text))
    gap = "" if text[:end].endswith("\n") else newline_of(text)
    return text[:end] + gap + "".join(lines) + text[end:]
