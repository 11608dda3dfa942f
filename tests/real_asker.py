"""What the comparisons with the frameworks' own code share: their tables, and the question."""

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
# By framework: known ways to break a recipe, and its words for what it refuses.
TABLES: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("mutations.yaml").read_text(encoding="utf-8")
)
Answers = tuple[dict[str, str], list[dict[str, Any]]]


def ask(python: str, script: Path, requests: Iterable[dict[str, Any]]) -> Answers:
    """Return the versions behind an interpreter, and the answer of its framework to each request."""
    done = subprocess.run(
        [python, str(script)],
        input="\n".join(map(json.dumps, requests)),
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    versions, *answers = (
        json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")
    )
    return versions, answers
