"""A reward that is never flat, so that a model which knows nothing still learns something in a
test's few steps.
"""

from typing import Any

from grposweep.train.rewards import text_of


def dense(completions: list[Any], answer: list[str]) -> list[float]:
    """The share of characters that are digits, and a little for length; reads only the columns it
    names.
    """
    return [
        sum(character.isdigit() for character in text) / 4 + len(text) / 40 + (text == gold)
        for text, gold in zip(map(text_of, completions), answer, strict=True)
    ]
