"""Scripts as repositories have them: several launches, unknown values, wrappers, and the files next
to them.
"""

import json
from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grporecipe.fields.recipes import read_recipe
from grporecipe.files import read_own_yaml
from grporecipe.linting.linter import lint_recipe
from grporecipe.model.recipe import Recipe
from grporecipe.reading.load import Options, load_recipes

SCRIPTS = read_own_yaml(__file__, "launches.yaml")


def load(folder: Path, script: str) -> list[Recipe]:
    """The recipes of a script."""
    (folder / "run.sh").write_text(script, encoding="utf-8")
    return load_recipes(folder / "run.sh", Options())


def test_every_launch_of_a_script_is_judged_once(tmp_path: Path) -> None:
    """By its own line; evaluations are skipped, and what is the same comes once."""
    launch = "python train_grpo.py --num_generations"
    recipes = load(
        tmp_path, f"{launch} 4\n{launch} 8\npython evaluate.py --num_generations 8\n{launch} 4\n"
    )
    assert [recipe.config for recipe in recipes] == [{"num_generations": 4}, {"num_generations": 8}]
    assert [recipe.launch and recipe.launch.line for recipe in recipes] == [1, 2]


def test_a_loop_makes_a_recipe_of_each_value(tmp_path: Path) -> None:
    """Functions and conditions are read as bash runs them."""
    script = (
        "run() { python train_grpo.py --num_generations $1 --beta ${B:-0.1}; }\nfor g in 4 "
        "8; do run $g; done\n"
    )
    assert [recipe.config["num_generations"] for recipe in load(tmp_path, script)] == [4, 8]


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


def test_the_text_of_a_program_is_a_sign_of_grpo(tmp_path: Path) -> None:
    """With any name."""
    (tmp_path / "go.py").write_text("from trl import GRPOTrainer\nGRPOTrainer(args=1)\n")
    assert len(load(tmp_path, "python go.py --learning_rate 1e-6")) == 1


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


def test_variables_of_a_sourced_file_are_known(tmp_path: Path) -> None:
    """If it is in the repository; its commands are not the script's."""
    (tmp_path / "env.sh").write_text("G=12\npython train_grpo.py --beta 1\n")
    (recipe,) = load(tmp_path, "source env.sh\npython train_grpo.py --num_generations $G\n")
    assert recipe.config == {"num_generations": 12}


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


OVERRIDES = (
    "python3 -m verl.trainer.main_ppo data.train_batch_size=64 actor_rollout_ref.rollout.n=8"
)


@pytest.mark.parametrize(
    "script",
    [
        # a variable that holds the whole launch
        f'cmd="{OVERRIDES}"\nray job submit --no-wait -- "$cmd"\n',
        # switched off by a default
        f'RUN=${{RUN:-0}}\nif [[ "$RUN" == "1" ]]; then\n  {OVERRIDES}\nfi\n',
    ],
)
def test_a_launch_in_a_variable_or_switched_off_by_a_default_is_read(
    script: str, tmp_path: Path
) -> None:
    """A user switches it on, and then it is what trains."""
    (recipe,) = load(tmp_path, script)
    assert (recipe.framework, recipe.config["data.train_batch_size"]) == ("verl", 64)


def test_a_launcher_s_overrides_count_above_the_script_that_it_runs(tmp_path: Path) -> None:
    """What the other script sets is no duplicate."""
    (tmp_path / "train.sh").write_text(f"{OVERRIDES} $@\n")
    (recipe,) = load(tmp_path, "bash train.sh data.train_batch_size=32\n")
    assert recipe.config == {"data.train_batch_size": 32, "actor_rollout_ref.rollout.n": 8}
    assert not recipe.duplicates


def test_a_launch_that_is_switched_off_is_not_read_if_another_runs(tmp_path: Path) -> None:
    """The one that runs by default is meant."""
    script = (
        f'if [[ "${{OLD:-0}}" == "1" ]]; then\n  {OVERRIDES}\nfi\n{OVERRIDES} trainer.nnodes=2\n'
    )
    (recipe,) = load(tmp_path, script)
    assert recipe.config["trainer.nnodes"] == 2


@pytest.mark.parametrize(("script", "swept"), SCRIPTS["sweeps"])
def test_launches_that_differ_in_few_values_are_one_sweep(
    script: str, swept: list[str], tmp_path: Path
) -> None:
    """Said once, at the first of them."""
    first, *others = load(tmp_path, script)
    notes = [each for each in lint_recipe(first).diagnostics if each.code == "GA212"]
    assert [list(each.keys) for each in notes] == [swept] * bool(swept)
    assert not any(recipe.swept for recipe in others)
