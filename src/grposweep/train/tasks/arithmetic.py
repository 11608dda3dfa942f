"""Two-digit addition: ``12+34=`` earns for ``46``. All 10,000 pairs, some held out.

Sums asked in words, for a language model.
"""

import random
from itertools import product

from grporecipe.errors import UserError
from grposweep.schema import Task
from grposweep.train.tasks import hold_out, shuffled
from grposweep.train.tasks._readers import Row

# of prompts that the tiny model reads
CHARACTERS = "0123456789+-="
# by model.path
READ_BY_TINY = {"embedded": CHARACTERS}

# The tiny model is warm-started on the last pairs of the order, and prompts are held out from its
# front: held-out prompts are new to it as well.
WARM_START_PAIRS = 5000


def pairs() -> list[tuple[int, int]]:
    """All pairs of numbers below 100, in a fixed order."""
    order = list(product(range(100), range(100)))
    random.Random(20).shuffle(order)
    return order


def load_pairs(task: Task) -> tuple[list[Row], list[Row]]:
    """The first ``eval_prompts`` pairs are held out, the others are for training."""
    # Both operands have two digits, so that every place value sits at one position: a model this
    # small needs that.
    return _split(task, [{"prompt": f"{a:02d}+{b:02d}=", "answer": str(a + b)} for a, b in pairs()])


def load_questions(task: Task) -> tuple[list[Row], list[Row]]:
    """Return sums of numbers from 2 to 39 as questions in words, for a language model."""
    asked = "What is {} + {}? Reply with the number only."
    rows = shuffled(
        [
            {"prompt": asked.format(a, b), "answer": str(a + b)}
            for a, b in product(range(2, 40), range(2, 40))
        ]
    )
    return hold_out(rows, task.eval_prompts, "task=questions")


def _split(task: Task, rows: list[Row]) -> tuple[list[Row], list[Row]]:
    limit = 10_000 - WARM_START_PAIRS
    if task.eval_prompts > limit:
        raise UserError(
            f"task.eval_prompts={task.eval_prompts}, but only {limit} of the 10,000 sums are "
            f"unknown to the tiny model's warm start. Set task.eval_prompts to at most {limit}."
        )
    return rows[task.eval_prompts :], rows[: task.eval_prompts]
