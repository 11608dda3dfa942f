"""A setting under the keys of ms-swift, as a trial gets it, reads back as the same training."""

from random import Random

import pytest

from grporecipe.fields.recipes import read_recipe
from grporecipe.fields.writing import in_completions
from grporecipe.frameworks.ms_swift import FRAMEWORK
from grporecipe.frameworks.ms_swift import keys as ms_swift
from grporecipe.frameworks.ms_swift.recipes import native_keys
from grporecipe.linting.linter import lint_recipe
from grporecipe.model import planning
from grporecipe.model.recipe import Recipe
from grporecipe.model.setting import Setting
from real_ms_swift import build_recipe, draw_recipe

KEPT = (
    "num_generations",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "num_iterations",
    "beta",
    "kl_placement",
    "kl_reward_coefficient",
    "loss_type",
    "scale_rewards",
    "epsilon",
    "epsilon_high",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "temperature",
    "max_completion_length",
    "lora",
    "importance_sampling_level",
    "advantage_estimator",
    "sync_ref_model",
    "max_steps",
    "save_steps",
    "processes",
)
DATA = {"train_prompts": 1000}


def written(s: Setting) -> Recipe:
    """The recipe with its keys."""
    keys = native_keys(FRAMEWORK, in_completions(s), ms_swift.VERSION)
    return Recipe("ms-swift", ms_swift.VERSION, {"rlhf_type": "grpo", **keys}, s.processes)


@pytest.mark.parametrize("seed", range(50))
def test_a_recipe_read_written_and_read_again_trains_the_same(seed: int) -> None:
    """Sizes, objective, schedule, and every number of the plan; epochs count where steps are not
    given.
    """
    processes, config = draw_recipe(Random(seed))
    before = read_recipe(build_recipe(processes, config)).setting
    after = read_recipe(written(before)).setting
    assert {name: getattr(after, name) for name in KEPT} == {
        name: getattr(before, name) for name in KEPT
    }
    for formula in (
        planning.completions_per_rollout,
        planning.completions_per_step,
        planning.steps_per_rollout,
        planning.total_steps,
    ):
        assert formula(after.replace(DATA)) == formula(before.replace(DATA))


def test_what_is_written_for_ms_swift_is_accepted_by_its_rules() -> None:
    """Our own defaults in its words."""
    s = Setting(
        processes=4, max_steps=100, epochs=None, beta=0.04, evaluates=False, loss_type="dapo"
    )
    assert not [
        finding for finding in lint_recipe(written(s)).diagnostics if finding.severity == "error"
    ]


def test_every_default_that_differs_is_explicit() -> None:
    """A run of it gets TRL's numbers and not ms-swift's."""
    keys = written(Setting(processes=8, max_steps=10, epochs=None)).config
    wanted = {
        "beta": 0.0,
        "loss_type": "dapo",
        "temperature": 1.0,
        "learning_rate": 1e-6,
        "lr_scheduler_type": "linear",
    }
    assert {name: keys[name] for name in wanted} == wanted
    assert keys["tuner_type"] == "full"
