"""What each TRL release does with a key that is not declared, compared with the rule: verdicts of
the real parsers, recorded.

benchmarks/trl_versions/parsers.py runs the parser of every tagged release and writes them.
"""

import json
from pathlib import Path

import pytest

from grporecipe.frameworks.trl.keys import parse_version, releases
from grporecipe.frameworks.trl.recipe_rules import fate
from grporecipe.model.recipe import NO_CODE, KeySpec, LaunchContext, LaunchedCode, Recipe

LINES = (
    Path(__file__).with_name("trl_parser_verdicts.jsonl").read_text(encoding="utf-8").splitlines()
)
OWN = LaunchedCode("train.py", {"beta": KeySpec("float", 0.0)}, other_keys="stop")


@pytest.mark.parametrize("kind", ["yaml", "flag"])
@pytest.mark.parametrize("way", ["own", "script"])
def test_a_key_is_dropped_by_the_releases_whose_parser_drops_it(way: str, kind: str) -> None:
    """A script that calls the parser without options, and trl.scripts.grpo, each with a YAML and on
    a command line.
    """
    program, code = ("trl.scripts.grpo", NO_CODE) if way == "script" else ("train.py", OWN)
    for line in map(json.loads, LINES):
        launch = LaunchContext("accelerate", program)
        lines = {"betta": 1} if kind == "flag" else {}
        recipe = Recipe(
            "trl",
            parse_version(line["version"]),
            {"betta": 1},
            launch=launch,
            lines=lines,
            code=code,
        )
        said = "dropped" if fate(recipe, "betta").severity == "warning" else "stops"
        assert said == line[f"{way}_{kind}"], line["version"]


def test_the_verdicts_cover_the_releases() -> None:
    """Every one up to 1.9, the last release with a tag."""
    assert {parse_version(json.loads(line)["version"]) for line in LINES} >= {
        v for v in releases() if v < (1, 9, 1)
    }
