"""Tasks whose prompts come from files or the hub: the user's own (``jsonl``), and openai/gsm8k.

gsm8k is grade-school mathematics: a question in words, and the number after ``####`` is the answer.
"""

import os
import socket
from pathlib import Path
from typing import Any

from grporecipe.errors import UserError, refuse_mistakes
from grposweep.schema import Task
from grposweep.train.hub import WENT_OFFLINE
from grposweep.train.tasks import (
    as_prompts,
    conflicting_answers,
    hold_out,
    prompt_key,
    shuffled,
    take_column,
)
from grposweep.train.tasks._readers import SUFFIXES, Row, load_rows

HUB = "openai/gsm8k"


def load_jsonl(task: Task) -> tuple[list[Row], list[Row], list[str]]:
    """Return training rows, held-out rows and notes.

    Held-out rows come from the file ``task.eval_split``, or are the end of a fixed shuffle of the
    one file.
    """
    if not task.path:
        raise UserError(
            "task.path is not set, and task=jsonl reads its prompts from there. Set "
            "task.path=prompts.jsonl."
        )
    files = {"task.path": task.path} | (
        {} if task.eval_split is None else {"task.eval_split": task.eval_split}
    )
    read, problems = [], list[str]()
    for key, path in files.items():
        try:
            rows = load_rows(Path(path), key)
            read.append(as_prompts(rows, task.prompt_column, task.answer_column, str(path)))
        except UserError as error:
            problems += error.problems or [str(error)]
    refuse_mistakes(problems)
    notes = [
        note
        for path, rows in zip(files.values(), read, strict=True)
        for note in conflicting_answers(rows, path)
    ]
    if task.eval_split is None:
        return *hold_out(read[0], task.eval_prompts, task.path), notes
    return shuffled(read[0]), shuffled(read[1])[: task.eval_prompts], notes


def load_gsm8k(task: Task) -> tuple[list[Row], list[Row]]:
    """Load the training split, and ``eval_prompts`` questions of the test split (or of the training
    split).
    """
    path = task.path or HUB
    if Path(path).exists():
        train, held_out = _local(Path(path), task)
    else:
        train, held_out = (
            _hub(path, task, task.train_split),
            _hub(path, task, task.eval_split or "test"),
        )
    if held_out is None:
        return hold_out(_rows(train, path), task.eval_prompts, path)
    asked = shuffled(_rows(held_out, path))[: task.eval_prompts]
    known = {prompt_key(row) for row in asked}
    return [row for row in _rows(train, path) if prompt_key(row) not in known], asked


def final_answer(text: str) -> str:
    """Return the number after the last ``####``, without thousands separators."""
    return text.rpartition("####")[2].strip().replace(",", "")


def _rows(rows: list[Row], source: str) -> list[Row]:
    questions = take_column(rows, "question", source, "gsm8k's column question")
    answers = take_column(rows, "answer", source, "gsm8k's column answer")
    return [
        {"prompt": question, "answer": final_answer(answer), "solution": answer}
        for question, answer in zip(questions, answers, strict=True)
    ]


def _local(path: Path, task: Task) -> tuple[list[Row], list[Row] | None]:
    """A file of questions, or a folder as the hub lays it out
    (``main/train-00000-of-00001.parquet``).
    """
    if path.is_file():
        return load_rows(path), None
    if task.subset and (path / task.subset).is_dir():
        path = path / task.subset
    files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    train = [file for file in files if file.name.startswith(task.train_split)]
    held_out = [file for file in files if file.name.startswith(task.eval_split or "test")]
    if not train:
        raise UserError(
            f"task.path={task.path}: no file in {path} is called {task.train_split}*.parquet or "
            f"{task.train_split}*.jsonl "
            f"({', '.join(file.name for file in files) or 'it has no data files'}). Set "
            f"task.path to a copy of {HUB}."
        )
    rest = [row for file in held_out for row in load_rows(file)]
    return [row for file in train for row in load_rows(file)], rest or None


def _hub(path: str, task: Task, split: str) -> list[Any]:
    # only here: a local copy needs no hub client
    from datasets import load_dataset

    try:
        return list(load_dataset(path, task.subset, split=split))
    except Exception as error:
        # network errors are those of the client's HTTP library; ValueError: no such subset or split
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        if WENT_OFFLINE in os.environ:
            raise UserError(
                f"task.path={path} (subset {task.subset}, split {split}): the hub cache of "
                f"{socket.gethostname()} has the model and not this dataset ({cause}). A trial "
                "whose model is there stays off the network. Set HF_HOME to a cache that holds "
                "both, task.path to a local folder, or HF_HUB_OFFLINE=0."
            ) from error
        raise UserError(
            f"task.path={path} (subset {task.subset}, split {split}): not found here, and not to "
            f"be had from the hub ({cause}). Set task.path to a local folder with its parquet "
            "files, or HF_HOME to a cache that holds it, or allow network access (trials do with "
            "HF_HUB_OFFLINE=0)."
        ) from error
