"""Which keys `swift rlhf` takes, how its parser reads their values, and how a key may be spelled.

``ms_swift_keys.json`` is written by benchmarks/tools/ms_swift_keys.py from ms-swift's own parser. Source of the rest:
ms-swift cli/main.py parse_yaml_args (a YAML's values become words of a command line), argparse (abbreviations).
"""

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from grposweep.frameworks.keys import Key
from grposweep.frameworks.values import Value, convert

ENVIRONMENT = "ENV"  # of a YAML: variables for the processes, no key


@cache
def table() -> dict[str, Any]:
    """The committed table."""
    return dict(json.loads(files("grposweep.frameworks").joinpath("ms_swift_keys.json").read_text(encoding="utf-8")))


@cache
def known() -> Mapping[str, Key]:
    """Every key, with its type and default."""
    return {name: Key(entry[0], entry[1]) for name, entry in table()["keys"].items()}


def choices(name: str) -> tuple[str, ...]:
    """The words that a key may hold, none where it may hold any."""
    entry = table()["keys"][name]
    return tuple(entry[2]) if len(entry) > 2 else ()


@lru_cache(maxsize=4096)
def spelled(name: str) -> str:
    """A key as the parser understands it: dashes for underscores, and the beginning of one key only."""
    plain = name.replace("-", "_")
    if plain in known() or plain == ENVIRONMENT:
        return plain
    meant = [key for key in known() if key.startswith(plain)]
    return meant[0] if len(meant) == 1 else plain


def read_value(value: Any, kind: str) -> Value:
    """What the parser makes of a value, which reaches it as text: ``null`` as the word None, ``8.0`` as no whole number."""
    if kind.startswith("list"):
        return Value(value if isinstance(value, list) else [value], "" if value not in ([], None) else "type")
    if isinstance(value, list):
        return Value(None, "type") if len(value) != 1 else read_value(value[0], kind)
    if value is None:
        return Value(None, "type")
    text = json.dumps(value) if isinstance(value, dict) else str(value)
    found = convert(text, kind.rstrip("?"))
    return Value(found.value, "" if found.trouble == "string" else found.trouble)
