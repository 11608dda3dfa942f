"""Messages that must fit the recipe: sizes that are fixed together, fixes of scripts, near names."""

from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grporecipe.linting.linter import LintResult, lint_recipe
from grporecipe.linting.output import render_fix
from grporecipe.reading.load import Options, load_recipes, parse_recipe
from grposweep import lint
from support import grposweep
from verdicts import the_one

VERL = """#!/bin/bash
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 \\
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8 trainer.n_gpus_per_node=8 {}
"""


def judge(text: str, name: str = "run.sh") -> LintResult:
    """Return what the rules say of a text."""
    return lint_recipe(parse_recipe(Path(name), text, Options(processes=8)))


def test_a_fix_is_called_safe_only_if_it_can_be_written(here: Path) -> None:
    """``--fix`` edits no shell scripts."""
    keys = {"num_generations": "8", "torch_dtype": "bfloat16", "max_steps": "10"}
    (here / "recipe.yaml").write_text("".join(f"{key}: {value}\n" for key, value in keys.items()))
    words = " ".join(f"--{key} {value}" for key, value in keys.items())
    (here / "run.sh").write_text(
        f"accelerate launch --num_processes 8 -m trl.scripts.grpo {words}\n"
    )
    options = ("--processes", "8", "--framework-version", "1.16")
    shown = {
        name: grposweep(here, "lint", name, *options).out for name in ("recipe.yaml", "run.sh")
    }
    assert {name: "(safe)" in out for name, out in shown.items()} == {
        "recipe.yaml": True,
        "run.sh": False,
    }
    assert "fix: " in shown["run.sh"]


def test_what_lint_returns_prints_as_a_line_a_problem() -> None:
    """The setting behind it has two hundred fields."""
    found = lint({"num_generations": 8, "learning_rate": float("nan")}, processes=1)
    assert "GV104 error: learning_rate=nan" in str(found)
    assert len(repr(found)) < 200


def test_two_sizes_of_log_probabilities_are_fixed_together(tmp_path: Path) -> None:
    """One alone would leave the other; the message has the product, and nodes have 1, 2, 4 or 8
    GPUs.
    """
    sizes = {
        "train_batch_size=64": "train_batch_size=256",
        "ppo_mini_batch_size=64": "ppo_mini_batch_size=96",
        "n=8 ": "n=5 ",
        "log_prob_micro_batch_size_per_gpu=8": "log_prob_micro_batch_size_per_gpu=16",
        "actor.ppo_micro_batch_size_per_gpu=8": "actor.ppo_micro_batch_size_per_gpu=15",
    }
    text = VERL.format("actor_rollout_ref.actor.use_kl_loss=True")
    for old, new in sizes.items():
        text = text.replace(old, new)
    script = tmp_path / "run.sh"
    script.write_text(text)
    found = the_one(lint(script, framework_version="0.9.1").recipes[0].diagnostics, "GB405")
    assert (
        "180 completions of a rollout on each data rank (256 prompts, filled to 288, x 5 / 8)"
        in found.message
    )
    logged = [
        f"actor_rollout_ref.{part}.log_prob_micro_batch_size_per_gpu" for part in ("rollout", "ref")
    ]
    assert [fix.change for fix in found.fixes] == [
        dict.fromkeys(logged, 15),
        {"trainer.n_gpus_per_node": 2},
    ]


def test_no_alternative_sets_a_key_that_another_error_still_refuses() -> None:
    """A file with two errors about one size: steps of 122 prompts fit its micro-batches, not its
    rollout of 512.
    """
    easyr1 = """\
data: {rollout_batch_size: 512}
algorithm: {adv_estimator: grpo}
worker:
  actor: {global_batch_size: 120, micro_batch_size_per_device_for_update: 4, micro_batch_size_per_device_for_experience: 16}
  rollout: {n: 5}
trainer: {nnodes: 1, n_gpus_per_node: 8}
"""
    verl = VERL.format("").replace("train_batch_size=64", "train_batch_size=512")
    verl = verl.replace("ppo_mini_batch_size=64", "ppo_mini_batch_size=1024")
    for text, name, code, size in [
        (easyr1, "easy.yaml", "GB306", "worker.actor.global_batch_size"),
        (
            verl.replace("ppo_micro_batch_size_per_gpu=8", "ppo_micro_batch_size_per_gpu=7"),
            "run.sh",
            "GB404",
            "actor_rollout_ref.actor.ppo_mini_batch_size",
        ),
    ]:
        found = the_one(judge(text, name).diagnostics, code)
        steps = [fix.change[size] for fix in found.fixes if size in fix.change]
        assert len(found.fixes) > len(steps)
        assert all(512 % step == 0 for step in steps)


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        (
            "trl grpo --num_generations 7 --gradient_accumulation_steps 1",
            "--per_device_train_batch_size 7",
        ),
        ("trl grpo --num_generation 16", "num_generation removed, --num_generations 16"),
        ("trl grpo --output_dri 'a b'", "output_dri removed, --output_dir 'a b'"),
        (VERL.format("").replace("rollout.n=8", "rollout.n=1"), "actor_rollout_ref.rollout.n=8"),
    ],
)
def test_a_fix_of_a_script_is_written_as_the_script_writes_it(text: str, fix: str) -> None:
    """It can be pasted into the command, which YAML could not."""
    result = judge(text)
    assert fix in [
        render_fix(one, result.recipe) for found in result.diagnostics for one in found.fixes
    ]


def test_an_unknown_key_has_its_near_name_without_a_version(tmp_path: Path) -> None:
    """For one key the reason has the hint, for several keys the list has it. Any number of near
    names is a warning.
    """
    script = tmp_path / "run.sh"
    script.write_text(VERL.format("actor_rollout_ref.actor.ppo_epoch=1"))
    found = the_one(lint(script).recipes[0].diagnostics, "GV110")
    assert (
        "actor_rollout_ref.actor.ppo_epoch: no verl release has this key (ppo_epochs?)"
        in found.message
    )
    assert found.severity == "warning"
    script.write_text(VERL.format("actor_rollout_ref.actor.ppo_epoch=1 trainer.nothing_like=2"))
    found = the_one(lint(script).recipes[0].diagnostics, "GV110")
    assert "actor_rollout_ref.actor.ppo_epoch (ppo_epochs?), trainer.nothing_like" in found.message
    assert found.severity == "warning"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("r.yaml", "per_device_train_batch_size: 8.0\n", "per_device_train_batch_size=8.0: "),
        ("r.yaml", "max_prompt_lenght: 512\n", "max_prompt_lenght removed, max_prompt_length: 512"),
        ("r.yaml", 'num_iterations: "2"\n', 'num_iterations: "2": YAML reads it as text; TRL'),
        ("r.json", '{"num_generations": 8, "beta": "1e-3"}', 'beta: "1e-3": TRL\'s parser makes'),
    ],
)
def test_a_message_shows_what_differs_from_its_fix(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    """A key that only older releases have is a near name, and quotes are shown where they count."""
    path = tmp_path / name
    path.write_text(text if name.endswith("json") else f"num_generations: 8\n{text}")
    result = lint(path, framework="trl").recipes[0]
    messages = [found.message for found in result.diagnostics]
    messages += [
        render_fix(fix, result.recipe) for found in result.diagnostics for fix in found.fixes
    ]
    assert said in " ".join(messages)


def test_json_that_only_yaml_reads_is_refused(tmp_path: Path) -> None:
    """A script that loads it would stop."""
    path = tmp_path / "r.json"
    path.write_text('{"num_generations": 8,\n "max_steps": 9,}')
    with pytest.raises(UserError, match="line 2: it is not JSON"):
        load_recipes(path, Options(framework="trl"))
