"""Two-digit addition: ``12+34=`` earns for ``46``. All 10,000 pairs, some held out."""

import random

from grporecipe.errors import UserError
from grposweep.schema import Task
from grposweep.train.tasks import Row

CHARACTERS = "0123456789+-="  # of prompts that the tiny model reads

# The tiny model is warm-started on the last pairs of the order, and prompts are held out from its front: held-out
# prompts are new to it as well.
WARM_START_PAIRS = 5000


def pairs() -> list[tuple[int, int]]:
    """All pairs of numbers below 100, in a fixed order."""
    order = [(a, b) for a in range(100) for b in range(100)]
    random.Random(20).shuffle(order)
    return order


def load_pairs(task: Task) -> tuple[list[Row], list[Row]]:
    """The first ``eval_prompts`` pairs are held out, the others are for training."""
    limit = 10_000 - WARM_START_PAIRS
    if task.eval_prompts > limit:
        raise UserError(
            f"task.eval_prompts={task.eval_prompts}, but only {limit} of the 10,000 sums are unknown to the tiny "
            f"model's warm start. Set task.eval_prompts to at most {limit}."
        )
    # Both operands have two digits, so that every place value sits at one position: a model this small needs that.
    rows = [{"prompt": f"{a:02d}+{b:02d}=", "answer": str(a + b)} for a, b in pairs()]
    return rows[task.eval_prompts :], rows[: task.eval_prompts]
