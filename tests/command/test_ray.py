"""Trials of EasyR1 and verl up to the command and the recipe: what a point changes in their words,
and their logs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig

from grporecipe.errors import UserError
from grposweep.command.ray import as_entries
from grposweep.command.trial_recipe import load_trial_recipe, write_program
from grposweep.config.points import Points
from grposweep.config.to_setting import read_setting
from grposweep.search.space import Space
from grposweep.search.validity import Validator
from support import check_experiment, read

EASYR1 = """
data: {train_files: a, rollout_batch_size: 64, max_prompt_length: 512, max_response_length: 512}
algorithm: {adv_estimator: grpo, use_kl_loss: true, kl_penalty: low_var_kl, kl_coef: 1.0e-2}
worker:
  actor:
    global_batch_size: 32
    micro_batch_size_per_device_for_update: 4
    micro_batch_size_per_device_for_experience: 4
    dynamic_batching: false
    model: {model_path: Qwen/Qwen2.5-7B-Instruct, tokenizer_path: null}
    optim: {lr: 1.0e-6}
  rollout: {n: 8, tensor_parallel_size: 1}
trainer: {total_epochs: 15, n_gpus_per_node: 8}
"""
VERL = """
defaults: [ppo_trainer, _self_]
data: {train_batch_size: 64}
algorithm: {adv_estimator: grpo}
actor_rollout_ref:
  actor:
    ppo_mini_batch_size: 32
    ppo_micro_batch_size_per_gpu: 4
    use_kl_loss: true
    kl_loss_coef: 1.0e-2
    optim: {lr: 1.0e-6}
  rollout: {n: 8, log_prob_micro_batch_size_per_gpu: 4, name: vllm}
  ref: {log_prob_micro_batch_size_per_gpu: 4}
trainer: {total_epochs: 15, n_gpus_per_node: 8}
"""
RECIPES = {"easyr1": EASYR1, "verl": VERL}
Made = Callable[..., tuple[dict[str, Any], dict[str, Any]]]


@pytest.fixture
def points(
    compose: Callable[[list[str]], DictConfig], here: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Points]:
    """Points over a framework's recipe on eight GPUs."""
    monkeypatch.chdir(here)

    def make(framework: str, *overrides: str) -> Points:
        (here / "own.yaml").write_text(RECIPES[framework])
        base = [
            f"trainer={framework}",
            "trainer.recipe=own.yaml",
            "cluster=dry_run",
            "cluster.gpus_per_node=8",
        ]
        return Points(compose, [*base, *overrides])

    return make


@pytest.fixture
def made(points: Callable[..., Points], here: Path) -> Made:
    """The trial's recipe, and the keys that the point changed in it."""

    def make(framework: str, *overrides: str) -> tuple[dict[str, Any], dict[str, Any]]:
        experiment = points(framework, *overrides).base
        write_program(here, experiment, read_setting(experiment))
        return yaml.safe_load((here / "recipe.yaml").read_text()), read(here / "changed.json")[
            "keys"
        ]

    return make


@pytest.mark.parametrize("framework", RECIPES)
def test_a_point_that_changes_nothing_has_the_authors_recipe(made: Made, framework: str) -> None:
    """Nulls and the defaults that Hydra composes stay; only the folder that it writes to is the
    trial's.
    """
    recipe, changed = made(framework)
    folder = {"easyr1": "save_checkpoint_path", "verl": "default_local_dir"}[framework]
    assert recipe["trainer"].pop(folder).endswith("/model")
    assert recipe == yaml.safe_load(RECIPES[framework])
    assert changed == {}


def test_the_same_parameters_are_easyr1s_own_keys(made: Made) -> None:
    """Batches in prompts, one KL coefficient; the author's batch for log-probabilities stays."""
    _, changed = made(
        "easyr1", "lr=5e-6", "kl.beta=0.02", "batch=auto", "batch.prompts_per_step=16"
    )
    assert changed == {
        "algorithm.kl_coef": 0.02,
        "data.rollout_batch_size": 16,
        "worker.actor.global_batch_size": 16,
        "worker.actor.micro_batch_size_per_device_for_update": 16,
        "worker.actor.optim.lr": 5e-6,
    }


def test_the_same_parameters_are_verls_own_keys(made: Made) -> None:
    """Its KL loss has a coefficient of its own."""
    _, changed = made("verl", "lr=5e-6", "kl.beta=0.02")
    actor = "actor_rollout_ref.actor"
    assert changed == {f"{actor}.kl_loss_coef": 0.02, f"{actor}.optim.lr": 5e-6}


def test_sizes_that_are_no_whole_prompts_are_pruned(points: Callable[..., Points]) -> None:
    """512 completions per rollout hold no whole groups of seven."""
    assert Validator(Space(), points("easyr1")).validate({}).is_valid
    verdict = Validator(Space(), points("easyr1", "batch.num_generations=7")).validate({})
    assert "GB312" in {problem.code for problem in verdict.problems}


def test_the_command_is_the_frameworks_own(made: Made, here: Path) -> None:
    """EasyR1 takes a file, verl a configuration of Hydra's; the log goes to the trial."""
    made("easyr1", "trainer.arguments=['data.seed=2']")
    command = (here / "program.sh").read_text().splitlines()[-1]
    assert "-m verl.trainer.main 'config=" in command
    assert command.endswith(
        "trainer.nnodes=1 trainer.n_gpus_per_node=8 'trainer.logger=[console,file]' data.seed=2"
    )
    made("verl")
    script = (here / "program.sh").read_text()
    assert "-m verl.trainer.main_ppo --config-dir" in script
    assert "VERL_FILE_LOGGER_PATH=" in script


def test_on_several_nodes_the_job_starts_ray_around_the_command(made: Made, here: Path) -> None:
    """A dry run shows what each node runs; verl's own number of CPUs would be refused by a Ray that
    runs already.
    """
    made("verl", "cluster.nodes=2")
    script = (here / "program.sh").read_text()
    assert "#   first node:  " in script
    assert script.count("ray.scripts.scripts start --") == 2
    assert script.count("--num-gpus=8 --num-cpus=64") == 2
    command = script.splitlines()[-1]
    assert "trainer.nnodes=2 trainer.n_gpus_per_node=8" in command
    assert "ray_kwargs.ray_init.num_cpus=null" in command


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ("cluster.nodes=2", "cluster.cpus_per_gpu=2"),
            "reserves up to 4 CPUs a GPU .* Set cluster.cpus_per_gpu=4",
        ),
        (("cluster.kind=local", "cluster.nodes=2"), "cluster=local: this machine is one node"),
        (
            ("trainer.arguments=['trainer.nnodes=2']",),
            "trainer.nnodes=2, and the trial has trainer.nnodes=1",
        ),
    ],
)
def test_a_shape_in_which_the_program_would_wait_forever_is_refused(
    points: Callable[..., Points], words: tuple[str, ...], why: str
) -> None:
    """Ray grants nothing that is not there, and says nothing."""
    with pytest.raises(UserError, match=why):
        check_experiment(points("verl", *words).base)


@pytest.mark.parametrize("framework", RECIPES)
def test_a_job_reads_the_trial_that_was_written_for_it(
    made: Made, points: Callable[..., Points], here: Path, framework: str
) -> None:
    """With the framework's own release, which is older than any TRL with GRPO."""
    made(framework)
    recipe = load_trial_recipe(here, points(framework).base)
    assert (recipe.framework, recipe.version[0]) == (framework, 0)


def test_a_line_of_either_log_becomes_training_and_evaluation_in_optimizer_steps() -> None:
    """EasyR1 nests its names, verl keeps them below ``data``; a rollout is two optimizer steps
    here.
    """
    easyr1 = b'{"step": 3, "actor": {"pg_loss": 0.1}, "val": {"reward_score": 0.5}}'
    verl = b'{"step": 3, "data": {"actor/pg_loss": 0.1, "val-core/gsm8k/reward/mean@1": 0.5}}'
    for line in (easyr1, verl):
        train, evaluation = as_entries(line, 2.0)
        assert (train.kind, train.step, train.values) == ("train", 6, {"actor/pg_loss": 0.1})
        assert (evaluation.kind, evaluation.step, evaluation.values["eval_reward"]) == (
            "eval",
            6,
            0.5,
        )


def test_lines_that_are_no_entries_are_skipped() -> None:
    """Ray's own lines and values of another kind may be in the log."""
    for line in (b"3", b"null", b'["step"]', b"(raylet) started", b'{"step": null, "data": 5}'):
        assert [entry.step for entry in as_entries(line, 2.0)] in ([], [0])
