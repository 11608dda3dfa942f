"""Known defects of releases that raise nothing, read from ``defects.yaml``.

A row of the file is a defect: the framework, the first and the last release that have it and the
release that fixes it, the keys that meet it (``when``), its effect, what to set instead, and the
reference. A value of ``when`` is a condition of `model/conditions.py` on the value that a key has
(its release's default counts), ``{unset: true}`` (the recipe does not have the key) or
``{multiple_of: number or key}``. Several names of one key are separated by ``|``.
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal

from grporecipe.files import Config, read_own_yaml
from grporecipe.model.releases import parse_release
from grporecipe.model.setting import Version


@dataclass(frozen=True, kw_only=True)
class Defect:
    """A row of ``defects.yaml``."""

    name: str
    framework: str
    first: Version
    last: Version
    fixed_in: str
    when: Config
    effect: str
    instead: str
    source: str
    severity: Literal["error", "warning", "note"] = "warning"


@cache
def load_defects() -> tuple[Defect, ...]:
    """Return the known defects, in the order of the file."""
    return tuple(
        Defect(
            name=name,
            **{**row, "first": parse_release(row["first"]), "last": parse_release(row["last"])},
        )
        for name, row in read_own_yaml(__file__, "defects.yaml").items()
    )
