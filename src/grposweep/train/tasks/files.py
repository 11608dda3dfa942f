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
from grposweep.train.tasks._readers import Row, load_rows, load_split

HUB = "openai/gsm8k"


def load_jsonl(task: Task) -> tuple[list[Row], list[Row], list[str]]:
    """Return training rows, held-out rows and notes.

    Held-out rows come from the file ``task.eval_split``, or are the end of a fixed shuffle of the
    one file.
    """
    path = Path(str(task.path))
    files = {"task.path": (path, task.train_split)}
    if task.eval_split is not None:
        other = Path(task.eval_split)
        if path.is_dir() and not other.exists():
            other = path
        files["task.eval_split"] = (other, task.eval_split)
    read = []
    problems = list[str]()
    for key, (path, split) in files.items():
        try:
            rows = load_rows(path, key, split)
            read.append(as_prompts(rows, task.prompt_column, task.answer_column, str(path)))
        except UserError as error:
            problems += error.problems or [str(error)]
    refuse_mistakes(problems)
    notes = list[str]()
    for (path, _), rows in zip(files.values(), read, strict=True):
        notes += conflicting_answers(rows, str(path))
    if task.eval_split is None:
        return *hold_out(read[0], task.eval_prompts, str(task.path)), notes
    return shuffled(read[0]), shuffled(read[1])[: task.eval_prompts], notes


def load_gsm8k(task: Task) -> tuple[list[Row], list[Row]]:
    """Load the training split, and ``eval_prompts`` questions of the test split (or of the training
    split).
    """
    path = task.path or HUB
    if Path(path).exists():
        train, held_out = _local(Path(path), task)
    else:
        train = _hub(path, task, task.train_split)
        held_out = _hub(path, task, task.eval_split or "test")
    if held_out is None:
        return hold_out(_rows(train, path), task.eval_prompts, path)
    asked = shuffled(_rows(held_out, path))[: task.eval_prompts]
    prompts = set(map(prompt_key, asked))
    return [row for row in _rows(train, path) if prompt_key(row) not in prompts], asked


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
    subset = path / (task.subset or "")
    path = subset if subset.is_dir() else path
    held_out = load_split(path, "task.path", task.eval_split or "test")
    return load_rows(path, "task.path", task.train_split), held_out or None


def _hub(path: str, task: Task, split: str) -> list[Any]:
    # only here: a local copy needs no hub client
    from datasets import load_dataset

    try:
        return list(load_dataset(path, task.subset, split=split))
    except Exception as error:
        # network errors are those of the client's HTTP library; ValueError: no such subset or split
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        reason = (
            f"not found here, and not to be had from the hub ({cause}). Set task.path to a local "
            "folder with its parquet files, or HF_HOME to a cache that holds it, or allow network "
            "access (trials do with HF_HUB_OFFLINE=0)."
        )
        if WENT_OFFLINE in os.environ:
            reason = (
                f"the hub cache of {socket.gethostname()} has the model and not this dataset "
                f"({cause}). A trial whose model is there stays off the network. Set HF_HOME to a "
                "cache that holds both, task.path to a local folder, or HF_HUB_OFFLINE=0."
            )
        named = f"task.path={path} (subset {task.subset}, split {split})"
        raise UserError(f"{named}: {reason}") from error
