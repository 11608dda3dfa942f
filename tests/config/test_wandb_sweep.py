"""A sweep file of W&B as overrides and a launch command."""

from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grposweep.config.wandb_sweep import expand, read_sweep_file

FILE = """
program: train.py
method: bayes
metric: {name: eval/reward, goal: maximize}
parameters:
  learning_rate: {distribution: log_uniform_values, min: 1e-6, max: 1e-4}
  num_generations: {values: [4, 8]}
  max_steps: {min: 10, max: 20}
  disable_dropout: {value: true}
  own-key: {values: [a, 1e-3]}
command: ["${env}", "${interpreter}", "${program}", --config, recipe.yaml, "${args}"]
"""


def test_a_sweep_file_is_overrides_and_a_command(tmp_path: Path) -> None:
    """Names of GRPOConfig are keys, others options of the program; a command that is given counts."""
    file = tmp_path / "sweep.yaml"
    file.write_text(FILE)
    overrides = [
        "lr=tag(log,interval(1e-6,1e-4))",
        "batch.num_generations=4,8",
        "schedule.max_steps=tag(int,interval(10,20))",
        "trainer.args.disable_dropout=true",
        "trainer.args.own-key=a,1e-3",
        "search.sampler=tpe",
        "search.metric=eval_reward",
    ]
    launch = ["python", "train.py", "--config", "recipe.yaml"]
    assert expand(["-m", f"@{file}"]) == ["-m", *overrides, "--", *launch]
    assert expand([f"@{file}", "--", "x"]) == [*overrides, "--", "x"]


def test_a_file_without_a_goal_minimizes_and_one_without_a_program_starts_none(
    tmp_path: Path,
) -> None:
    """As W&B does."""
    file = tmp_path / "sweep.yaml"
    file.write_text("method: grid\nmetric: {name: loss}\nparameters: {beta: {value: 1}}\n")
    search = ["search.sampler=grid", "search.metric=loss", "search.direction=minimize"]
    assert expand([f"@{file}"]) == ["kl.beta=1", *search]


@pytest.mark.parametrize(
    ("parameter", "said"),
    [
        ("{distribution: q_normal, mu: 0}", "lr has the distribution q_normal"),
        ("{parameters: {a: {value: 1}}}", "lr has nested parameters"),
        ("{min: 1}", "lr has the distribution uniform and no list of values, which has no"),
        ("{values: }", "no list of values"),
        ("{values: 1e-6}", "no list of values"),
        ("{distribution: [x], min: 1, max: 2}", "lr has the distribution"),
        ("{value: 1}}\ncommand: ['${envvar:X}']\nx: {", "command has"),
    ],
)
def test_what_has_no_counterpart_is_refused(tmp_path: Path, parameter: str, said: str) -> None:
    """In one line, before anything starts."""
    (tmp_path / "sweep.yaml").write_text(f"method: grid\nparameters: {{lr: {parameter}}}\n")
    with pytest.raises(UserError, match=said):
        read_sweep_file(tmp_path / "sweep.yaml")
