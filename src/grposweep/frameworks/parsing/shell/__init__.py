"""Shell scripts that launch trainings, read as bash reads them and never run."""

from dataclasses import dataclass


@dataclass
class Word:
    """One word after expansion; ``unknown`` where some of it could not be resolved.

    ``marked`` is its text with marks around what is not known, ``span`` the number of lines that it is written on, less one.
    """

    text: str
    line: int
    unknown: bool = False
    marked: str = ""
    span: int = 0
