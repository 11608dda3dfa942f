"""Launches of EasyR1, verl and ms-swift behind ``--``: values enter at the framework's own process,
which is a stub here.
"""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from signal import SIGINT
from typing import Any

import pytest
from omegaconf import DictConfig

from grporecipe.errors import UserError
from grporecipe.linting.linter import plan_numbers
from grposweep.command._contract import Trial
from grposweep.command._launched import build_launched
from grposweep.command._logs import rollout_entries
from grposweep.command.checks import check_reach
from grposweep.command.trial_recipe import (
    framework_of,
    load_trial_recipe,
    trial_setting,
    write_program,
)
from grposweep.config.points import Points
from grposweep.config.to_setting import read_setting
from grposweep.search.parse import parse_space
from grposweep.search.validity import Validator, check_space
from stub_frameworks import write_framework
from support import Run, check_experiment, lines, read, sampled, trials, wait_for

ALL = ("easyr1", "verl", "ms-swift")
RAY = ("easyr1", "verl")
# In the words of EasyR1 and verl, its own keys for the same things.
WORDS = {
    "easyr1": ("worker.actor.optim.lr", "trainer.save_checkpoint_path"),
    "verl": ("++actor_rollout_ref.actor.optim.lr", "++trainer.default_local_dir"),
}
Made = Callable[..., dict[str, Any]]


@pytest.fixture
def points(
    compose: Callable[[list[str]], DictConfig], here: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Points]:
    """Points over a framework's launch."""
    monkeypatch.chdir(here)

    def make(framework: str, *overrides: str, more: tuple[str, ...] = ()) -> Points:
        write_framework(here, framework, *more)
        base = ["trainer=command", "trainer.command='bash run.sh'", "cluster=dry_run"]
        return Points(compose, [*base, *overrides])

    return make


@pytest.fixture
def made(points: Callable[..., Points], here: Path) -> Made:
    """What a trial notes of its launch: the keys that the point set, and the user's lists."""

    def make(framework: str, *overrides: str, more: tuple[str, ...] = ()) -> dict[str, Any]:
        experiment = points(framework, *overrides, more=more).base
        named = {word.partition("=")[0] for word in overrides}
        write_program(here, experiment, read_setting(experiment), named)
        return read(here / "changed.json")

    return make


@pytest.mark.parametrize("framework", sampled(ALL, 3))
def test_a_launch_script_is_swept_as_it_is(run: Run, here: Path, framework: str) -> None:
    """Its framework is found; its words stay in front of the trial's, and each trial has a folder
    of its own.
    """
    write_framework(here, framework)
    ended = run("-m", "lr=1e-6,3e-6", "name=s", "trainer.keep=all", "--", "bash run.sh")
    assert ended.code == 0, ended
    folders = trials(ended.sweep)
    values = [read(folder / "result.json")["objective"] for folder in folders]
    assert values == pytest.approx([0.8, 1.0])
    seen = [read_words(folder / "model" / "seen.json") for folder in folders]
    assert [float(words[-1]) for words in (of_rate(each, framework) for each in seen)] == [
        1e-6,
        3e-6,
    ]
    assert [read(folder / "entered.json")["words"] for folder in folders] == seen


def read_words(path: Path) -> list[str]:
    """The words that a stub got."""
    return list(json.loads(path.read_text()))


def of_rate(words: list[str], framework: str) -> list[str]:
    """The values of the learning rate, in order."""
    if framework == "ms-swift":
        return [after for word, after in pairwise(words) if word == "--learning_rate"]
    keys = [word.lstrip("+").partition("=") for word in words]
    name = WORDS[framework][0].lstrip("+")
    return [value for key, _, value in keys if key == name]


@pytest.mark.slow
def test_a_value_that_only_a_running_shell_knows_is_the_trials(run: Run, here: Path) -> None:
    """The script's own default is the trial's rate, and the user's environment says another one."""
    write_framework(here, "verl")
    ended = run(
        "-m", "lr=1e-6,3e-6", "name=s", "+trainer.environment.RATE='5e-5'", "--", "bash run.sh"
    )
    values = [read(folder / "result.json")["objective"] for folder in trials(ended.sweep)]
    assert values == pytest.approx([0.8, 1.0])


def test_a_defect_of_the_stated_release_is_told_at_the_start(run: Run, here: Path) -> None:
    """Before a trial trains: verl 0.7.0 has the estimator, and its first update raises."""
    actor = "actor_rollout_ref.actor"
    write_framework(here, "verl", f"{actor}.use_kl_loss=true", f"{actor}.kl_loss_type=low_var_kl+")
    (here / "pyproject.toml").write_text('[project]\ndependencies = ["verl==0.7.0"]\n')
    ended = run("lr=1e-6", "cluster=dry_run", "--", "bash run.sh")
    assert f"warning GV120 {actor}.kl_loss_type=low_var_kl+" in ended.out


@pytest.mark.parametrize("framework", sampled(ALL, 3))
def test_a_trial_without_its_values_is_ended(run: Run, here: Path, framework: str) -> None:
    """A container or a script of the user's drops PYTHONPATH: both trials would train the same."""
    more = "--output_dir out" if framework == "ms-swift" else "trainer.logger=['file']"
    write_framework(here, framework, more)
    own = (here / "run.sh").read_text()
    (here / "run.sh").write_text(own.replace("set -x", "unset PYTHONPATH"))
    ended = run("name=s", "lr=3e-6", "--", "bash run.sh")
    assert ended.code == 1
    assert "did not get this trial's values" in str(read(trials(ended.sweep)[0] / "result.json"))


@pytest.mark.slow
@pytest.mark.parametrize("framework", RAY)
def test_an_interrupted_trial_continues_from_its_own_checkpoint(
    run: Run, start: Callable[..., Any], here: Path, framework: str
) -> None:
    """The script names no folder, so without ours every trial would resume the first one's."""
    write_framework(here, framework)
    words = ("name=s", "lr=3e-6", "+trainer.environment.STEP_SECONDS='0.7'", "--", "bash run.sh")
    process = start(*words)
    wait_for(lambda: list(here.glob("outputs/s/trials/*/model/global_step_2")), 60)
    process.send_signal(SIGINT)
    process.wait(60)
    again = run(*words)
    assert again.code == 0, again.out + again.err
    (trial,) = trials(here / "outputs" / "s")
    rows = [line for line in lines(trial / "metrics.jsonl") if line["kind"] == "train"]
    assert [row["step"] for row in rows] == [2, 4, 6, 8]
    assert {row["attempt"] for row in rows} == {0, 1}


def test_the_same_parameters_are_easyr1s_own_keys(made: Made) -> None:
    """Batches in prompts, one KL coefficient; the author's batch for log-probabilities stays."""
    words = ("lr=5e-6", "kl.beta=0.02", "batch=auto", "batch.prompts_per_step=16")
    keys = made("easyr1", *words)["keys"]
    assert keys["algorithm.kl_coef"] == 0.02
    assert keys["data.rollout_batch_size"] == keys["worker.actor.global_batch_size"] == 16
    assert keys["worker.actor.optim.lr"] == 5e-6
    assert "worker.actor.micro_batch_size_per_device_for_experience" not in keys


def test_the_same_parameters_are_verls_own_keys(made: Made) -> None:
    """Its KL loss has a coefficient of its own, and a key of its own is set under its own name."""
    keys = made("verl", "lr=5e-6", "kl.beta=0.02", "trainer.args.trainer.total_epochs=2")["keys"]
    actor = "actor_rollout_ref.actor"
    assert keys == {
        f"{actor}.kl_loss_coef": 0.02,
        f"{actor}.optim.lr": 5e-6,
        "trainer.total_epochs": 2,
    }


SIZED = (
    "completions_per_rollout",
    "completions_per_step",
    "steps_per_rollout",
    "total_steps",
)


@pytest.mark.parametrize("framework", sampled(ALL, 3))
@pytest.mark.parametrize(
    "words",
    [
        "batch=auto batch.prompts_per_step=16",
        "batch.num_generations=16",
        "batch.per_device_train_batch_size=2 batch.gradient_accumulation_steps=32",
        "batch.steps_per_generation=4 batch.num_iterations=2",
        "schedule.max_steps=40 optimizer.warmup_steps=0.1 optimizer.lr_scheduler_type=cosine",
        "optimizer.warmup_steps=10",
        "kl.beta=0 loss.epsilon_high=0.28 generation.temperature=0.7 optimizer.max_grad_norm=0.5",
    ],
)
def test_what_is_written_reads_back_as_the_point(
    made: Made, points: Callable[..., Points], here: Path, framework: str, words: str
) -> None:
    """Sizes, length, schedule and objective, in each framework's own units and words."""
    made(framework, *words.split())
    experiment = points(framework, *words.split()).base
    wanted = read_setting(experiment)
    found = trial_setting(here, experiment)
    # how long ms-swift's epochs are is known to its data only
    plan = {name: plan_numbers(wanted)[name] for name in SIZED if plan_numbers(wanted)[name]}
    assert {name: plan_numbers(found)[name] for name in plan} == plan
    for word in words.split():
        name = word.partition("=")[0].rpartition(".")[2]
        if hasattr(wanted, name) and not word.startswith("batch."):
            assert getattr(found, name) == getattr(wanted, name), name


@pytest.mark.parametrize(
    ("framework", "key"),
    [
        ("verl", "generation.min_p"),
        ("easyr1", "kl.sync_ref_model"),
        ("verl", "loss.importance_sampling_level"),
        ("ms-swift", "schedule.checkpoints"),
    ],
)
def test_a_key_without_a_counterpart_in_the_framework_is_refused(
    points: Callable[..., Points], framework: str, key: str
) -> None:
    """It would change nothing."""
    (problem,) = check_reach(points(framework).base.trainer, [key, "lr", "batch.num_generations"])
    assert problem.startswith(f"{key}: trainer=command does not read it")
    assert "trainer.args.KEY" in problem


@pytest.mark.parametrize(
    ("framework", "more", "key"),
    [
        ("easyr1", "algorithm.disable_kl=true", "kl.beta"),
        ("verl", "actor_rollout_ref.actor.use_kl_loss=False", "kl"),
        (
            "verl",
            "actor_rollout_ref.actor.use_dynamic_bsz=True",
            "batch.per_device_train_batch_size",
        ),
    ],
)
def test_a_key_that_the_launch_switches_off_is_refused(
    points: Callable[..., Points], framework: str, more: str, key: str
) -> None:
    """Its own key would get the value, and the framework would not read it."""
    (problem,) = check_reach(points(framework, more=(more,)).base.trainer, [key])
    assert problem.startswith(f"{key}: trainer=command does not read it")
    assert not [*check_reach(points(framework).base.trainer, [key])]


def test_ours_is_added_to_the_users_lists(made: Made, here: Path) -> None:
    """Loggers of the script stay, and so do ms-swift's plugins, which an option would replace."""
    made("verl")
    assert (
        '++trainer.logger=[\\"console\\", \\"wandb\\", \\"file\\"]'
        in (here / "program.sh").read_text()
    )
    made("ms-swift")
    words = (here / "program.sh").read_text()
    assert '"--external_plugins", "rewards.py", "/' in words
    assert '"--callbacks", "grposweep"' in words


def test_sizes_that_take_an_option_back_remove_it(made: Made, here: Path) -> None:
    """A rollout's size and its micro-steps are refused together."""
    assert made("ms-swift", "batch.steps_per_generation=4")["keys"]["generation_batch_size"] is None
    assert '"without": ["generation_batch_size"]' in (here / "program.sh").read_text()


@pytest.mark.parametrize(
    ("name", "values", "valid"),
    [
        ("trainer.args.actor_rollout_ref.actor.ppo_mini_batch_size", "32,100", [True, False]),
        ("trainer.args.trainer.total_epochs", "1,2", [True, True]),
        ("batch.num_generations", "8,7", [True, False]),
    ],
)
def test_points_of_its_own_keys_are_judged_by_lints_rules(
    points: Callable[..., Points], name: str, values: str, valid: list[bool]
) -> None:
    """64 prompts of a rollout hold no steps of 100."""
    space, _ = parse_space([f"{name}={values}"], {})
    own = points("verl")
    check_space(space, own)
    validator = Validator(space, own)
    assert [validator.is_valid({name: int(value)}) for value in values.split(",")] == valid


@pytest.mark.parametrize("framework", ALL)
def test_a_job_reads_the_trial_that_was_written_for_it(
    made: Made, points: Callable[..., Points], here: Path, framework: str
) -> None:
    """The framework is noted, so the launch is not read again."""
    made(framework)
    assert load_trial_recipe(here, points(framework).base).framework == framework


@pytest.mark.parametrize(
    ("words", "more", "why"),
    [
        (("cluster.processes=2",), (), "starts 1 processes, and cluster.processes=2. Set"),
        (("trainer.args.trainer.total_epoch=2",), (), "total_epochs"),
        (("batch.prompts_per_step=16",), (), "only sizes that are auto follow it"),
        ((), ("&& ray job submit -- python x.py",), "ray job submit, whose program does not run"),
        ((), ("trainer.logger=$LOGGERS",), "is known to a running shell only"),
        (
            ("cluster.nodes=2", "cluster.gpus_per_node=1", "cluster.cpus_per_gpu=2"),
            ("trainer.nnodes=2",),
            "reserves up to 4 CPUs a GPU .* Set cluster.cpus_per_gpu=4",
        ),
        (
            ("cluster.kind=local", "cluster.nodes=2", "cluster.processes=2"),
            ("trainer.nnodes=2",),
            "cluster=local: this machine is one node",
        ),
    ],
)
def test_a_launch_that_contradicts_the_sweep_is_refused(
    points: Callable[..., Points], words: tuple[str, ...], more: tuple[str, ...], why: str
) -> None:
    """Before anything starts."""
    with pytest.raises(UserError, match=why):
        check_experiment(points("verl", *words, more=more).base)


def test_a_script_with_two_trainings_is_refused(points: Callable[..., Points]) -> None:
    """Each trial would train both, and one of them without its values."""
    with pytest.raises(UserError, match="it launches 2 trainings"):
        points("verl", more=("&& python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo",))


def test_words_of_the_command_reach_the_launch_of_its_script(points: Callable[..., Points]) -> None:
    """They are in the place of ``$@``, in what is judged as well."""
    own = points("verl", "trainer.command='bash run.sh trainer.total_epochs=3'", more=('"$@"',))
    assert own.base.schedule.epochs == 3


def test_on_several_nodes_the_job_starts_ray_around_the_command(made: Made, here: Path) -> None:
    """A dry run shows what each node runs; verl's own number of CPUs would be refused by a Ray that
    runs already.
    """
    shape = ("cluster.nodes=2", "cluster.gpus_per_node=1", "cluster.cpus_per_gpu=8")
    made("verl", *shape, more=("trainer.nnodes=2",))
    script = (here / "program.sh").read_text()
    assert script.count("ray.scripts.scripts start --") == 2
    assert script.count("--num-gpus=1 --num-cpus=8") == 2
    assert '"++trainer.nnodes=2", "++trainer.n_gpus_per_node=1"' in script
    assert '"++ray_kwargs.ray_init.num_cpus=null"' in script
    assert script.splitlines()[-1] == "bash -c 'bash run.sh'"


@pytest.mark.parametrize(
    ("framework", "tracker", "text", "word"),
    [
        ("verl", "latest_checkpointed_iteration.txt", "20", "++trainer.resume_mode="),
        (
            "easyr1",
            "checkpoint_tracker.json",
            '{"last_global_step": 20}',
            "trainer.load_checkpoint_path=",
        ),
    ],
)
def test_the_last_whole_checkpoint_is_the_one_that_the_framework_has_noted(
    made: Made,
    points: Callable[..., Points],
    here: Path,
    framework: str,
    tracker: str,
    text: str,
    word: str,
) -> None:
    """A later folder may be torn: its framework writes the note after all files."""
    made(framework)
    for step in (20, 30):
        (here / "model" / f"global_step_{step}").mkdir(parents=True)
    (here / "model" / tracker).write_text(text)
    row = framework_of(here)
    experiment = points(framework).base
    assert row is not None
    newest = row.newest(here / "model", 1)
    assert newest == here / "model" / "global_step_20"
    trial = Trial(experiment.trainer, here, load_trial_recipe(here, experiment), checkpoint=newest)
    program = build_launched(trial, row)
    assert word in program.environment["GRPOSWEEP_LAUNCH"]
    # two optimizer steps for each rollout
    assert program.resumed_at == 40


def test_a_line_of_either_log_becomes_training_and_evaluation_in_optimizer_steps() -> None:
    """EasyR1 nests its names, verl keeps them below ``data``; a rollout is two optimizer steps
    here.
    """
    easyr1 = b'{"step": 3, "actor": {"pg_loss": 0.1}, "val": {"reward_score": 0.5}}'
    verl = b'{"step": 3, "data": {"actor/pg_loss": 0.1, "val-core/gsm8k/reward/mean@1": 0.5}}'
    for line in (easyr1, verl):
        train, evaluation = rollout_entries(line, 2.0)
        assert (train.kind, train.step, train.values) == ("train", 6, {"actor/pg_loss": 0.1})
        assert (evaluation.kind, evaluation.step, evaluation.values["eval_reward"]) == (
            "eval",
            6,
            0.5,
        )


def test_lines_that_are_no_entries_are_skipped() -> None:
    """Ray's own lines and values of another kind may be in the log."""
    for line in (b"3", b"null", b'["step"]', b"(raylet) started", b'{"step": null, "data": 5}'):
        assert [entry.step for entry in rollout_entries(line, 2.0)] in ([], [0])
