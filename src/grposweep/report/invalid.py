"""The points that rules pruned before they cost anything, from a sweep's folder."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grposweep.files import read_lines


@dataclass(frozen=True)
class InvalidPoints:
    """The points that one rule prunes: how many, the first of them, why, and what would mend it."""

    code: str
    count: int
    point: Mapping[str, Any]
    message: str
    fixes: Sequence[str]


def read_invalid(sweep: Path) -> list[InvalidPoints]:
    """What invalid.jsonl says, by rule; a point that breaks several counts for each."""
    first: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
    counts: Counter[str] = Counter()
    for point, problem in _problems(sweep / "invalid.jsonl"):
        code = str(problem.get("code"))
        counts[code] += 1
        first.setdefault(code, (point, problem))
    return [
        InvalidPoints(code, count, first[code][0], str(first[code][1].get("message", "")), _fixes(first[code][1]))
        for code, count in counts.most_common()
    ]


def _problems(path: Path) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for line in read_lines(path, point=dict, problems=list):
        for problem in line["problems"]:
            if isinstance(problem, dict):
                yield line["point"], problem


def _fixes(problem: Mapping[str, Any]) -> list[str]:
    fixes = problem.get("fixes")
    return [
        " ".join(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in fix.items())
        for fix in (fixes if isinstance(fixes, list) else [])
        if isinstance(fix, dict)
    ]
