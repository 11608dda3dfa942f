"""EasyR1's and verl's recipes found in public repositories, with the batch rule that each breaks at its number of GPUs.

They are no part of this project: GRPOSWEEP_CORPUS names the folder that holds ``known.jsonl``. Its verdicts were read from
source, not run.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from grposweep.frameworks.parsing.load import Options, build_recipe
from grposweep.lint.linter import choose, judge

CORPUS = os.environ.get("GRPOSWEEP_CORPUS")
pytestmark = pytest.mark.skipif(CORPUS is None, reason="GRPOSWEEP_CORPUS does not name a folder with known.jsonl")
# Rows whose verdict is another here, and why.
EXPLAINED = dict.fromkeys(
    ("C0579", "C0623"),
    "train_batch_size=0 belongs to the fully asynchronous trainer, which asserts gen_batch_size=1 beside it; the row left "
    "that key out, and main_ppo would refuse the rest: P=0 is below ppo_mini_batch_size=128",
)


def rows() -> list[dict[str, Any]]:
    """The recipes of the two."""
    lines = (Path(str(CORPUS)) / "known.jsonl").read_text().splitlines()
    return [row for line in lines if (row := json.loads(line))["framework"] in ("easyr1", "verl")]


def batch_errors(row: dict[str, Any]) -> list[str]:
    """The errors of sizes and topology, by code."""
    recipe = build_recipe(row["config"], Options(row["framework"], processes=row["processes"]))
    found = judge(recipe, choose(["GB,GT"])).findings
    return [finding.code for finding in found if finding.severity == "error"]


def test_the_rules_agree_with_what_was_read_in_the_source(capsys: pytest.CaptureFixture[str]) -> None:
    """Broken or not, for every recipe that is not explained."""
    count, different = Counter[tuple[str, bool]](), {}
    for row in rows():
        expected = row["expected"]["batch_error_at_stated_processes"]
        count[row["framework"], bool(expected)] += 1
        if bool(batch_errors(row)) != bool(expected):
            different[row["id"]] = (expected, batch_errors(row))
    with capsys.disabled():
        print(f"\n{dict(count)}: {len(different)} differ, {len(EXPLAINED)} explained")
    assert different.keys() == EXPLAINED.keys()
    assert sum(count.values()) > 100


def test_known_kl_troubles_are_named() -> None:
    """Dead keys, a reference that is loaded for nothing: what the collection notes about KL has a finding of that family."""
    words = {"dead": "GK310", "ref model paid for": "GK306", "disable_kl=true": "GK310"}
    judged = 0
    for row in rows():
        note = row["expected"].get("kl_notes", "")
        code = next((code for word, code in words.items() if word in note and "unset" not in note), None)
        if code is not None:
            recipe = build_recipe(row["config"], Options(row["framework"], processes=row["processes"]))
            assert code in {finding.code for finding in judge(recipe).findings}, (row["id"], note)
            judged += 1
    assert judged >= 8
