"""The environments in which grposweep is started: those of environments.yaml."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

PRINTS = 'import os\nprint("hello")\nos.write(1, b"no line end")\n'
BREAKS = 'raise RuntimeError("the file of the user was imported instead of the package")\n'


@dataclass(frozen=True)
class Environment:
    """One environment: what is set, which files are there, how the command is started, and how it
    is expected to end.
    """

    name: str
    # None: not set; {here} is the working directory
    variables: Mapping[str, str | None] = field(default_factory=dict)
    # in the working directory
    files: Mapping[str, str] = field(default_factory=dict)
    # a shell command before the command
    enter: str = ""
    # what the shell has after the command
    streams: str = ""
    code: int = 0
    # a part of what it prints
    says: str = ""
    # whether the default tier prints a sweep's screen there
    shows: bool = False
    # never together with another environment in one run, because it would hide what the other does
    alone: bool = False
    # by the fake trainer, as only the output of the controller is in question
    fake: bool = False
    # Python does not see the files of other environments there
    hides: bool = False

    def fits(self, others: Iterable["Environment"]) -> bool:
        """Return whether one run can be in this environment and in the others."""
        return (
            not self.alone
            and not self.code
            and not any(
                other.alone
                or other.code
                or (self.streams and other.streams)
                or self.variables.keys() & other.variables.keys()
                or self.files.keys() & other.files.keys()
                or (self.hides and other.files)
                or (other.hides and self.files)
                for other in others
            )
        )


def together(environments: Iterable[Environment]) -> list[list[Environment]]:
    """Return groups of environments that one run can be in, each in the smallest group that it
    fits.
    """
    groups: list[list[Environment]] = []
    for one in environments:
        group = min((group for group in groups if one.fits(group)), key=len, default=None)
        groups.append([one]) if group is None else group.append(one)
    return groups


def read_environment(row: dict[str, Any]) -> Environment:
    """Return the environment of a row, with this PATH and the texts of files that stand for a name."""
    files = {
        name: text.replace("$BREAKS", BREAKS).replace("$PRINTS", PRINTS)
        for name, text in row.get("files", {}).items()
    }
    variables = {
        name: value and value.replace("{PATH}", os.environ["PATH"])
        for name, value in row.get("variables", {}).items()
    }
    return Environment(**{**row, "files": files, "variables": variables})


ROWS = yaml.safe_load(Path(__file__).with_name("environments.yaml").read_text(encoding="utf-8"))
ENVIRONMENTS = [read_environment(row) for row in ROWS]
