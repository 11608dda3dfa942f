"""A user's report: EasyR1 training that stalled after 30 steps. Each of its three suspected causes
is named for what it is.
"""

import pytest

from grporecipe.files import Json
from grporecipe.linting.linter import Diagnostic, lint_recipe
from grporecipe.reading.load import Options, build_recipe

ACTOR = "actor_rollout_ref.actor"
EASYR1: Json = {
    "data.rollout_batch_size": 32,
    "worker.rollout.n": 5,
    "worker.actor.global_batch_size": 8,
    "worker.actor.micro_batch_size_per_device_for_update": 1,
    "worker.actor.micro_batch_size_per_device_for_experience": 2,
    "worker.actor.optim.lr": 1e-6,
    "worker.actor.model.model_path": "Qwen/Qwen2.5-7B-Instruct",
    "algorithm.kl_coef": 0.0,
    "worker.actor.kl_loss_coef": 1e-3,
}
VERL: Json = {
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 32,
    "actor_rollout_ref.rollout.n": 5,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 2,
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 2,
    f"{ACTOR}.ppo_mini_batch_size": 8,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1,
    f"{ACTOR}.optim.lr": 1e-6,
    "actor_rollout_ref.model.path": "Qwen/Qwen2.5-7B-Instruct",
    f"{ACTOR}.use_kl_loss": True,
    f"{ACTOR}.kl_loss_coef": 1e-3,
    "algorithm.kl_ctrl.kl_coef": 0.0,
}


def findings(config: Json, framework: str, version: str | None = None) -> dict[str, Diagnostic]:
    """What is found, by code."""
    recipe = build_recipe(config, Options(framework, own_version=version))
    return {finding.code: finding for finding in lint_recipe(recipe).diagnostics}


@pytest.mark.parametrize(
    ("framework", "version"), [("easyr1", None), ("easyr1", "0.2"), ("verl", None)]
)
def test_small_batches_and_a_timid_learning_rate_are_named(
    framework: str, version: str | None
) -> None:
    """In the framework's own words."""
    found = findings(EASYR1 if framework == "easyr1" else VERL, framework, version)
    size = "worker.actor.global_batch_size"
    rate = "worker.actor.optim.lr"
    if framework == "verl":
        size = f"{ACTOR}.ppo_mini_batch_size"
        rate = f"{ACTOR}.optim.lr"
    assert f"{size}=8: an optimizer step averages over 8 prompts only" in found["GA201"].message
    assert (
        f"{rate}=1e-06: conservative for a 7 B model and 8 prompts per step"
        in found["GA203"].message
    )


def test_easyr1_of_today_stops_at_the_unknown_key_and_has_no_kl() -> None:
    """``algorithm.kl_coef`` is the one coefficient; 0 loads a reference for nothing."""
    found = findings(EASYR1, "easyr1")
    assert (found["GV301"].severity, found["GV301"].keys) == (
        "error",
        ("worker.actor.kl_loss_coef",),
    )
    assert "algorithm.kl_coef=0 took its place" in found["GV301"].message
    assert found["GV301"].fixes[1].change == {
        "worker.actor.kl_loss_coef": None,
        "algorithm.kl_coef": 1e-3,
    }
    assert found["GK306"].keys == ("algorithm.kl_coef",)
    assert "GK310" not in found


@pytest.mark.parametrize(
    ("config", "framework", "dead", "active"),
    [
        (EASYR1, "easyr1", "algorithm.kl_coef", "worker.actor.kl_loss_coef=0.001"),
        (
            VERL | {"algorithm.kl_ctrl.kl_coef": 0.1},
            "verl",
            "algorithm.kl_ctrl.kl_coef",
            f"{ACTOR}.kl_loss_coef=0.001",
        ),
    ],
)
def test_older_easyr1_and_verl_have_an_active_loss_with_a_dead_coefficient(
    config: Json, framework: str, dead: str, active: str
) -> None:
    """The coefficient is read by nothing, and KL is on. In verl's scripts a 0 there is a habit, and
    says nothing.
    """
    found = findings(config, framework, "0.2" if framework == "easyr1" else None)
    assert found["GK310"].keys == (dead,)
    assert f"KL is in the loss, with {active}" in found["GK310"].message
    assert not {"GV301", "GK306"} & found.keys()
    assert all(finding.severity == "warning" for finding in found.values())
