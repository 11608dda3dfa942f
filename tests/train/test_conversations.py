"""Prompts as conversations, in every form that people have; in seconds, with the tiny model for any
text.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from grporecipe.errors import UserError
from grporecipe.files import Json, read_json
from grporecipe.rules.check import check
from grposweep.config.to_setting import read_setting
from grposweep.schema import Task
from grposweep.train._prepare import prepare_sweep
from grposweep.train.prompts import beyond_positions, check_answers, far_longer
from grposweep.train.rewards import find_unearnable
from grposweep.train.tasks import Data, load_data
from refused import says

from .conftest import MakeTrial, build_experiment
from .test_prepare import write_sweep
from .test_tasks import sums, write_jsonl

Turns = list[dict[str, Any]]
SYSTEM = {"role": "system", "content": "Add."}
PLUS = {"role": "user", "content": "{}+1="}
SHARE = [{"from": "system", "value": "Add."}, {"from": "human", "value": "{}+1="}]


def rows_of(*turns: dict[str, Any], count: int = 4) -> list[dict[str, object]]:
    """Rows of one conversation for each number."""
    numbered = json.dumps(turns)
    return [
        {"prompt": json.loads(numbered.replace("{}", str(n))), "answer": str(n + 1)}
        for n in range(count)
    ]


def load(
    folder: Path, rows: list[dict[str, object]], has_template: bool = True, **keys: Any
) -> Data:
    """The data of a file of these rows, of which one is held out."""
    path = write_jsonl(folder / "rows.jsonl", rows)
    return load_data(
        Task(kind="jsonl", path=path, eval_prompts=1, **keys), has_template=has_template
    )


@pytest.mark.parametrize("chat", [None, False, True])
@pytest.mark.parametrize("turns", [[PLUS], [PLUS, {"role": "assistant", "content": "What?"}, PLUS]])
def test_a_system_prompt_is_added_to_conversations(
    tmp_path: Path, chat: bool | None, turns: Turns
) -> None:
    """For each value of task.chat, which is about prompts that are text."""
    data = load(tmp_path, rows_of(*turns), system_prompt="Add.", chat=chat)
    for prompt in (*data.train["prompt"], *data.held_out["prompt"]):
        assert [turn["role"] for turn in prompt] == ["system", *(turn["role"] for turn in turns)]
        assert prompt[0]["content"] == "Add."


@pytest.mark.parametrize(
    ("chat", "has_template", "is_conversation"),
    [(None, True, True), (None, False, False), (False, True, False), (True, False, True)],
)
def test_text_goes_into_the_chat_template_if_the_tokenizer_has_one(
    tmp_path: Path, chat: bool | None, has_template: bool, is_conversation: bool
) -> None:
    """Unless task.chat decides."""
    data = load(tmp_path, sums(*range(4)), has_template, chat=chat)
    assert isinstance(data.train[0]["prompt"], list) == is_conversation


def test_sharegpt_becomes_role_and_content(tmp_path: Path) -> None:
    """Its speakers are human, gpt and system."""
    said = [*SHARE, {"from": "gpt", "value": "What?"}, SHARE[1]]
    prompt = load(tmp_path, rows_of(*said)).train[0]["prompt"]
    assert [turn["role"] for turn in prompt] == ["system", "user", "assistant", "user"]
    assert prompt[0] == SYSTEM
    assert prompt[1]["content"].endswith("+1=")


# the turns of rows 5 and later, keys of the task, words of the message
REFUSED = [
    (
        [{"from": "observation", "value": "{}"}],
        {},
        "rows 5, 6, 7, 8 of ... a turn from 'observation', which is none of human",
    ),
    (
        [*SHARE, {"from": "gpt", "value": "2"}],
        {},
        "rows 5, 6, 7, 8 of ... ends with the answer of 'gpt'",
    ),
    ([SHARE[0], PLUS], {}, "a turn without from or value"),
    (
        [{"speaker": "me", "text": "{}+1="}],
        {},
        "a turn without role or content: its keys are speaker, text",
    ),
    ([], {}, "a conversation without turns"),
    ([SYSTEM], {}, "only the system says something"),
    (
        [SYSTEM, PLUS],
        {"system_prompt": "Think."},
        "4 of 8 prompts begin with a system turn of their own, such as 'Add.'",
    ),
]


@pytest.mark.parametrize(("turns", "keys", "words"), REFUSED)
def test_turns_that_no_template_could_show_are_refused_by_row(
    tmp_path: Path, turns: Turns, keys: dict[str, Any], words: str
) -> None:
    """Before a model is loaded; a template would leave them out silently."""
    good = [{"prompt": [{"role": "user", "content": f"{n}*2="}], "answer": "1"} for n in range(4)]
    with pytest.raises(UserError, match=says(words)):
        load(tmp_path, [*good, *rows_of(*turns)], **keys)


@pytest.mark.parametrize(("suffix", "mark"), [("csv", ","), ("tsv", "\t")])
def test_a_table_is_read(tmp_path: Path, suffix: str, mark: str) -> None:
    """With quotes, line ends inside of a value, and a byte order mark."""
    lines = [f'"{n},\n1, please"{mark}{n + 1}{mark}easy\n' for n in range(4)]
    path = tmp_path / f"rows.{suffix}"
    path.write_bytes(b"\xef\xbb\xbf" + f"prompt{mark}answer{mark}level\n{''.join(lines)}".encode())
    data = load_data(Task(kind="jsonl", path=str(path), eval_prompts=1))
    texts = {row["prompt"]: row["answer"] for row in (*data.train, *data.held_out)}
    assert texts == {f"{n},\n1, please": str(n + 1) for n in range(4)}
    assert set(data.train["level"]) == {"easy"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1,2,3\n", "line 2 has more values than there are columns (prompt, answer)"),
        ("1+1=\n", "row 1 ... has no answer"),
        ('"1,2\n', "line 2 is not CSV"),
        (None, "columns are separated by ';'"),
    ],
)
def test_a_wrong_table_is_explained_by_line(tmp_path: Path, text: str | None, words: str) -> None:
    """As with JSON lines."""
    content = "prompt;answer\n1+1=;2\n" if text is None else "prompt,answer\n" + text
    (tmp_path / "rows.csv").write_text(content)
    with pytest.raises(UserError, match=says(words)):
        load_data(Task(kind="jsonl", path=str(tmp_path / "rows.csv"), eval_prompts=1))


def letters(text: str) -> dict[str, list[int]]:
    """A tokenizer with one token a letter."""
    return {"input_ids": [0] * len(text)}


def test_rewards_that_no_completion_can_earn_are_refused() -> None:
    """Answers that are longer than any completion, and answers that are no mathematics."""
    code = "def f(x):\n    return x"
    experiment = build_experiment("generation.max_completion_length=8", "task.rewards=[exact]")
    check_answers(experiment, letters, [code, "12345678"])
    with pytest.raises(UserError, match="=22 or more"):
        check_answers(experiment, letters, [code])
    assert "finds none" in next(find_unearnable(["math"], [code]))
    assert not [*find_unearnable(["math"], [code, "x + 1"])]


def test_a_prompt_far_longer_than_the_others_is_named() -> None:
    """Memory and vLLM's sequences are planned for it. Short prompts may differ by as much."""
    usual = ["x" * (n % 300) for n in range(500)]
    assert far_longer(letters, usual) == ""
    said = far_longer(letters, [*usual, "odd" * 1000])
    assert "has 3,000 tokens. All but 6 of 501 prompts have at most 294." in said
    assert "'oddodd" in said


def test_prompts_beyond_the_models_positions_are_named() -> None:
    """Transformers samples on silently, and vLLM refuses the prompt. Nothing is left of one that
    fills them all.
    """
    experiment = build_experiment("generation.max_completion_length=64", "model.path=some/model")
    entry: Json = {"model": {"positions": 256}, "longest_prompt": 192}
    assert beyond_positions(experiment, entry) == ""
    said = beyond_positions(experiment, entry | {"longest_prompt": 193})
    assert "193 tokens and completions up to 64: more than the 256 positions of" in said
    assert "set generation.max_completion_length=63, or set a model" in said
    with pytest.raises(UserError, match=says("256 tokens ... reads 256 at most")):
        beyond_positions(experiment, entry | {"longest_prompt": 256})


def test_questions_in_words_are_held_out_by_the_pair() -> None:
    """38 x 38 sums; some are for the evaluation alone."""
    data = load_data(Task(kind="questions", eval_prompts=64, chat=True))
    assert data.counts() == {"train_prompts": 38 * 38 - 64, "eval_prompts": 64}
    row = data.train[0]
    a, b = (int(word.strip("?")) for word in row["prompt"][0]["content"].split()[2:5:2])
    assert row["answer"] == str(a + b)


@pytest.mark.parametrize("chat", [True, False])
def test_gd202_is_about_prompts_that_miss_the_template(chat: bool) -> None:
    """Conversations never do, and task.chat=false with them is no mistake."""
    counted = {"has_chat_template": True, "chat": chat, "longest_prompt": 20}
    found = {
        problem.code
        for problem in check(read_setting(build_experiment("task.chat=false"), counted))
    }
    assert ("GD202" in found) is not chat


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "words"),
    [
        (
            "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}",
            "leaves out the turn of the system",
        ),
        (
            "{{ raise_exception('System role not supported') }}",
            "refuses a conversation of system, user: System role not",
        ),
        (
            "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n",
            "task.rewards has format, and the chat template",
        ),
    ],
)
def test_a_chat_template_without_room_for_a_turn_is_found_by_the_preparation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], template: str, words: str
) -> None:
    """TRL would train on what the template leaves, or end the first trial."""
    from grposweep.train._tiny import build_text_tokenizer, untrained

    tokenizer = build_text_tokenizer()
    untrained(tokenizer).save_pretrained(tmp_path / "model")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model/tokenizer_config.json").read_text())
    (tmp_path / "model/tokenizer_config.json").write_text(
        json.dumps({**config, "tokenizer_class": "PreTrainedTokenizerFast"})
    )
    path = write_jsonl(tmp_path / "rows.jsonl", rows_of(PLUS))
    task = (
        "task.kind=jsonl",
        f"task.path={path}",
        "task.system_prompt=Add.",
        "task.eval_prompts=1",
        "task.rewards=[exact,format]",
    )
    write_sweep(tmp_path, f"model.path={tmp_path}/model", *task)
    assert prepare_sweep(tmp_path) == 2
    assert words in capsys.readouterr().err
    write_sweep(tmp_path, f"model.path={tmp_path}/model", *task, "task.system_prompt=null")
    assert prepare_sweep(tmp_path) == (0 if "system" in template else 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rows", [rows_of(PLUS), rows_of(SHARE[1]), sums(*range(4))], ids=["role", "from", "text"]
)
def test_the_tiny_model_for_any_text_trains_on_conversations(
    tmp_path: Path, make_trial: MakeTrial, rows: list[dict[str, object]]
) -> None:
    """The system prompt reaches it, in front of every prompt."""
    from grposweep.train.run import run_attempt

    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    task = (
        "task.kind=jsonl",
        f"task.path={path}",
        "task.system_prompt=Add.",
        "task.eval_prompts=2",
    )
    overrides = ["model.path=embedded-text", *task, "task.chat=null"]
    folder = make_trial(*overrides, "schedule.max_steps=1", "schedule.evaluations=1")
    write_sweep(folder.parent.parent, *overrides)
    assert prepare_sweep(folder.parent.parent) == 0
    (entry,) = (read_json(folder.parent.parent / "prepared.json") or {})["entries"].values()
    assert (entry["chat"], entry["longest_prompt"]) == (
        True,
        len("system: Add.\nuser: 0+1=\nassistant: "),
    )
    assert run_attempt(folder) == 0
    assert '"prompt": "Add.\\n' in (folder / "completions.jsonl").read_text()
