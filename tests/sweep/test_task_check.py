"""Mistakes in the user's data and rewards: all in one message, before anything is created or torch
is imported.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from grporecipe.errors import UserError
from in_process import sweeps_in
from support import Printed, run_in, sampled, write_lines

SEARCH = ("-m", "lr=1e-4,1e-3")
Start = Callable[..., str]
# of a model's folder
WHOLE = ["config.json", "model.safetensors", "tokenizer_config.json"]
REWARD = "def close(completions, **_):\n    return [0.0] * len(completions)\n"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed) -> Start:
    """``start("task=jsonl", ...)``: the message of a sweep that is refused and leaves nothing
    behind.
    """
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(90)]
    write_lines(tmp_path / "sums.jsonl", rows)
    (tmp_path / "rewards.py").write_text(REWARD)
    sweep = sweeps_in(tmp_path, monkeypatch)

    def message(*arguments: str) -> str:
        with pytest.raises(UserError) as refused:
            sweep(*arguments, "name=s", "lr=1e-4,1e-3")
        assert not (tmp_path / "outputs").exists()
        assert "preparing" not in printed()
        return str(refused.value)

    return message


@pytest.mark.parametrize(
    ("arguments", "said"),
    sampled(
        [
            (["task.path=nope.jsonl"], ["task.path=nope.jsonl: there is no such file"]),
            (["task.rewards=[exactt]"], ["no built-in reward", "Did you mean exact?"]),
            (
                ["task.rewards=[rewards.py:clsoe]"],
                ["rewards.py has no function clsoe. Did you mean close?"],
            ),
            (["task.rewards=[other.py:close]"], ["there is no file", "other.py"]),
            (
                ["task.family_column=topic"],
                ["task.family_column=topic", "the held-out prompts has no topic"],
            ),
            (
                [
                    "task.prompt_column=question",
                    "task.answer_column=gold",
                    "task.rewards=[rewards.py:far]",
                ],
                ["3 keys cannot work", "has no question", "has no gold", "has no function far"],
            ),
        ],
        3,
    ),
)
def test_a_mistake_is_named_before_anything_is_created(
    start: Start, arguments: Sequence[str], said: Sequence[str]
) -> None:
    """With what to set instead, and all of them at once."""
    message = start("task=jsonl", "task.path=sums.jsonl", *arguments)
    assert all(part in message for part in said), message


def test_a_reward_that_fails_on_the_first_rows_is_named_before_torch_is_imported(
    start: Start, tmp_path: Path
) -> None:
    """It is called in a process of its own, with the columns that it will get."""
    body = "    raise KeyError('gold')\n"
    (tmp_path / "rewards.py").write_text(f"def close(completions, answer, **_):\n{body}")
    said = start("task=jsonl", "task.path=sums.jsonl", "task.rewards=[rewards.py:close]")
    assert "KeyError: 'gold', in rewards.py, line 2" in said


def test_a_sweep_over_the_model_tries_its_rewards_once(start: Start, tmp_path: Path) -> None:
    """Each try is a process."""
    body = "    open('tried', 'a').write('x')\n    return None\n"
    (tmp_path / "rewards.py").write_text(f"def close(completions, **_):\n{body}")
    words = (
        "task=jsonl",
        "task.path=sums.jsonl",
        "task.rewards=[rewards.py:close]",
        "task.chat=false",
    )
    assert "close (rewards.py) returned None" in start(*words, "model.lora.r=2,4,8")
    assert (tmp_path / "tried").read_text() == "x"


def test_text_that_the_tiny_model_cannot_read_is_refused_with_the_model_that_can(
    start: Start, tmp_path: Path
) -> None:
    """No download is needed for a first try."""
    (tmp_path / "words.jsonl").write_text(
        '{"prompt": "Tom has 3 apples", "answer": "3"}\n{"prompt": "1+1=", "answer": "2"}\n'
    )
    said = start("task=jsonl", "task.path=words.jsonl", "task.eval_prompts=1")
    assert "'Tom has 3 apples'. Set model=tiny_text" in said


def test_another_encoding_is_named(start: Start, tmp_path: Path) -> None:
    """With the line, and without a traceback."""
    (tmp_path / "odd.jsonl").write_text('{"prompt": "1+1=", "answer": "é"}\n', encoding="latin-1")
    assert "line 1 is not UTF-8" in start("task=jsonl", "task.path=odd.jsonl")


@pytest.mark.parametrize(
    ("files", "keys", "said"),
    [
        ([], [], "without config.json"),
        (["config.json"], [], "no weights"),
        (WHOLE, ["task.chat=true"], "the tokenizer of model.path=model has no chat template"),
        (WHOLE, ["generation=vllm_colocate"], "vllm is not installed here. Run pip install"),
    ],
)
def test_what_preparation_would_refuse_is_read_from_files(
    start: Start, tmp_path: Path, files: Sequence[str], keys: Sequence[str], said: str
) -> None:
    """The weights are empty: nothing loads them, and torch is not imported."""
    (tmp_path / "model").mkdir()
    for name in files:
        (tmp_path / "model" / name).write_text("{}")
    if files == WHOLE:
        Tokenizer(WordLevel({})).save(str(tmp_path / "model" / "tokenizer.json"))
    assert said in start("model.path=model", "task=jsonl", "task.path=sums.jsonl", *keys)


def test_a_reward_that_its_file_makes_while_it_runs_is_not_refused(
    start: Start, tmp_path: Path
) -> None:
    """Only running it would tell; here the data are what is wrong."""
    (tmp_path / "made.py").write_text(
        "globals()['close'] = lambda completions, **_: [0.0] * len(completions)\n"
    )
    said = start("task=jsonl", "task.path=nope.jsonl", "task.rewards=[made.py:close]")
    # the path, and what to set
    assert said.count("task.") == 2


def test_a_sweep_that_the_disk_cannot_hold_is_refused_unless_it_is_allowed(tmp_path: Path) -> None:
    """2 TiB of checkpoints are not a remark; the length of each trial stands above it."""
    large = ("trainer=fake", "model.shape.parameters=90000000000", *SEARCH)
    ended = run_in(tmp_path, *large)
    assert ended.code == 2
    assert "not enough: set trainer.keep=none" in ended.err
    assert "each trial: 200 optimizer steps, 6,400 completions" in ended.out
    assert not list((tmp_path / "outputs").glob("*"))
    assert run_in(tmp_path, *large, "rules.ignore=[disk]").code == 0


@pytest.mark.slow
def test_files_of_prompts_can_be_searched(tmp_path: Path) -> None:
    """Without a path of the base; a file that is not there is named."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n' * 9)
    searched = ("trainer=fake", "schedule.budget_completions=320", "task=jsonl", "-m")
    assert run_in(tmp_path, *searched, "task.path=a.jsonl,b.jsonl").code == 0


def test_wrong_rows_of_both_files_are_named_together(start: Start, tmp_path: Path) -> None:
    """No JSON, no prompt, no answer, mixed types: with their numbers, before anything starts."""
    (tmp_path / "odd.jsonl").write_text(
        '{"prompt": "1", "answer": "1"}\nno\n[1]\n{"prompt": "2", "answer": 2}\n'
    )
    rows = [
        {"prompt": " "},
        {"prompt": "1", "answer": " "},
        {"prompt": "2", "answer": "2", "level": 1},
    ]
    rows += [{"answer": "3", "level": "hard"}, {"answer": "4"}]
    write_lines(tmp_path / "held.jsonl", rows)
    said = start("task=jsonl", "task.path=odd.jsonl", "task.eval_split=held.jsonl")
    for part in (
        "line 2 is not JSON",
        "line 3 is not a JSON object",
        "rows 4, 5 of held.jsonl have no prompt",
        "row 1 of held.jsonl has no answer",
        "1 of 5 rows of held.jsonl have an empty prompt",
        "Remove row 2, or fill in",
        "level (int, str)",
    ):
        assert part in said, part
