"""A framework that is one folder and one line of the registry is linted, fixed, planned and translated like the others."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from grporecipe import planning, registries
from grporecipe.frameworks import FRAMEWORKS, detect, read, write
from grporecipe.frameworks.parsing.load import Options, load_recipe
from grporecipe.linting.apply_fixes import fix_file
from grporecipe.linting.linter import lint_recipe, select_rules
from grporecipe.rules.registry import RECIPE_RULES, REGISTRY
from grporecipe.rules.registry import choose as choose_rules
from grporecipe.translate import read_back, translate

SCRIPT = """#!/bin/bash
export NPROC_PER_NODE=4
toyrl train --rollout_prompts 64 --step_prompts {step} --group 8 --rate 1e-5 \\
    --iterations 100
"""
RECIPE = "rollout_prompts: 64  # prompts\nstep_prompts: 24\ngroup: 8\niterations: 100\ngpus: 4\n"


@pytest.fixture(autouse=True, scope="module")
def _registered() -> Iterator[None]:
    """One line, and the import of its rules."""
    codes = {*REGISTRY, *RECIPE_RULES}
    registries.FRAMEWORKS["toy"] = "frameworks.toy"
    import_module("frameworks.toy.rules")
    yield
    del registries.FRAMEWORKS["toy"]
    for rules in (REGISTRY, RECIPE_RULES):
        for code in rules.keys() - codes:
            del rules[code]
    choose_rules.cache_clear()
    sys.modules.pop("frameworks.toy.rules")


def written(folder: Path, name: str, text: str) -> Path:
    """A file."""
    path = folder / name
    path.write_text(text)
    return path


def codes(path: Path) -> set[str]:
    """The errors of a recipe."""
    return {
        finding.code for finding in lint_recipe(load_recipe(path, Options())).diagnostics if finding.severity == "error"
    }


def test_its_command_line_is_detected_and_read(tmp_path: Path) -> None:
    """Flat flags, its own command, processes from the environment, rollouts as steps."""
    recipe = load_recipe(written(tmp_path, "run.sh", SCRIPT.format(step=32)), Options())
    s = read(recipe).setting
    assert (recipe.framework, recipe.processes, s.framework) == ("toy", 4, FRAMEWORKS["toy"].traits)
    assert (s.prompts_per_rollout, s.prompts_per_step, s.num_generations, s.learning_rate) == (64, 32, 8, 1e-5)
    assert s.max_steps == 100 * 2  # two optimizer steps per rollout
    assert s.lines["prompts_per_step"] == 3


def test_keys_alone_detect_it_and_others_stay_as_they_are() -> None:
    """Its own terms, and no others."""
    assert detect({"rollout_prompts": 64}) == "toy"
    assert [detect({"num_generations": 8}), detect({"actor_rollout_ref.rollout.n": 8})] == ["trl", "verl"]


def test_its_keys_are_checked_against_its_own_table(tmp_path: Path) -> None:
    """Neither verl's table nor TRL's, though it counts prompts as the one and is flat as the other."""
    path = written(tmp_path, "recipe.yaml", RECIPE.replace("24", "32").replace("group", "grup"))
    assert codes(path) == {"GV901"}
    assert codes(written(tmp_path, "good.yaml", RECIPE.replace("24", "32"))) == set()


def test_its_own_rule_finds_a_broken_size_and_fixes_it(tmp_path: Path) -> None:
    """The edit is one of a flat file; comments stay."""
    path = written(tmp_path, "recipe.yaml", RECIPE)
    assert "GB901" in codes(path)
    fixed = fix_file(path, Options(), select_rules(), unsafe=True)
    assert fixed.result.ok
    assert path.read_text() == RECIPE.replace("24", "16")


def test_it_is_planned(tmp_path: Path) -> None:
    """In optimizer steps, as all others."""
    s = read(load_recipe(written(tmp_path, "recipe.yaml", RECIPE.replace("24", "16")), Options())).setting
    assert (planning.completions_per_rollout(s), planning.completions_per_step(s), planning.total_steps(s)) == (
        512,
        128,
        400,
    )


@pytest.mark.parametrize("target", ["trl", "verl", "easyr1", "ms-swift"])
def test_it_is_translated_from_and_to_others(tmp_path: Path, target: str) -> None:
    """Sizes stay what they are in both directions."""
    s = read(load_recipe(written(tmp_path, "recipe.yaml", RECIPE.replace("24", "16")), Options())).setting
    there = translate(s, target)
    assert there.changed == ()
    theirs = read_back(write(s, target), target, s)
    back = translate(theirs, "toy")
    assert back.changed == ()
    again = read_back(write(theirs, "toy"), "toy", theirs)
    assert (again.prompts_per_rollout, again.prompts_per_step, again.num_generations) == (64, 16, 8)
    assert (again.framework.name, "toyrl train recipe.yaml" in back.command) == ("toy", True)
    assert "step_prompts: 16" in back.files["recipe.yaml"]
