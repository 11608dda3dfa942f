"""Read shell scripts that launch trainings as bash does. They are never run."""

from dataclasses import dataclass


@dataclass
class Word:
    """One word after expansion; ``unknown`` if part of it could not be resolved.

    ``marked`` is its text with marks around the unknown parts. ``span`` is the number of its lines minus one.
    """

    text: str
    line: int
    unknown: bool = False
    marked: str = ""
    span: int = 0
