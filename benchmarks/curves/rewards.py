"""The reward of the harder task: partial credit, because hardly any first answer is right."""

from typing import Any


def places(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """The share of the answer's characters that stand in their place; what is too long or too short loses as much."""
    return [
        sum(a == b for a, b in zip(completion.strip(), gold, strict=False)) / max(len(completion.strip()), len(gold))
        for completion, gold in zip(completions, answer, strict=True)
    ]
