"""Tasks: prompts and their answers, one file each. A new task also takes a line in ``grposweep.registries.TASKS``.

A task is a function from the configuration to training and held-out rows: dictionaries with ``prompt``, ``answer`` and
all else that a reward reads. What tasks share happens here: limits, chat turns and prompt_id. An option in ``conf/task``
gives a task its name on the command line. Readers of files are here too, with errors that name the file and the line.
"""

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grporecipe.errors import UserError
from grporecipe.files import parse_json
from grporecipe.terminal import count as count_text
from grposweep.config.validate import refuse_mistakes
from grposweep.registries import TASKS
from grposweep.schema import Task
from grposweep.storage.screens import kept_prompts

if TYPE_CHECKING:
    from datasets import Dataset

Row = dict[str, Any]

SUFFIXES = (".jsonl", ".json", ".parquet")
MOST_NAMED = 5  # wrong rows of a file
ONE_TYPE = "Write all values of a column as numbers, or all as text."


@dataclass(frozen=True)
class Data:
    """Training and held-out prompts; columns prompt, answer, prompt_id and the task's own."""

    train: "Dataset"
    held_out: "Dataset"

    def counts(self) -> dict[str, int]:
        """Return the number of prompts, as a setting needs it."""
        return {"train_prompts": len(self.train), "eval_prompts": len(self.held_out)}

    def distinct(self) -> int:
        """Return how many different prompts there are to train on."""
        return len({prompt_key({"prompt": prompt}) for prompt in self.train["prompt"]})


def load_data(task: Task, sweep: Path | None = None) -> Data:
    """Return the task's data, the same on every machine and for every seed of an experiment.

    ``sweep`` is the folder with the pass rates by which ``task.keep_between`` chooses training prompts.
    """
    train, held_out = split_rows(task)
    data = Data(_build(task, train), _build(task, held_out))
    if task.keep_between is None:
        return data
    kept = kept_prompts(sweep or Path(), task.screen, task.keep_between, hash_rows(data.train))
    return Data(data.train.select(kept), data.held_out)


def split_rows(task: Task) -> tuple[list[Row], list[Row]]:
    """Return training and held-out rows. Raises UserError for what cannot be trained on."""
    if task.kind not in TASKS:
        raise UserError(f"task.kind={task.kind}: there is no such task. Set task to one of: {', '.join(TASKS)}.")
    if task.system_prompt and not task.chat:
        raise UserError(
            "task.system_prompt is set, but task.chat=false: a plain prompt has no system turn to put it in. "
            "Set task.chat=true, or task.system_prompt=null."
        )
    train, held_out = TASKS[task.kind](task)
    known = {prompt_key(row) for row in train}
    if repeated := sum(prompt_key(row) in known for row in held_out):
        raise UserError(
            f"task.eval_split={task.eval_split}: {repeated} of {len(held_out)} held-out prompts are training prompts too, so "
            "training would learn them. Remove them from one of the files, or set task.eval_split=null to split one file by "
            "prompt."
        )
    train = train if task.train_prompts is None else train[: task.train_prompts]
    if not train:
        raise UserError(
            f"task.kind={task.kind} leaves no training prompts (task.train_prompts={task.train_prompts}, "
            f"task.eval_prompts={task.eval_prompts}). Give it more rows, or set a smaller task.eval_prompts."
        )
    return train, held_out


def hash_rows(rows: "Dataset") -> str:
    """Return a hash of all rows in order."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(repr(sorted(row.items())).encode())
    return digest.hexdigest()[:16]


def _build(task: Task, rows: list[Row]) -> "Dataset":
    from datasets import Dataset  # half a second that a look at the rows does not need

    built = [{**row, **_prompt(task, row), "prompt_id": number} for number, row in enumerate(rows)]
    try:
        return Dataset.from_list(built)
    except (ValueError, TypeError) as error:  # arrow's own errors are these
        raise UserError(
            f"task.path={task.path}: a column needs one type. Mixed are: {mixed_columns(rows) or error}. {ONE_TYPE}"
        ) from error


def _prompt(task: Task, row: Row) -> dict[str, Any]:
    """Return the prompt as TRL takes it: text, or the turns of a conversation."""
    if not task.chat or not isinstance(row["prompt"], str):
        return {"prompt": row["prompt"]}
    system = [{"role": "system", "content": task.system_prompt}] if task.system_prompt else []
    return {"prompt": [*system, {"role": "user", "content": row["prompt"]}]}


def load_rows(path: Path, key: str = "task.path") -> list[Row]:
    """Return the rows of a JSON-lines or parquet file; ``key`` is the key that the user edits."""
    if not path.is_file():
        raise UserError(
            f"{key}={path}: there is no such file (seen from {Path.cwd()}). Set {key} to a file of prompts."
        )
    if path.suffix == ".parquet":
        return _load_parquet(path, key)
    return _load_json_lines(path, key)


def _load_json_lines(path: Path, key: str) -> list[Row]:
    rows, wrong = [], dict[int, str]()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        place = path.read_bytes()[: error.start].count(b"\n") + 1
        raise UserError(
            f"{key}={path}: line {place} is not UTF-8 (byte {error.start}). Convert the file: "
            f"iconv -f LATIN1 -t UTF-8 {path} > utf8.jsonl."
        ) from error
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            wrong[number] = f"is not JSON ({error})"
            continue
        if isinstance(row, dict):
            rows.append(row)
        else:
            wrong[number] = "is not a JSON object"
    if wrong:
        mistakes = [f"line {number} {why}" for number, why in list(wrong.items())[:MOST_NAMED]]
        mistakes += [f"and {len(wrong) - MOST_NAMED} more lines"] if len(wrong) > MOST_NAMED else []
        raise UserError(f"{key}={path}: {'; '.join(mistakes)}. Write one JSON object per line.")
    return rows


def _numbered(what: str, numbers: Sequence[int]) -> str:
    """Return the first of these lines or rows by number, and how many more there are."""
    shown, more = ", ".join(map(str, numbers[:MOST_NAMED])), len(numbers) - MOST_NAMED
    return f"{what}{'s' * (len(numbers) > 1)} {shown}" + (f" and {more} more" if more > 0 else "")


def _load_parquet(path: Path, key: str) -> list[Row]:
    import pyarrow.parquet  # type: ignore[import-untyped]  # no stubs; at its only use: JSON lines need no arrow

    try:
        return list(pyarrow.parquet.read_table(path).to_pylist())
    except (OSError, ValueError) as error:  # arrow's own errors are ValueErrors
        raise UserError(
            f"{key}={path}: not a readable parquet file ({error}). Set {key} to a file of prompts."
        ) from error


def take_column(rows: list[Row], column: str, source: str, key: str) -> list[Any]:
    """Return one column of all rows. Raises UserError if a row lacks it."""
    refuse_mistakes(_lacking(rows, column, source, key))
    return [row[column] for row in rows]


def _lacking(rows: list[Row], column: str, source: str, key: str) -> Iterator[str]:
    """Name the rows that lack a column."""
    if numbers := [number for number, row in enumerate(rows, start=1) if row.get(column) is None]:
        known = ", ".join(sorted(map(str, rows[numbers[0] - 1])))
        if len(numbers) == 1:
            what = f"{_numbered('row', numbers)} of {source} has no {column}: its columns are"
        elif len(numbers) == len(rows):
            what = f"{source} has no {column}: its columns are"
        else:
            what = f"{_numbered('row', numbers)} of {source} have no {column}: the columns of row {numbers[0]} are"
        yield f"{key}={column}, but {what} {known}. Set {key} to one that every row has."


def as_prompts(rows: list[Row], prompt_column: str, answer_column: str, source: str) -> list[Row]:
    """Return the rows with prompt and answer columns renamed, and all other columns kept for rewards.

    Raises UserError with all that is wrong with the rows.
    """
    refuse_mistakes(_wrong_rows(rows, prompt_column, answer_column, source))
    return [{**row, "prompt": row[prompt_column], "answer": str(row[answer_column])} for row in rows]


def _wrong_rows(rows: list[Row], prompt_column: str, answer_column: str, source: str) -> Iterator[str]:
    """Name rows without a prompt or an answer, and columns of several types."""
    yield from _lacking(rows, prompt_column, source, "task.prompt_column")
    yield from _lacking(rows, answer_column, source, "task.answer_column")
    numbered = list(enumerate(rows, start=1))
    prompts = [(number, row[prompt_column]) for number, row in numbered if row.get(prompt_column) is not None]
    if blank := [number for number, prompt in prompts if isinstance(prompt, str) and not prompt.strip()]:
        yield (
            f"task.prompt_column={prompt_column}: {len(blank)} of {len(rows)} rows of {source} have an empty prompt, first row "
            f"{blank[0]}. Remove {_numbered('row', blank)}."
        )
    answers = [(number, row[answer_column]) for number, row in numbered if row.get(answer_column) is not None]
    # NaN is what pandas writes for a missing value, and the only value that differs from itself.
    if empty := [number for number, answer in answers if answer != answer or not str(answer).strip()]:
        yield (
            f"task.answer_column={answer_column}: {len(empty)} of {len(rows)} rows of {source} have NaN or nothing there, "
            f"first row {empty[0]}. No completion could match. Remove {_numbered('row', empty)}, or fill in their answers."
        )
    mixed = mixed_columns({name: value for name, value in row.items() if name != answer_column} for row in rows)
    if mixed:
        yield f"{source}: a column needs one type. Mixed are: {mixed}. {ONE_TYPE}"


def mixed_columns(rows: Iterable[Row]) -> str:
    """Return the columns with text and something else, and their types; numbers of two kinds are one type."""
    kinds: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            kinds.setdefault(name, set()).update([type(value).__name__] if value is not None else [])
    return ", ".join(
        f"{name} ({', '.join(sorted(found))})"
        for name, found in kinds.items()
        if len(found) > 1 and found != {"int", "float"}
    )


def shuffled(rows: list[Row]) -> list[Row]:
    """Return the rows in a fixed order, because held-out prompts must not depend on an experiment's seed."""
    rows = list(rows)
    random.Random(20).shuffle(rows)
    return rows


def hold_out(rows: list[Row], wanted: int, source: str) -> tuple[list[Row], list[Row]]:
    """Return training rows, and one row of each of the last prompts of a shuffle, held out: at most half of the prompts."""
    last = {prompt_key(row): row for row in shuffled(rows)[::-1]}
    repeated = f", {len(last)} of them with different prompts" if len(last) < len(rows) else ""
    if len(last) < 2:
        raise UserError(
            f"{source} has {count_text(len(rows), 'row')}{repeated}: with one prompt held out, nothing would be left to "
            "train on. Add prompts, or set task.eval_split to a second file."
        )
    held_out = dict(list(last.items())[: min(wanted, len(last) // 2)])
    return [row for row in shuffled(rows) if prompt_key(row) not in held_out], list(held_out.values())[::-1]


def prompt_key(row: Row) -> str:
    """Return what tells a row's prompt from others: its text or turns without white space around them."""
    prompt = row["prompt"]
    if isinstance(prompt, list):
        return repr([{n: v.strip() if isinstance(v, str) else v for n, v in turn.items()} for turn in prompt])
    return str(prompt).strip()
