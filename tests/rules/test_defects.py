"""Known defects of releases: each is told at the first and the last release that has it, not at the
one that fixes it, and not of a recipe that does not meet it.
"""

from dataclasses import replace

import pytest

from grporecipe.files import Json, read_own_yaml
from grporecipe.linting.linter import lint_recipe
from grporecipe.model.defects import Defect, load_defects
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.setting import Version
from grporecipe.reading.load import Options, build_recipe

CASES = read_own_yaml(__file__, "defects.yaml")


def told(defect: Defect, keys: Json, version: Version) -> bool:
    """Whether lint tells a defect of keys at a stated release."""
    options = Options(framework=defect.framework)
    base = {"rlhf_type": "grpo"} if defect.framework == "ms-swift" else {}
    recipe = replace(build_recipe({**base, **keys}, options), version=version)
    problems = lint_recipe(recipe).diagnostics
    return any(problem.code == "GV120" and defect.effect in problem.message for problem in problems)


def known(defect: Defect) -> list[Version]:
    """The releases of a defect's framework that lint knows."""
    return list(FRAMEWORKS[defect.framework].known_releases)


@pytest.mark.parametrize("defect", load_defects(), ids=lambda defect: defect.name)
def test_a_defect_is_told_where_a_recipe_meets_it(defect: Defect) -> None:
    """At its first and last release; not at the next one, and not of the counterpart."""
    case = CASES[defect.name]
    keys = case["keys"]
    having = [release for release in known(defect) if defect.first <= release <= defect.last]
    after = [release for release in known(defect) if release > defect.last]
    assert told(defect, keys, having[0])
    assert told(defect, keys, having[-1])
    assert not any(told(defect, keys, release) for release in after[:1])
    if "change" in case:
        assert not told(defect, {**keys, **case["change"]}, having[-1])


def test_a_defect_is_not_told_of_an_assumed_release() -> None:
    """A release that is only assumed may not be the one that trains."""
    recipe = build_recipe({"temperature": 0.6, "max_prompt_length": 64}, Options())
    assert not [p for p in lint_recipe(recipe).diagnostics if p.code == "GV120"]
