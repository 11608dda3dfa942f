"""Scripts as repositories have them: several launches, unknown values, wrappers, and the files next
to them.
"""

import json
from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grporecipe.fields.recipes import read_recipe
from grporecipe.files import Json, read_own_yaml
from grporecipe.linting.linter import lint_recipe
from grporecipe.model.recipe import Recipe
from grporecipe.reading.load import Options, load_recipes

SCRIPTS = read_own_yaml(__file__, "launches.yaml")


def load(folder: Path, script: str) -> list[Recipe]:
    """The recipes of a script."""
    (folder / "run.sh").write_text(script, encoding="utf-8")
    return load_recipes(folder / "run.sh", Options())


@pytest.mark.parametrize("row", SCRIPTS["read"].values(), ids=SCRIPTS["read"])
def test_a_script_is_read_as_bash_runs_it(row: Json, tmp_path: Path) -> None:
    """Its launches, and what it says of each; nothing is set twice."""
    for name, text in row.get("files", {}).items():
        (tmp_path / name).write_text(text)
    recipes = load(tmp_path, row["script"])
    for recipe, said in zip(recipes, row["recipes"], strict=True):
        assert {name: getattr(recipe, name) for name in said} == said
        assert not recipe.duplicates


@pytest.mark.parametrize("launch", SCRIPTS["found"])
def test_launches_are_found_behind_other_commands(launch: str, tmp_path: Path) -> None:
    """In strings, arrays, here documents and other shells."""
    (recipe,) = load(tmp_path, launch)
    assert (recipe.processes, recipe.config) == (4, {"beta": 0.1})


@pytest.mark.parametrize(
    "launch",
    ["python prepare.py --beta 0.1", "python data/grpo_data.py", "echo python train_grpo.py"],
)
def test_a_program_without_a_sign_of_grpo_is_refused(launch: str, tmp_path: Path) -> None:
    """Nothing is invented for a program that trains nothing."""
    with pytest.raises(UserError):
        load(tmp_path, launch)


def test_one_unknown_word_leaves_the_rest_of_a_string_known(tmp_path: Path) -> None:
    """Strings are split before a word counts as unknown; nothing is reported of keys that may be
    set elsewhere.
    """
    script = 'A="data.train_batch_size=64 data.val_files=${X} $MORE algorithm.adv_estimator=grpo"\n'
    (recipe,) = load(tmp_path, f"{script}python -m verl.trainer.main_ppo $A\n")
    assert recipe.config["data.train_batch_size"] == 64
    assert recipe.may_have_more
    assert not [found for found in lint_recipe(recipe).diagnostics if found.severity == "error"]


def test_a_recipe_next_to_the_script_is_found_by_the_script_s_folder(tmp_path: Path) -> None:
    """A missing recipe is reported, and none of its keys."""
    (tmp_path / "x.yaml").write_text("num_generations: 16\nbeta: 0.1\n")
    here = 'HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\n'
    (recipe,) = load(tmp_path, f"{here}python train_grpo.py --config $HERE/x.yaml\n")
    assert recipe.config["num_generations"] == 16
    (recipe,) = load(tmp_path, "python train_grpo.py --config $1 --num_generations 3\n")
    assert {found.code for found in lint_recipe(recipe).diagnostics} >= {"GV106"}
    assert recipe.may_have_more


@pytest.mark.parametrize(("content", "sharding", "processes"), SCRIPTS["accelerate"])
def test_an_accelerate_configuration_says_how_the_model_is_divided(
    content: str, sharding: str, processes: int, tmp_path: Path
) -> None:
    """ZeRO by its stage or DeepSpeed's file, FSDP by its strategy."""
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    (tmp_path / "a.yaml").write_text(content)
    (recipe,) = load(
        tmp_path, "accelerate launch --config_file a.yaml train_grpo.py --num_generations 4\n"
    )
    assert (read_recipe(recipe).setting.sharding, recipe.processes) == (sharding, processes)


def test_a_deepspeed_key_of_a_recipe_is_read(tmp_path: Path) -> None:
    """As a file next to the recipe."""
    (tmp_path / "three.json").write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    (tmp_path / "grpo.yaml").write_text(
        "num_generations: 8\nreward_funcs: [a]\ndeepspeed: three.json\n"
    )
    (recipe,) = load_recipes(tmp_path / "grpo.yaml", Options())
    assert read_recipe(recipe).setting.sharding == "zero3"


@pytest.mark.parametrize(("script", "swept"), SCRIPTS["sweeps"])
def test_launches_that_differ_in_few_values_are_one_sweep(
    script: str, swept: list[str], tmp_path: Path
) -> None:
    """Said once, at the first of them."""
    first, *others = load(tmp_path, script)
    notes = [each for each in lint_recipe(first).diagnostics if each.code == "GA212"]
    assert [list(each.keys) for each in notes] == [swept] * bool(swept)
    assert not any(recipe.swept for recipe in others)
