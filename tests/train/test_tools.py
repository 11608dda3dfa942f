"""Real GRPO with tools on the tiny model, in this process: turns, their bound, an environment, and resuming."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from grporecipe.errors import ExitCode
from grporecipe.files import append_line
from grposweep.storage.completions import read_completions
from grposweep.train import tiny
from grposweep.train.models import load_model
from grposweep.train.prepare import check_tools, prepare_experiment
from grposweep.train.prompts import longest_prompt
from grposweep.train.run import run_attempt
from grposweep.train.tasks import load_data
from grposweep.train.tasks.arithmetic import calculator

from .conftest import MakeTrial, build_experiment, control, metrics_of, result_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("taught")]
TASK = (
    "task.kind=calculator", "task.chat=true", "model.path=embedded-tools", "task.rewards=[exact]",
    "generation.max_completion_length=32",
)  # fmt: skip
TOOL = "task.tools=[grposweep.train.tasks.arithmetic:calculator]"
ENVIRONMENT = """
class Desk:
    def reset(self, answer, **row):
        self.answer, self.calls = answer, 0

    def calculator(self, expression: str) -> str:
        \"\"\"Compute.

        Args:
            expression: Two numbers.
        \"\"\"
        self.calls += 1
        return self.answer

    def get_reward(self):
        return float(self.calls == 1)
"""


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A tiny model of 200 warm-start steps: it calls the tool, and often repeats its result."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny.RECIPE, "steps", 200)
        patch.setenv("GRPOSWEEP_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
    torch.set_num_threads(threads)


def transcripts(trial: Path) -> list[str]:
    """All kept completions."""
    return [kept.completion for group in read_completions(trial).values() for kept in group]


def test_calls_and_results_are_in_the_kept_completions_and_counted(make_trial: MakeTrial) -> None:
    """And a resumed trial with tools equals an undisturbed one bit for bit."""
    straight, disturbed = make_trial(*TASK, TOOL), make_trial(*TASK, TOOL, name="0001-b")
    assert run_attempt(straight) == ExitCode.FINISHED
    control(disturbed, "pause", until_step=2)
    assert run_attempt(disturbed) == ExitCode.STOPPED
    (disturbed / "control.json").unlink()
    append_line(disturbed / "attempts.jsonl", {"attempt": 1})
    assert run_attempt(disturbed) == ExitCode.FINISHED
    assert metrics_of(straight, timeless=True) == metrics_of(disturbed, timeless=True)
    called = [text for text in transcripts(straight) if text.startswith("[call] calculator({")]
    assert any("\n[calculator answers] " in text for text in called)
    assert all(line["eval_tools/call_frequency"] > 0 for line in metrics_of(straight) if line["kind"] == "eval")


def test_the_length_bounds_all_turns_together(make_trial: MakeTrial) -> None:
    """A call takes 12 tokens and its result at least 4: with 15 tokens TRL drops each result, and no answer follows."""
    trial = make_trial(*TASK, TOOL, "generation.max_completion_length=15")
    assert run_attempt(trial) == ExitCode.FINISHED
    assert any("[call] calculator" in text for text in transcripts(trial))
    assert not any("answers]" in text for text in transcripts(trial))
    lengths = [line["eval_completions/max_length"] for line in metrics_of(trial) if line["kind"] == "eval"]
    assert max(lengths) <= 15


def test_an_environment_pays_and_its_pay_is_the_held_out_reward(make_trial: MakeTrial, tmp_path: Path) -> None:
    """Weight 1, under the class's name, with the task's rewards or alone."""
    (tmp_path / "desk.py").write_text(ENVIRONMENT)
    own = (*TASK, f"task.environment_factory={tmp_path}/desk.py:Desk", "schedule.max_steps=2")
    alone, both = make_trial(*own, "task.rewards=[]"), make_trial(*own, name="0001-b")
    assert run_attempt(alone) == run_attempt(both) == ExitCode.FINISHED
    for line in (line for line in metrics_of(alone) if line["kind"] == "eval"):
        assert line["eval_reward"] == pytest.approx(line["eval_rewards/Desk/mean"])
    for line in (line for line in metrics_of(both) if line["kind"] == "eval"):
        assert line["eval_reward"] == pytest.approx(line["eval_rewards/Desk/mean"] + line["eval_rewards/exact/mean"])
    parts = [set(kept.rewards) for group in read_completions(both).values() for kept in group]
    assert parts[0] == {"exact", "Desk"}
    assert result_of(both)["status"] == "finished"


def test_a_failing_get_reward_is_named_by_its_class_and_the_users_line(make_trial: MakeTrial, tmp_path: Path) -> None:
    """TRL's wrapper of it would be the function that raised."""
    (tmp_path / "desk.py").write_text(ENVIRONMENT.replace("float(self.calls == 1)", "1 / 0"))
    trial = make_trial(*TASK, f"task.environment_factory={tmp_path}/desk.py:Desk")
    assert run_attempt(trial) != ExitCode.FINISHED
    said = json.dumps(result_of(trial)["failure"])
    assert "task.environment_factory: get_reward of" in said
    assert "desk.py, line 16 (return 1 / 0)" in said


def test_preparation_counts_what_reset_adds_and_the_schemas_that_a_template_shows(tmp_path: Path) -> None:
    """The tiny model's own template shows none."""
    adds = ENVIRONMENT.replace(
        "self.answer, self.calls = answer, 0", "self.answer, self.calls = answer, 0; return '1+1=2'"
    )
    (tmp_path / "desk.py").write_text(adds)
    plain = prepare_experiment(build_experiment(*TASK, TOOL))["longest_prompt"]
    added = prepare_experiment(build_experiment(*TASK, f"task.environment_factory={tmp_path}/desk.py:Desk"))[
        "longest_prompt"
    ]
    assert (plain, added) == (9, 14)
    tokenizer = tiny.build_tool_tokenizer()
    tokenizer.chat_template = (
        "{{ tools | length }}" + "{% for tool in tools %}{{ tool }}{% endfor %}" + tiny.TOOL_TEMPLATE
    )
    prompt: Any = [{"role": "user", "content": "12*34="}]
    assert longest_prompt(tokenizer, [prompt], {"tools": [calculator]}) > 50


@pytest.mark.parametrize(
    ("changes", "message"),
    [(["task.chat=false"], "prompts are plain text"), (["model.path=embedded-text"], "shows no calls of tools")],
)
def test_a_model_that_cannot_call_is_refused_before_the_first_trial(changes: list[str], message: str) -> None:
    """TRL would say so after loading it, or break on the text of a plain prompt."""
    from grporecipe.errors import UserError

    experiment = build_experiment(*TASK, TOOL, *changes)
    loaded = load_model(experiment.model, tiny.tiny_folder(experiment.model.path))
    with pytest.raises(UserError, match=message):
        check_tools(experiment, loaded.tokenizer, load_data(experiment.task).train)


def test_a_call_that_fails_is_answered_with_its_error() -> None:
    """The model may correct it; what the calculator knows is computed."""
    assert (calculator("12*34"), calculator("7 - 9"), calculator(" 1+2 ")) == ("408", "-2", "3")
    with pytest.raises(ValueError, match="two whole numbers"):
        calculator("__import__('os')")
    assert json.loads(json.dumps(tiny.TOOL_RESPONSE)) == tiny.TOOL_RESPONSE  # as the tokenizer's file keeps it
