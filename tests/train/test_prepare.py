"""Preparation: what it writes, what it finds wrong, and that two of them do not collide."""

import json
import shutil
import sys
import threading
from pathlib import Path

import pytest
from filelock import FileLock

from grporecipe.files import read_json, write_json, write_text
from grposweep.config.compose import render_experiment
from grposweep.config.identity import prepared_key
from grposweep.config.to_setting import read_setting
from grposweep.report.space_summary import SpaceSummary, print_space_summary
from grposweep.report.tables import build_console
from grposweep.storage.inputs import find_inputs
from grposweep.train._prepare import prepare_sweep

from .conftest import build_experiment

# prepares a real model: torch and transformers take 6 s to import
REAL = pytest.mark.slow

TINY = {
    "parameters": 83648,
    "layers": 2,
    "hidden": 64,
    "intermediate": 128,
    "heads": 4,
    "kv_heads": 4,
}


def write_sweep(folder: Path, *overrides: str) -> str:
    """A sweep folder as the controller prepares it; the key of its one entry."""
    experiment = build_experiment(*overrides)
    key = prepared_key(experiment)
    (folder / "prepare").mkdir(exist_ok=True)
    write_text(folder / "prepare" / f"{key}.yaml", render_experiment(experiment))
    write_json(folder / "prepare.json", {"entries": {key: f"prepare/{key}.yaml"}})
    return key


@REAL
@pytest.mark.usefixtures("cool_tiny")
def test_prepared_json_counts_prompts_and_describes_the_model(tmp_path: Path) -> None:
    """What the rules read, and hashes to see changes by."""
    key = write_sweep(tmp_path, "task.train_prompts=100")
    assert prepare_sweep(tmp_path) == 0
    entry = (read_json(tmp_path / "prepared.json") or {})["entries"][key]
    assert (entry["train_prompts"], entry["eval_prompts"]) == (100, 8)
    known = {
        "vocabulary": 16,
        "tied_embeddings": True,
        "head_dim": 16,
        "model_type": "qwen2",
        "positions": 64,
    }
    assert entry["model"] == {**TINY, **known}
    # such as 12+34=
    assert 3 <= entry["longest_prompt"] <= 8
    assert set(entry["hashes"]) == {"model", "train", "eval"}
    setting = read_setting(build_experiment("task.train_prompts=100"), entry)
    assert (setting.train_prompts, setting.prompt_tokens) == (100, entry["longest_prompt"])
    assert setting.architecture is not None
    assert setting.architecture.count() == TINY["parameters"]


def test_what_is_prepared_stays_prepared(tmp_path: Path) -> None:
    """A sweep over two models asks for one after the other."""
    write_json(tmp_path / "prepared.json", {"entries": {"older": {"train_prompts": 7}}})
    key = write_sweep(tmp_path, "trainer.kind=fake")
    assert prepare_sweep(tmp_path) == 0
    entries = (read_json(tmp_path / "prepared.json") or {})["entries"]
    assert (set(entries), entries["older"]) == ({"older", key}, {"train_prompts": 7})


def test_data_that_was_edited_while_its_preparation_waited_is_counted_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trials train with the sweep's copy. Without one the edited file is refused."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    task = ("trainer.kind=fake", "task.kind=jsonl", "task.path=mine.jsonl", "task.eval_prompts=2")
    rows = [f'{{"prompt": "{number}", "answer": "1"}}\n' for number in range(9)]
    Path("mine.jsonl").write_text("".join(rows))
    find_inputs([build_experiment(*task)]).keep(tmp_path).write(tmp_path)
    Path("mine.jsonl").write_text("".join(rows[:5]))
    key = write_sweep(tmp_path, *task)
    assert prepare_sweep(tmp_path) == 0
    assert (read_json(tmp_path / "prepared.json") or {})["entries"][key]["train_prompts"] == 7
    shutil.rmtree(tmp_path / "inputs")
    assert prepare_sweep(tmp_path) == 2
    assert "mine.jsonl has changed since the sweep recorded it" in capsys.readouterr().err


def test_rows_that_repeat_a_prompt_are_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """60 rows with 25 prompts: a held-out prompt is used once, all rows of the others are trained
    on.
    """
    monkeypatch.setattr(sys, "path", [*sys.path])
    rows = [json.dumps({"prompt": f"{n % 25}+1=", "answer": str(n % 25 + 1)}) for n in range(60)]
    rows[-1] = rows[-1].replace('"10"', '"7"')
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    task = (
        "trainer.kind=fake",
        "task.kind=jsonl",
        f"task.path={tmp_path}/rows.jsonl",
        "task.eval_prompts=16",
    )
    key = write_sweep(tmp_path, *task)
    assert prepare_sweep(tmp_path) == 0
    entries = (read_json(tmp_path / "prepared.json") or {})["entries"]
    summary = SpaceSummary(1, 0, 0, 1, "", is_local=True)
    print_space_summary(build_console(200), summary, build_experiment(*task), [], entries, tmp_path)
    said = (
        f"{entries[key]['train_prompts']} rows of 13 other prompts to train on. Rows with "
        "the same prompt stay on one side"
    )
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        f"held out: 12 of task.eval_prompts=16 prompts (at most half of the data); {said}" in shown
    )
    # which one is meant, only the user knows
    assert "1 prompt with several answers, such as rows 10 and 60 ('10' and '7')" in shown


def test_errors_in_data_name_the_users_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not the copy of the sweep, which was read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    task = ("trainer.kind=fake", "task.kind=jsonl", "task.path=mine.jsonl")
    Path("mine.jsonl").write_text("no JSON\n")
    find_inputs([build_experiment(*task)]).keep(tmp_path).write(tmp_path)
    write_sweep(tmp_path, *task)
    assert prepare_sweep(tmp_path) == 2
    assert capsys.readouterr().err.startswith("task.path=mine.jsonl: line 1 is not JSON")


def test_a_misbehaving_reward_is_found_before_the_first_trial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Name, file, and what came back."""
    (tmp_path / "mine.py").write_text("def bad(completions, answer, **_): return [1.0]\n")
    write_sweep(tmp_path, f"task.rewards=[{tmp_path}/mine.py:bad]", "trainer.kind=fake")
    assert prepare_sweep(tmp_path) == 2
    error = capsys.readouterr().err
    assert "returned 1 values for 2 completions" in error
    assert "mine.py" in error
    assert not (tmp_path / "prepared.json").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.kind=jsonl", "task.path=nowhere.jsonl"], "no such file"),
        (["model.path=no/such-model"], "model.path=no/such-model"),
        (["model.dtype=int8"], "model.dtype=int8"),
        (["task.chat=true"], "chat template"),
    ],
)
@REAL
@pytest.mark.usefixtures("cool_tiny")
def test_bad_input_is_one_message_and_exit_code_2(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    overrides: list[str],
    message: str,
) -> None:
    """The message says which key to change."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    write_sweep(tmp_path, *overrides)
    assert prepare_sweep(tmp_path) == 2
    assert message in capsys.readouterr().err


@REAL
@pytest.mark.usefixtures("cool_tiny")
def test_the_tiny_model_says_that_it_reads_sums_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its tokenizer has sixteen tokens."""
    rows = [{"prompt": f"What is {n}?", "answer": str(n)} for n in range(20)]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_sweep(tmp_path, "task.kind=jsonl", f"task.path={tmp_path}/mine.jsonl")
    assert prepare_sweep(tmp_path) == 2
    assert "Set model=tiny_text" in capsys.readouterr().err


@pytest.mark.slow
def test_one_preparation_waits_for_the_other(tmp_path: Path) -> None:
    """Two sweeps may start at once."""
    write_sweep(tmp_path, "trainer.kind=fake")
    thread = threading.Thread(target=prepare_sweep, args=[tmp_path])
    with FileLock(tmp_path / "prepare" / "lock"):
        thread.start()
        thread.join(0.3)
        assert not (tmp_path / "prepared.json").exists()
    thread.join(20)
    assert (tmp_path / "prepared.json").exists()


def test_a_folder_that_does_not_exist_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback for a mistyped path."""
    assert prepare_sweep(tmp_path / "nowhere") == 2
    assert "cannot be written" in capsys.readouterr().err
