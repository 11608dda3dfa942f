"""A person's own prompts: one JSON object a line (or parquet), with a prompt column and an answer column."""

from pathlib import Path

from grposweep.errors import UserError
from grposweep.schema import Task
from grposweep.train.tasks.rows import Row, as_prompts, hold_out, load_rows, shuffled


def load(task: Task) -> tuple[list[Row], list[Row]]:
    """Held-out rows come from the file ``task.eval_split``, or are the end of a fixed shuffle of the one file."""
    if not task.path:
        raise UserError(
            "task.path is not set, and task=jsonl reads its prompts from there. Set task.path=prompts.jsonl."
        )
    rows = _load(task, Path(task.path), "task.path")
    if task.eval_split is None:
        return hold_out(rows, task.eval_prompts, task.path)
    held_out = shuffled(_load(task, Path(task.eval_split), "task.eval_split"))
    if len(held_out) < task.eval_prompts:
        raise UserError(
            f"task.eval_prompts={task.eval_prompts}, but {task.eval_split} has {len(held_out)} rows. "
            f"Set task.eval_prompts={len(held_out)}."
        )
    return shuffled(rows), held_out[: task.eval_prompts]


def _load(task: Task, path: Path, key: str) -> list[Row]:
    return as_prompts(load_rows(path, key), task.prompt_column, task.answer_column, str(path))
