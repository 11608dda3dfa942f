"""Recipes found in public repositories, each with the verdict of the real GRPOConfig for 1 to 8 processes.

They are no part of this project: GRPOSWEEP_CORPUS names the folder that holds ``known.jsonl``.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from grposweep.fixes import find_fixes
from grposweep.frameworks.trl import reader as trl
from grposweep.recipe import Recipe
from grposweep.rules import check, errors
from grposweep.setting import Setting

CORPUS = os.environ.get("GRPOSWEEP_CORPUS")
pytestmark = pytest.mark.skipif(CORPUS is None, reason="GRPOSWEEP_CORPUS does not name a folder with known.jsonl")
WORDS = {
    "must be divisible by num_generations": "GB101",
    "at least 2 generations": "GB102",
    "must be divisible by the global batch size": "GB106",
    "can not be both configured": "GB107",
    "global eval batch size": "GE101",
}


def rows() -> Iterator[dict[str, Any]]:
    """The recipes of the TRL family, whose verdicts were made by running TRL."""
    with (Path(str(CORPUS)) / "known.jsonl").open() as lines:
        yield from (row for line in lines if "trl_batch_errors" in (row := json.loads(line))["expected"])


def read(row: dict[str, Any], processes: int | None) -> Setting:
    """The setting behind a recipe under TRL 1.10."""
    return trl.read(Recipe(framework="trl", version=(1, 10, 0), config=row["config"], processes=processes))


def test_the_rules_agree_with_trl_on_every_recipe_and_number_of_processes(capsys: pytest.CaptureFixture[str]) -> None:
    """Accepted or refused, and for one of the reasons that the rules give."""
    count, different = Counter[str](), []
    for row in rows():
        for processes, error in row["expected"]["trl_batch_errors"].items():
            problems = check(read(row, int(processes)), select=["GB", "GE"])
            codes = {problem.code for problem in errors(problems)}
            count["refused" if error else "accepted"] += 1
            reason = next((code for words, code in WORDS.items() if words in error), None)
            if (reason not in codes) if error else codes:
                different.append((row["id"], processes, error, sorted(codes)))
    recipes, verdicts = len(list(rows())), sum(count.values())
    with capsys.disabled():
        print(f"\n{verdicts} verdicts on {recipes} recipes, {dict(count)}: {len(different)} differ")
    assert not different
    assert count["refused"] > 100


def test_without_a_number_of_processes_a_recipe_is_judged_for_all() -> None:
    """An error exactly where TRL refuses 1 to 8 and the rules 9 to 64; otherwise the numbers that work are named."""
    for row in rows():
        unstated = read(row, None).altered({"processes": None})  # a recipe may carry the number itself
        works = [n for n in range(1, 65) if not errors(check(unstated.altered({"processes": n}), select=["GB", "GE"]))]
        problems = check(unstated, select=["GB", "GE", "GT201"])
        assert bool(errors(problems)) == (not works), row["id"]
        assert ("GT201" in {problem.code for problem in problems}) == (0 < len(works) < 64), row["id"]


def test_the_corpus_is_judged_with_fixes_at_a_thousand_recipes_a_second() -> None:
    """A linter that is waited for is switched off. Ten passes, so that nothing but judging counts."""
    settings = [read(row, row["processes"]) for row in rows()] * 10
    start = perf_counter()
    for s in settings:
        for problem in errors(check(s)):
            find_fixes(s, problem)
    assert len(settings) / (perf_counter() - start) > 1000
