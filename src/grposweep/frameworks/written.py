"""A setting written in a framework's own words: its recipe, the command that launches it, and what got lost."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Written:
    """A native recipe, every default that differs from other frameworks' made explicit.

    ``recipe`` is the text of the native file ``file_name`` (a YAML, or a script); ``command`` launches it from the folder
    it is in, with ``environment`` beside what is there; ``losses`` say what the framework cannot do, or does otherwise,
    and why.
    """

    recipe: str
    file_name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    losses: tuple[str, ...] = ()
