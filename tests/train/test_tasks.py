"""Prompts and answers: disjoint splits, one reader for people's files, every bad file explained."""

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict

from grporecipe.errors import UserError
from grposweep.schema import Task
from grposweep.train import hub
from grposweep.train.tasks import load_data
from refused import says

GSM8K = [
    {
        "question": f"Ann has {n} eggs and buys 1,000 more. How many?",
        "answer": f"{n}+1000\n#### {n + 1000:,}",
    }
    for n in range(1, 9)
]


def write_jsonl(path: Path, rows: list[dict[str, object]]) -> str:
    """A file of rows; its path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def sums(*numbers: int, answer: object = "1", prompt: str = "{}+1=") -> list[dict[str, object]]:
    """Rows of one sum for each number."""
    return [{"prompt": prompt.format(n), "answer": answer} for n in numbers]


@pytest.mark.parametrize("eval_prompts", [1, 256, 5000])
def test_arithmetic_holds_out_prompts_that_are_never_trained_on(eval_prompts: int) -> None:
    """And every sum is in one of the two."""
    data = load_data(Task(eval_prompts=eval_prompts))
    train = set(data.train["prompt"])
    held_out = set(data.held_out["prompt"])
    assert not train & held_out
    assert (len(train | held_out), len(held_out)) == (10_000, eval_prompts)


def test_the_tiny_model_has_not_seen_held_out_sums() -> None:
    """Or the objective would measure memory."""
    from grposweep.train.tasks.arithmetic import WARM_START_PAIRS, pairs

    warm = {f"{a:02d}+{b:02d}=" for a, b in pairs()[-WARM_START_PAIRS:]}
    assert not warm & set(load_data(Task(eval_prompts=5000)).held_out["prompt"])


def test_arithmetic_answers_are_sums() -> None:
    """Operands have two digits, answers as many as they need."""
    row = load_data(Task()).train[0]
    a, b = row["prompt"].rstrip("=").split("+")
    assert row["answer"] == str(int(a) + int(b))


def test_training_prompts_can_be_limited() -> None:
    """After the held-out ones are set aside."""
    assert load_data(Task(train_prompts=100, eval_prompts=10)).counts() == {
        "train_prompts": 100,
        "eval_prompts": 10,
    }


def test_gsm8k_reads_local_copies(tmp_path: Path) -> None:
    """The hub's own layout, or one file of which some rows are held out."""
    names = [f"{split}-00000-of-00001.parquet" for split in ("train", "test")]
    for name, rows in zip(names, (GSM8K[:6], GSM8K[6:]), strict=True):
        Dataset.from_list(rows).to_parquet(tmp_path / "main" / name)
    task = Task(kind="gsm8k", subset="main", eval_prompts=2, chat=True, system_prompt="Think.")
    task.path = str(tmp_path)
    data = load_data(task)
    assert data.counts() == {"train_prompts": 6, "eval_prompts": 2}
    answers = {row["answer"] for row in (*data.train, *data.held_out)}
    assert answers == {str(n + 1000) for n in range(1, 9)}
    assert [turn["role"] for turn in data.train[0]["prompt"]] == ["system", "user"]
    task.path = str(tmp_path / "main" / names[0])
    assert load_data(task).counts() == {"train_prompts": 4, "eval_prompts": 2}


@pytest.mark.parametrize("layout", ["saved", "train-", "part-"])
def test_a_folder_of_datasets_is_read(tmp_path: Path, layout: str) -> None:
    """As save_to_disk writes it, as the hub lays it out, or in parts without a split's name."""
    whole = Dataset.from_list(sums(*range(12)))
    if layout == "saved":
        DatasetDict(train=whole, test=Dataset.from_list(sums(20, 21, 22))).save_to_disk(tmp_path)
    for part in (0, 6) if layout != "saved" else ():
        whole.select(range(part, part + 6)).to_parquet(
            tmp_path / "data" / f"{layout}{part}.parquet"
        )
    task = Task(kind="jsonl", path=str(tmp_path), eval_prompts=2)
    assert load_data(task).counts() == {"train_prompts": 10, "eval_prompts": 2}
    if layout == "saved":
        task.eval_split = "test"
        assert load_data(task).counts() == {"train_prompts": 12, "eval_prompts": 2}


def test_gsm8k_offline_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder, a cache, or the network."""
    import datasets

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach the hub")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(UserError, match="HF_HOME"):
        load_data(Task(kind="gsm8k", subset="main"))


def test_a_node_with_the_model_and_without_the_dataset_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The trial stays off the network because its model is there; only a cache of the node's own
    lacks the other.
    """
    for name in (*hub.OFFLINE, hub.WENT_OFFLINE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    hub.go_offline()
    with pytest.raises(UserError, match=r"has the model and not this dataset .* HF_HUB_OFFLINE=0"):
        load_data(Task(kind="gsm8k", path="someone/nothing", subset="main"))
    for name in (*hub.OFFLINE, hub.WENT_OFFLINE):
        monkeypatch.delenv(name)


def test_jsonl_holds_out_the_end_of_a_fixed_shuffle_and_keeps_other_columns(tmp_path: Path) -> None:
    """Rewards may read any column."""
    rows: list[dict[str, object]] = [{"q": f"q{n}", "a": n, "level": n % 3} for n in range(10)]
    task = Task(kind="jsonl", prompt_column="q", answer_column="a", eval_prompts=3)
    task.path = write_jsonl(tmp_path / "mine.jsonl", rows)
    data = load_data(task)
    assert data.counts() == {"train_prompts": 7, "eval_prompts": 3}
    assert not set(data.train["prompt"]) & set(data.held_out["prompt"])
    assert data.train["prompt"] == load_data(task).train["prompt"]
    assert "level" in data.train.column_names


def test_a_prompt_that_is_written_several_times_is_on_one_side(tmp_path: Path) -> None:
    """Also with other white space around it; the held-out prompts are all different."""
    rows = [*sums(*range(9)), *sums(*range(9), prompt=" {}+1=\n"), *sums(*range(9))]
    data = load_data(
        Task(kind="jsonl", path=write_jsonl(tmp_path / "rows.jsonl", rows), eval_prompts=4)
    )
    train, held_out = (
        {prompt.strip() for prompt in part["prompt"]} for part in (data.train, data.held_out)
    )
    assert not train & held_out
    assert (len(held_out), data.counts()) == (4, {"train_prompts": 15, "eval_prompts": 4})


@pytest.mark.parametrize(("rows", "counts"), [(21, (11, 10)), (2, (1, 1)), (200, (136, 64))])
def test_few_prompts_are_divided_in_halves(
    tmp_path: Path, rows: int, counts: tuple[int, int]
) -> None:
    """With the default number of held-out prompts; no prompt is on both sides."""
    data = load_data(
        Task(
            kind="jsonl",
            path=write_jsonl(tmp_path / "rows.jsonl", sums(*range(rows))),
            eval_prompts=64,
        )
    )
    assert (len(data.train), len(data.held_out)) == counts
    assert not set(data.train["prompt"]) & set(data.held_out["prompt"])


def test_a_file_from_windows_is_read(tmp_path: Path) -> None:
    """With a byte order mark, CRLF, and a line separator inside of a prompt."""
    path = Path(write_jsonl(tmp_path / "rows.jsonl", sums(*range(4))))
    separated = path.read_text().replace("0+1=", "0\u2028+1=").replace("\n", "\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + separated.encode())
    task = Task(kind="jsonl", path=str(path), eval_prompts=1)
    assert load_data(task).counts()["train_prompts"] == 3
    # one array
    path.write_text(json.dumps(sums(*range(3)), indent=1))
    assert load_data(task).counts()["train_prompts"] == 2


ONE = '{"prompt": "p", "answer": "1"}\n'
# its keys, the text or the rows of its file, words of the message
REFUSED = [
    ({"eval_prompts": 9000}, None, "at most 5000"),
    ({"system_prompt": "Think."}, None, "task.chat=false"),
    ({"kind": "jsonl", "path": "mine.jsonl"}, None, "no such file"),
    ({"path": ".", "train_split": "dev"}, ONE, "no rows of the split dev"),
    ({"path": "rows.arrow"}, ONE, "end in .jsonl, .json, .parquet ... Dataset.to_parquet"),
    ({}, f'\n{ONE}\n{{"prompt": "p"}}', "row 4 ... has no answer"),
    ({}, ONE + '{"prompt": \n', "line 2 is not JSON"),
    ({}, "[1, 2]\n", "line 1 is not a JSON object"),
    ({}, '{"prompt": "p"}\n', "row 1 ... has no answer: its columns are prompt"),
    ({}, ONE, "nothing would be left"),
    (
        {},
        [*sums(0, 1, 2), *sums(3, 4, answer=float("nan"))],
        "2 of 5 rows ... have NaN or nothing there, first row 4",
    ),
    ({}, [*sums(0), *sums(1, 2, 3, answer=" ")], "3 of 4 rows"),
    ({}, sums(0), "1 row: with one prompt held out, nothing would be left"),
    ({}, sums(0, 0, 0), "3 rows, 1 of them with different prompts"),
    (
        {},
        [{**row, "level": n if n < 5 else "hard"} for n, row in enumerate(sums(*range(9)))],
        "level (int, str)",
    ),
    (
        {"eval_prompts": 9, "eval_split": "other.jsonl"},
        sums(*range(9)),
        "3 of 9 held-out prompts are training prompts too ... task.eval_split=null",
    ),
]


@pytest.mark.parametrize(("keys", "content", "words"), REFUSED)
def test_what_cannot_be_learned_from_is_explained(
    keys: dict[str, Any],
    content: str | list[dict[str, object]] | None,
    words: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one message, with the line or row, before anything trains."""
    monkeypatch.chdir(here)
    write_jsonl(here / "other.jsonl", sums(*range(6, 15)))
    if content is not None:
        keys = {"kind": "jsonl", "path": "rows.jsonl", "eval_prompts": 1, **keys}
        for name in ("rows.jsonl", "rows.arrow"):
            Path(name).write_text(content) if isinstance(content, str) else write_jsonl(
                here / name, content
            )
    with pytest.raises(UserError, match=says(words)):
        load_data(Task(**keys))
