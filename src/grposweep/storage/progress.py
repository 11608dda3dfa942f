"""outlook.json: what only a controller knows, for whoever looks at the sweep: how far it is to go, and what it waits for."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from grposweep.files import as_number, read_json, write_json

NAME = "outlook.json"


@dataclass(frozen=True)
class Outlook:
    """A sweep's way ahead; None stands for what is not known (older sweeps have no such file).

    ``points`` and ``valid`` count the combinations of the finite dials; ``waiting`` says why queued trials wait, by number.
    """

    target: int | None = None  # trials in all
    at_once: int | None = None
    sampler: str = ""
    budget_gpu_hours: float | None = None
    points: int | None = None
    valid: int | None = None
    waiting: Mapping[str, str] = field(default_factory=dict)
    notice: str = ""  # why nothing is started, though there may be more to do


def write_outlook(sweep: Path, outlook: Outlook) -> None:
    """Replace it."""
    write_json(sweep / NAME, asdict(outlook))


def read_outlook(sweep: Path) -> Outlook:
    """What was written last; nothing known where that is nothing, or cannot be read."""
    found = read_json(sweep / NAME) or {}
    waiting = found.get("waiting")
    return Outlook(
        target=_count(found.get("target")),
        at_once=_count(found.get("at_once")),
        sampler=_text(found.get("sampler")),
        budget_gpu_hours=as_number(found.get("budget_gpu_hours")),
        points=_count(found.get("points")),
        valid=_count(found.get("valid")),
        waiting={str(number): str(why) for number, why in waiting.items()} if isinstance(waiting, dict) else {},
        notice=_text(found.get("notice")),
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
