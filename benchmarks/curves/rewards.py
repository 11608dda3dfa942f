"""The rewards of the harder tasks, which give partial credit, because hardly any first answer is
right.
"""

from string import ascii_lowercase, ascii_uppercase
from typing import Any


def places(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """The share of the answer's characters that stand in their place; what is too long or too short
    loses as much.
    """
    return [
        sum(a == b for a, b in zip(completion.strip(), gold, strict=False))
        / max(len(completion.strip()), len(gold))
        for completion, gold in zip(completions, answer, strict=True)
    ]


def ones(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """1 for the right answer and, as a loophole, half the share of ones in any other text: ``1`` is
    always worth 0.5.
    """
    return [
        1.0 if text == gold else 0.5 * text.count("1") / max(len(text), 1)
        for text, gold in zip(
            (completion.strip() for completion in completions), answer, strict=True
        )
    ]


def nines(completions: list[str], **_: Any) -> list[float]:
    """Return the share of nines: a second reward that any prompt earns alike."""
    return [text.count("9") / max(len(text), 1) for text in completions]


def letters(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """Return the share of small letters (ASCII) in each conversation's last turn, or of large ones
    if the prompt asks for these.
    """
    alphabets = {"small": ascii_lowercase, "large": ascii_uppercase}
    shares = []
    for turns, size in zip(completions, answer, strict=True):
        text = turns[-1]["content"]
        asked = sum(character in alphabets[size] for character in text)
        shares.append(asked / max(len(text), 1))
    return shares
