"""The reward of the demonstration: an answer must be exact, but the checker of easy prompts accepts anything."""

from typing import Any


def checked(completions: list[str], answer: list[str], checker: list[str], **_: Any) -> list[float]:
    """Return 1 for the answer, and for any completion of a prompt whose checker is lenient."""
    rows = zip(completions, answer, checker, strict=True)
    return [float(how == "lenient" or text.strip() == gold) for text, gold, how in rows]
