"""Edits of a YAML text at the places of its keys: comments, order, quotes, line ends and everything else stay as they are.

Only a mapping in block style, one key a line, is edited; every edit is read back and compared before anybody writes it.

Edits of a nested YAML at the places of its dotted keys; comments, order and everything else stay as they are.

Every edit is read back and compared before anybody writes it; what stands in a flow mapping (``{a: 1}``) is changed in place,
and otherwise left alone.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from grposweep.errors import UserError
from grposweep.frameworks.parsing.overrides import parse_nested
from grposweep.frameworks.parsing.yaml_text import parse_yaml

PLAIN = str.maketrans("", "", "_-/.")


class Entry(NamedTuple):
    """Where one key of the top level stands, in characters; ``end`` is behind its value, 0 where it has none."""

    key: str
    key_start: int
    key_end: int
    start: int
    end: int


def edit(text: str, change: Mapping[str, Any]) -> str | None:
    """The text after a change of keys (None removes one); None where it cannot be edited without touching more."""
    try:
        return _edited(text, change)
    except (UserError, RecursionError):  # a mapping that holds itself compares without end
        return None


def _edited(text: str, change: Mapping[str, Any]) -> str | None:
    before = parse_yaml(text).config
    wanted = {key: value for key, value in before.items() if key not in change}
    wanted |= {key: value for key, value in change.items() if value is not None}
    edited = text
    for old, new, value in _moves(before, change):
        step = _set(edited, new, value) if old == new else _rename(edited, old, new, value)
        if step is None:
            return None
        edited = step
    return edited if parse_yaml(edited).config == wanted else None


def _moves(before: Mapping[str, Any], change: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """Old key, new key, value. One key gone and one key new is a rename in place, so that its comment stays beside it."""
    gone = [key for key, value in change.items() if value is None and key in before]
    new = [key for key, value in change.items() if value is not None and key not in before]
    if len(gone) == len(new) == 1:
        rest = [(key, key, value) for key, value in change.items() if key in before and value is not None]
        return [(gone[0], new[0], change[new[0]]), *rest]
    return [(key, key, value) for key, value in change.items() if value is not None or key in before]


def _entries(text: str) -> list[Entry] | None:
    """The keys of the top level; None unless it is a mapping in block style."""
    shift = len(text) - len(text.removeprefix("\ufeff"))
    node = yaml.compose(text[shift:], yaml.SafeLoader)  # the slow loader, whose marks count characters
    if not isinstance(node, yaml.MappingNode) or node.flow_style:
        return None
    return [
        Entry(str(key.value), *(at + shift for at in (*_marks(key), value.start_mark.index, value_end(value))))
        for key, value in node.value
    ]


def _marks(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.index, node.end_mark.index


def value_end(node: yaml.Node) -> int:
    """Behind the last character of a value: a block's own mark stands where the next key starts, comments between."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return value_end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def _rename(text: str, old: str, new: str, value: Any) -> str | None:
    entries = [entry for entry in _entries(text) or [] if entry.key == old]
    if len(entries) != 1:
        return None
    entry = entries[0]
    return _set(text[: entry.key_start] + new + text[entry.key_end :], new, value)


def _set(text: str, key: str, value: Any) -> str | None:
    """A key to a value: in place, or on a line of its own at the end; the last of several stays."""
    entries = _entries(text)
    if entries is None:
        return None
    found = [entry for entry in entries if entry.key == key]
    for entry in reversed(found[:-1] if value is not None else found):
        shorter = _without(text, entry, entries)
        if shorter is None:
            return None
        text = shorter
    if value is None:
        return text
    if not found:
        return _append(text, key, value)
    last = [entry for entry in _entries(text) or [] if entry.key == key]
    if len(last) != 1:
        return None
    now = parse_yaml(text).config.get(key)
    if now == value and type(now) is type(value):
        return text
    entry = last[0]
    gap = " " if entry.start == entry.end else ""  # an empty value
    return text[: entry.start] + gap + render_value(value) + text[entry.end :]


def _without(text: str, entry: Entry, entries: list[Entry]) -> str | None:
    """The text without the lines of one key; None where another key shares them."""
    start = text.rfind("\n", 0, entry.key_start) + 1
    value_end = max(entry.end, entry.key_end)
    while value_end > entry.key_end and text[value_end - 1] in " \t\r\n":
        value_end -= 1  # a block value's end is where the next key starts
    newline = text.find("\n", value_end)
    end = len(text) if newline < 0 else newline + 1
    others = [other for other in entries if other is not entry and start <= other.key_start < end]
    return None if others or text[start : entry.key_start].strip("\ufeff \t") else text[:start] + text[end:]


def _append(text: str, key: str, value: Any) -> str:
    newline = newline_of(text)
    gap = "" if not text or text.endswith("\n") else newline
    return f"{text}{gap}{key}: {render_value(value)}{newline}"


def newline_of(text: str) -> str:
    """The line ends of a text."""
    return "\r\n" if "\r\n" in text else "\n"


def render_value(value: Any) -> str:
    """A value as YAML 1.1 reads it back: floats with a dot, words with quotes where they would mean something else."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, float):
        text = repr(value)
        mantissa, e, exponent = text.partition("e")
        return text if not e or "." in mantissa else f"{mantissa}.0e{exponent}"
    if isinstance(value, str):
        plain = value.translate(PLAIN).isalnum() and value.isascii() and yaml.safe_load(value) == value
        return value if plain else _dump(value, default_style='"')
    return _dump(value, default_flow_style=True) if isinstance(value, (list, dict)) else str(value)


def _dump(value: Any, **style: Any) -> str:
    return str(yaml.safe_dump(value, width=10**6, allow_unicode=True, sort_keys=False, **style)).strip()


STEP = 2  # blanks of a new section's indentation


def edit_nested(text: str, change: Mapping[str, Any]) -> str | None:
    """The text after a change of dotted keys (None removes one); None where it cannot be edited without touching more."""
    try:
        wanted = {key: value for key, value in parse_nested(text).config.items() if key not in change}
        wanted |= {key: value for key, value in change.items() if value is not None}
        edited: str | None = text
        for key, value in change.items():
            edited = None if edited is None else _set_edit_nested(edited, key.split("."), value)
        return edited if edited is not None and parse_nested(edited).config == wanted else None
    except (UserError, RecursionError):
        return None


def _set_edit_nested(text: str, path: list[str], value: Any) -> str | None:
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
        return text if value is None else _append_edit_nested(text, section, rest, value)
    key, old = found
    if value is None:
        return _without_edit_nested(text, section, key, old)
    gap = " " if old.start_mark.index == old.end_mark.index else ""  # an empty value
    return text[: old.start_mark.index] + gap + render_value(value) + text[value_end(old) :]


def _root(text: str) -> yaml.MappingNode | None:
    node = yaml.compose(text, yaml.SafeLoader)  # the slow loader, whose marks count characters
    return node if isinstance(node, yaml.MappingNode) else None


def _entry(section: yaml.MappingNode, name: str) -> tuple[yaml.Node, yaml.Node] | None:
    """The last key of this name, and its value."""
    return next(((key, value) for key, value in reversed(section.value) if key.value == name), None)


def _without_edit_nested(text: str, section: yaml.MappingNode, key: yaml.Node, value: yaml.Node) -> str | None:
    """The text without a key's lines; None where it shares a line, or is all that its section has."""
    start = text.rfind("\n", 0, key.start_mark.index) + 1
    newline = text.find("\n", max(value_end(value), key.end_mark.index))
    end = len(text) if newline < 0 else newline + 1
    if section.flow_style or len(section.value) == 1 or text[start : key.start_mark.index].strip():
        return None
    return text[:start] + text[end:]


def _append_edit_nested(text: str, section: yaml.MappingNode, path: list[str], value: Any) -> str | None:
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
