"""ms-swift's rows of the corpus of public recipes, beside the batch verdicts that were transcribed for them.

They are no part of this project: GRPOSWEEP_CORPUS names the folder that holds ``known.jsonl``.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from grposweep.frameworks.ms_swift.reader import VERSION
from grposweep.lint.linter import judge
from grposweep.recipe import Recipe

CORPUS = os.environ.get("GRPOSWEEP_CORPUS")
pytestmark = pytest.mark.skipif(CORPUS is None, reason="GRPOSWEEP_CORPUS does not name a folder with known.jsonl")
BATCH = ("GB101", "GB102", "GB103", "GB106", "GB501", "GB503")
DISAGREEMENTS: dict[str, str] = {}  # path: why the transcribed verdict is not the code's


def rows() -> list[dict[str, Any]]:
    """All of ms-swift."""
    lines = (Path(str(CORPUS)) / "known.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["framework"] == "ms-swift"]


def codes(row: dict[str, Any]) -> set[str]:
    """The batch rules that a row breaks at its number of processes."""
    recipe = Recipe("ms-swift", VERSION, row["config"], row["processes"])
    return {finding.code for finding in judge(recipe).findings if finding.code in BATCH}


def test_the_batch_verdicts_agree_with_the_transcribed_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """For every row that states its processes, those of the Megatron back-end among them."""
    stated = [row for row in rows() if row["processes"] is not None]
    different = {
        row["path"]: (row["expected"]["batch_error_at_stated_processes"], sorted(codes(row)))
        for row in stated
        if bool(codes(row)) != bool(row["expected"]["batch_error_at_stated_processes"])
    }
    broken = sum(bool(row["expected"]["batch_error_at_stated_processes"]) for row in stated)
    with capsys.disabled():
        print(f"\n{len(stated)} of {len(rows())} ms-swift recipes state their processes ({broken} broken): "
              f"{len(different)} differ")  # fmt: skip
    assert different.keys() == DISAGREEMENTS.keys()
    assert len(stated) > 30
