"""Lint compared with ms-swift's own argument classes: recorded verdicts, and (slow, where its
environment is) new ones.

Recorded by benchmarks/frameworks/ms_swift.py: drawn recipes, each also broken in one of the known
ways.
"""

import json
from pathlib import Path

import pytest

from grporecipe.files import Json
from grporecipe.linting.linter import lint_recipe
from grposweep.process import PROJECT
from real_ms_swift import LATE, MUTATIONS, agrees, build_recipe, codes_of, compare, is_broken

VERDICTS = Path(__file__).parent / "ms_swift_verdicts.jsonl"
PYTHON = PROJECT / ".venvs" / "ms-swift" / "bin" / "python"
TINY = PROJECT / "outputs" / "ms-swift-tiny"


def recorded() -> list[Json]:
    """Recipes with what ms-swift 4.6.0 said."""
    return [json.loads(line) for line in VERDICTS.read_text().splitlines()]


def test_lint_agrees_with_every_recorded_verdict() -> None:
    """Accepted by both, or refused by both for the same reason; what fails late is refused. Most of
    them are broken.
    """
    assert {line["mutation"] for line in recorded() if is_broken(line)} >= set(MUTATIONS)
    assert 200 <= sum(map(is_broken, recorded())) <= len(recorded()) - 40
    for line in recorded():
        verdict = lint_recipe(build_recipe(line["processes"], line["config"]), with_fixes=False)
        if line["mutation"] in LATE:
            assert codes_of(verdict), line
        else:
            assert agrees(verdict, line["error"]), (line, codes_of(verdict))


@pytest.mark.slow
@pytest.mark.skipif(
    not PYTHON.exists() or not TINY.exists(),
    reason="make ms-swift makes its environment and a model",
)
def test_lint_agrees_with_the_real_classes_on_new_recipes() -> None:
    """Another seed than that of the record."""
    done = compare(str(PYTHON), str(TINY), 100, seed=2)
    assert not done.differences
    assert min(done.accepted, done.refused, done.fixes) > 50
