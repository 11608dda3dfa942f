"""The recipe that a trial of a program's gets: the author's, with the point's parameters in it and
nothing else.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from grporecipe.model.recipe import Recipe as Own
from grporecipe.model.setting import TRL
from grposweep.command._contract import NodeContext, Trial
from grposweep.command._script import build_script
from grposweep.command.trial_recipe import write_program
from grposweep.config.points import Points
from grposweep.config.to_setting import read_setting
from grposweep.schema import Trainer
from grposweep.search.space import Space
from grposweep.search.validity import Validator

Recipe = Callable[..., dict[str, Any]]


@pytest.fixture
def recipe_of(points: Callable[..., Points], here: Path) -> Recipe:
    """``recipe_of("lr=0.1")``: what stands in the trial's folder."""

    def make(*overrides: str) -> dict[str, Any]:
        experiment = points(*overrides).base
        folder = here / "trial"
        folder.mkdir()
        write_program(folder, experiment, read_setting(experiment))
        return dict(yaml.safe_load((folder / "recipe.yaml").read_text()))

    return make


def test_a_trial_that_changes_nothing_has_the_recipe_of_its_author(
    recipe_of: Recipe, here: Path
) -> None:
    """Only the folder that it writes to is the trial's. TRL's defaults need no key."""
    stated = yaml.safe_load((here / "recipe.yaml").read_text())
    for default in ("num_generations", "per_device_eval_batch_size", "report_to"):
        del stated[default]
    assert recipe_of() == {**stated, "output_dir": str(here / "trial" / "model")}


def test_a_group_option_replaces_the_recipes_group_and_sizes_are_said_once(
    recipe_of: Recipe,
) -> None:
    """TRL refuses a rollout's size together with its micro-steps."""
    recipe = recipe_of("batch=reuse")
    assert "generation_batch_size" not in recipe
    assert (
        recipe["per_device_train_batch_size"],
        recipe["steps_per_generation"],
        recipe["num_iterations"],
    ) == (
        64,
        2,
        2,
    )


def test_a_budget_becomes_the_scripts_number_of_steps(recipe_of: Recipe) -> None:
    """128 completions in rollouts of 32, each for two optimizer steps; four evaluations."""
    recipe = recipe_of("schedule=completions", "schedule.budget_completions=128")
    assert (recipe["max_steps"], recipe["eval_steps"]) == (8, 2)


def test_a_single_number_leaves_its_group_as_the_author_wrote_it(recipe_of: Recipe) -> None:
    """Weight decay is in the same group as the scheduler."""
    recipe = recipe_of("optimizer.lr_scheduler_type=cosine")
    assert recipe["lr_scheduler_type"] == "cosine"
    assert recipe["weight_decay"] == 0.1
    assert "max_grad_norm" not in recipe


def test_kl_is_switched_on_with_its_coefficient(recipe_of: Recipe) -> None:
    """The recipe has none; with this release its default would be 0."""
    assert recipe_of("kl=high")["beta"] == 0.04


def test_the_planner_solves_sizes_for_a_script_as_well(recipe_of: Recipe) -> None:
    """16 prompts of 8 on two ranks."""
    recipe = recipe_of("batch=auto", "batch.prompts_per_step=16", "cluster.processes=2")
    assert (
        recipe["per_device_train_batch_size"] * recipe.get("gradient_accumulation_steps", 1) * 2
        == 128
    )


def test_the_validator_reads_what_no_parameter_can_say(
    points: Callable[..., Points], here: Path
) -> None:
    """The tensor parallelism of vLLM stands in the recipe alone, and two does not divide one
    process.
    """
    vllm = "use_vllm: true\nvllm_mode: colocate\nvllm_tensor_parallel_size: 2\n"
    (here / "recipe.yaml").write_text((here / "recipe.yaml").read_text() + vllm)
    verdict = Validator(Space(), points()).validate({})
    assert not verdict.is_valid
    assert "vllm_tensor_parallel_size" in verdict.reasons()[0]["message"]


def test_the_command_stands_in_the_trials_folder(recipe_of: Recipe, here: Path) -> None:
    """To read, or to repeat by hand; options of the command are at its end."""
    recipe_of("trainer.args.note=mine")
    command = (here / "trial" / "program.sh").read_text().splitlines()[-1]
    assert command.endswith("train.py --config recipe.yaml --note mine'")


def test_each_of_several_machines_is_told_where_to_meet(here: Path) -> None:
    """One command of ours a machine; torchrun finds its own options among the variables."""
    place = NodeContext(processes=8, node=1, nodes=2, address="10.0.0.1", port=20100)
    trainer = Trainer(kind="command", command="bash launch.sh")
    told = build_script(Trial(trainer, here, Own("trl", TRL, {}), place)).environment
    assert (told["NNODES"], told["PET_NODE_RANK"], told["MASTER_ADDR"]) == ("2", "1", "10.0.0.1")
