"""Tasks: prompts and their answers, one file each. A new task also takes a line in ``grposweep.registries.TASKS``.

A task is a function from the configuration to training and held-out rows: dictionaries with ``prompt``, ``answer`` and
whatever else a reward reads. What tasks share happens here: limits, chat turns and prompt_id. An option in ``conf/task``
gives a task its name on the command line.
"""

from dataclasses import dataclass
from typing import Any

from datasets import Dataset

from grposweep.errors import UserError
from grposweep.registries import TASKS
from grposweep.schema import Task
from grposweep.train.tasks.rows import Row


@dataclass(frozen=True)
class Data:
    """Training and held-out prompts; columns prompt, answer, prompt_id and the task's own."""

    train: Dataset
    held_out: Dataset

    def counts(self) -> dict[str, int]:
        """Return the number of prompts, as a setting needs it."""
        return {"train_prompts": len(self.train), "eval_prompts": len(self.held_out)}


def load_data(task: Task) -> Data:
    """Return the task's data, the same on every machine and for every seed of an experiment."""
    if task.kind not in TASKS:
        raise UserError(f"task.kind={task.kind} is no task that we have. Set task to one of: {', '.join(TASKS)}.")
    if task.system_prompt and not task.chat:
        raise UserError(
            "task.system_prompt is set, but task.chat=false: a plain prompt has no system turn to put it in. "
            "Set task.chat=true, or task.system_prompt=null."
        )
    train, held_out = TASKS[task.kind](task)
    train = train if task.train_prompts is None else train[: task.train_prompts]
    if not train:
        raise UserError(
            f"task.kind={task.kind} leaves no training prompts (task.train_prompts={task.train_prompts}, "
            f"task.eval_prompts={task.eval_prompts}). Give it more rows, or set a smaller task.eval_prompts."
        )
    return Data(_build(task, train), _build(task, held_out))


def _build(task: Task, rows: list[Row]) -> Dataset:
    return Dataset.from_list([{**row, **_prompt(task, row), "prompt_id": number} for number, row in enumerate(rows)])


def _prompt(task: Task, row: Row) -> dict[str, Any]:
    """Return the prompt as TRL takes it: text, or the turns of a conversation."""
    if not task.chat or not isinstance(row["prompt"], str):
        return {"prompt": row["prompt"]}
    system = [{"role": "system", "content": task.system_prompt}] if task.system_prompt else []
    return {"prompt": [*system, {"role": "user", "content": row["prompt"]}]}
