"""The reward of two-digit addition, as ms-swift finds rewards: a class, registered by name in an
external plugin.
"""

from typing import Any

from swift.rewards import ORM, orms


class Exact(ORM):  # type: ignore[misc]  # ms-swift is not installed where types are checked
    """1 where the completion, stripped, is the answer."""

    def __call__(self, completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [
            float(completion.strip() == gold.strip())
            for completion, gold in zip(completions, answer, strict=True)
        ]


orms["exact"] = Exact
