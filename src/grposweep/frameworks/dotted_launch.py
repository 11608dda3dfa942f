"""The overrides on the command line of EasyR1 (``config=x.yaml a.b=c``) and of verl (``--config-name=x +a.b=c``).

Sources: EasyR1 verl/trainer/main.py (OmegaConf.from_cli), hydra 1.3 main's own options; in both the last of two wins, but
Hydra refuses ``+key`` for a key that exists.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grposweep.frameworks.dotted import parse_override
from grposweep.frameworks.launch import DOTTED_OPTION, DOTTED_PROGRAM, Start
from grposweep.frameworks.shell import Word
from grposweep.recipe import Duplicate

FILE_OPTIONS = ("--config-name", "-cn", "--config-path", "-cp", "--config-dir", "-cd")


@dataclass
class Overrides:
    """What a command line sets: keys with their signs, where, and the configuration file under them (empty: none)."""

    config: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    duplicates: tuple[Duplicate, ...] = ()
    unresolved: dict[str, str] = field(default_factory=dict)
    base: str = ""


def is_dotted_launch(start: Start) -> bool:
    """Whether a launch is one of EasyR1 or verl."""
    return bool(DOTTED_PROGRAM.search(start.launch.program)) or any(
        DOTTED_OPTION.match(word.text) for word in start.after
    )


def read_overrides(start: Start) -> Overrides:
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
