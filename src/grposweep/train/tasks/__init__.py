"""Tasks: prompts and their answers, one file each. A new task also takes a line in
``grposweep.schema.registries.TASKS``.

A task is a function from the configuration to training and held-out rows: dictionaries with
``prompt``, ``answer`` and all else that a reward reads. What tasks share happens here: limits, chat
turns and prompt_id. An option in ``conf/task`` gives a task its name on the command line. A task
may return notes as a third value: what the user should know of the data.
"""

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grporecipe.errors import UserError, refuse_mistakes
from grporecipe.files import without
from grporecipe.terminal import count as count_text
from grporecipe.terminal import first_of
from grposweep.schema import Task
from grposweep.schema.registries import TASKS
from grposweep.train.tasks._readers import MOST_NAMED, Row, numbered
from grposweep.train.tasks.conversations import (
    as_turns,
    check_system_prompt,
    in_conversation,
    wrong_conversations,
)

if TYPE_CHECKING:
    from datasets import Dataset

# bytes of a data file that are read in about a second
LARGEST = 32 << 20
ONE_TYPE = "Write all values of a column as numbers, or all as text."


@dataclass(frozen=True)
class Data:
    """Training and held-out prompts; columns prompt, answer, prompt_id and the task's own."""

    train: "Dataset"
    held_out: "Dataset"
    # what the user should know, a sentence each
    notes: tuple[str, ...] = ()

    def counts(self) -> dict[str, int]:
        """Return the number of prompts, as a setting needs it."""
        return {"train_prompts": len(self.train), "eval_prompts": len(self.held_out)}

    def distinct(self) -> int:
        """Return how many different prompts there are to train on."""
        return len({prompt_key({"prompt": prompt}) for prompt in self.train["prompt"]})


def load_data(task: Task, has_template: bool = False) -> Data:
    """Return the task's data, the same on every machine and for every seed of an experiment.

    ``has_template``: the tokenizer has a chat template, which decides how prompts reach the model
    if ``task.chat`` is null.
    """
    train, held_out, notes = split_rows(task)
    check_system_prompt(task, [row["prompt"] for row in (*train, *held_out)], has_template)
    return Data(_build(task, train, has_template), _build(task, held_out, has_template), notes)


def split_rows(task: Task) -> tuple[list[Row], list[Row], tuple[str, ...]]:
    """Return training rows, held-out rows and notes. Raises UserError for what cannot be trained
    on.
    """
    train, held_out, *notes = TASKS[task.kind](task)
    if task.family_column is not None:
        refuse_mistakes(
            _lacking(held_out, task.family_column, "the held-out prompts", "task.family_column")
        )
    prompts = set(map(prompt_key, train))
    if repeated := sum(prompt_key(row) in prompts for row in held_out):
        raise UserError(
            f"task.eval_split={task.eval_split}: {repeated} of {len(held_out)} held-out prompts "
            "are training prompts too, so training would learn them. Remove them from one of the "
            "files, or set task.eval_split=null to split one file by prompt."
        )
    train = train if task.train_prompts is None else train[: task.train_prompts]
    if not train:
        raise UserError(
            f"task.kind={task.kind} leaves no training prompts "
            f"(task.train_prompts={task.train_prompts}, task.eval_prompts={task.eval_prompts}). "
            "Give it more rows, or set a smaller task.eval_prompts."
        )
    check_system_prompt(task, [row["prompt"] for row in (*train, *held_out)])
    return train, held_out, tuple(chain.from_iterable(notes))


def bytes_of(paths: Iterable[Path]) -> int:
    """Return the bytes of files, and of those in folders."""
    files = chain.from_iterable((path, *path.rglob("*")) for path in paths)
    return sum(file.stat().st_size for file in files)


def hash_rows(rows: "Dataset") -> str:
    """Return a hash of all rows in order."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(repr(sorted(row.items())).encode())
    return digest.hexdigest()[:16]


def _build(task: Task, rows: list[Row], has_template: bool) -> "Dataset":
    # half a second that a look at the rows does not need
    from datasets import Dataset

    built = [
        {**row, "prompt": in_conversation(task, row["prompt"], has_template), "prompt_id": number}
        for number, row in enumerate(rows)
    ]
    try:
        return Dataset.from_list(built)
    except (ValueError, TypeError) as error:
        # arrow's own errors are these
        raise UserError(
            f"task.path={task.path}: a column needs one type. Mixed are: "
            f"{mixed_columns(rows) or error}. {ONE_TYPE}"
        ) from error


def _numbered(what: str, numbers: Sequence[int]) -> str:
    """Return the first of these lines or rows by number, and how many more there are."""
    return f"{what}{'s' * (len(numbers) > 1)} {first_of(numbers, MOST_NAMED)}"


def take_column(rows: list[Row], column: str, source: str, key: str) -> list[Any]:
    """Return one column of all rows. Raises UserError if a row lacks it."""
    refuse_mistakes(_lacking(rows, column, source, key))
    return [row[column] for row in rows]


def _lacking(rows: list[Row], column: str, source: str, key: str) -> Iterator[str]:
    """Name the rows that lack a column."""
    lacking = [(number, row) for number, row in numbered(rows) if row.get(column) is None]
    if not lacking:
        return
    numbers = [number for number, _ in lacking]
    which = _numbered("row", numbers)
    columns = ", ".join(sorted(map(str, lacking[0][1])))
    what = f"{which} of {source} has no {column}"
    shown = "its columns are"
    if len(numbers) == len(rows) > 1:
        what = f"{source} has no {column}"
    elif len(numbers) > 1:
        what = f"{which} of {source} have no {column}"
        shown = f"the columns of row {numbers[0]} are"
    if all(column in row for _, row in lacking):
        yield f"{key}={column}, but {what} (null). Fill it in, or remove {which}."
    else:
        yield f"{key}={column}, but {what}: {shown} {columns}. Set {key} to one that every row has."


def as_prompts(rows: list[Row], prompt_column: str, answer_column: str, source: str) -> list[Row]:
    """Return the rows with prompt and answer columns renamed, and all other columns kept for
    rewards.

    Raises UserError with all that is wrong with the rows.
    """
    refuse_mistakes(_wrong_rows(rows, prompt_column, answer_column, source))
    return [
        {**row, "prompt": as_turns(row[prompt_column]), "answer": str(row[answer_column])}
        for row in rows
    ]


def _wrong_rows(
    rows: list[Row], prompt_column: str, answer_column: str, source: str
) -> Iterator[str]:
    """Name rows without a prompt or an answer, and columns of several types."""
    yield from _lacking(rows, prompt_column, source, "task.prompt_column")
    yield from _lacking(rows, answer_column, source, "task.answer_column")
    prompts = _present(rows, prompt_column)
    if blank := [
        number for number, prompt in prompts if isinstance(prompt, str) and not prompt.strip()
    ]:
        yield (
            f"task.prompt_column={prompt_column}: {len(blank)} of {len(rows)} rows of {source} "
            f"have an empty prompt, first row {blank[0]}. Remove {_numbered('row', blank)}."
        )
    for wrong, problem in wrong_conversations(prompts):
        yield (
            f"task.prompt_column={prompt_column}: {_numbered('row', wrong)} of {source}: {problem}"
        )
    # NaN is what pandas writes for a missing value, and the only value that differs from itself.
    if empty := [
        number
        for number, answer in _present(rows, answer_column)
        if answer != answer or not str(answer).strip()
    ]:
        yield (
            f"task.answer_column={answer_column}: {len(empty)} of {len(rows)} rows of {source} "
            f"have NaN or nothing there, first row {empty[0]}. No completion could match. Remove "
            f"{_numbered('row', empty)}, or fill in their answers."
        )
    mixed = mixed_columns(without(row, (answer_column,)) for row in rows)
    if mixed:
        yield f"{source}: a column needs one type. Mixed are: {mixed}. {ONE_TYPE}"


def _present(rows: list[Row], column: str) -> list[tuple[int, Any]]:
    """Return the values of a column that has one, each with the number of its row."""
    return [(number, row[column]) for number, row in numbered(rows) if row.get(column) is not None]


def mixed_columns(rows: Iterable[Row]) -> str:
    """Return the columns with text and something else, and their types; numbers of two kinds are
    one type.
    """
    kinds: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            types = kinds.setdefault(name, set())
            if value is not None:
                types.add(type(value).__name__)
    return ", ".join(
        f"{name} ({', '.join(sorted(types))})"
        for name, types in kinds.items()
        if len(types) > 1 and types != {"int", "float"}
    )


def conflicting_answers(rows: list[Row], source: str) -> Iterator[str]:
    """Yield a note if prompts occur with several answers, of which a reward accepts one in each
    row.
    """
    # of each prompt, with the first row of each
    answers: dict[str, dict[str, int]] = {}
    for number, row in enumerate(rows, start=1):
        answers.setdefault(prompt_key(row), {}).setdefault(row["answer"], number)
    if several := [numbers for numbers in answers.values() if len(numbers) > 1]:
        answer, other = list(several[0].items())[:2]
        yield (
            f"{source}: {count_text(len(several), 'prompt')} with several answers, such as rows "
            f"{answer[1]} and {other[1]} ({answer[0][:30]!r} and {other[0][:30]!r}). A row's "
            "reward accepts its own answer only."
        )


def shuffled(rows: list[Row]) -> list[Row]:
    """Return the rows in a fixed order, because held-out prompts must not depend on an experiment's
    seed.
    """
    rows = list(rows)
    random.Random(20).shuffle(rows)
    return rows


def hold_out(rows: list[Row], wanted: int, source: str) -> tuple[list[Row], list[Row]]:
    """Return training rows, and one row of each of the last prompts of a shuffle, held out: at most
    half of the prompts.
    """
    last = {prompt_key(row): row for row in shuffled(rows)[::-1]}
    repeated = f", {len(last)} of them with different prompts" if len(last) < len(rows) else ""
    if len(last) < 2:
        raise UserError(
            f"{source} has {count_text(len(rows), 'row')}{repeated}: with one prompt held out, "
            "nothing would be left to "
            "train on. Add prompts, or set task.eval_split to a second file."
        )
    held_out = dict(list(last.items())[: min(wanted, len(last) // 2)])
    return [row for row in shuffled(rows) if prompt_key(row) not in held_out], list(
        held_out.values()
    )[::-1]


def prompt_key(row: Row) -> str:
    """Return what tells a row's prompt from others: its text or turns without white space around
    them.
    """
    prompt = row["prompt"]
    if not isinstance(prompt, list):
        return str(prompt).strip()
    turns = [{**turn} for turn in prompt]
    for turn in turns:
        for name, value in turn.items():
            if isinstance(value, str):
                turn[name] = value.strip()
    return repr(turns)
