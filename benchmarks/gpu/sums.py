"""The task of run.py: sums as conversations, and the reward for the right last number."""

import json
import random
import re
from pathlib import Path
from typing import Any


def write_prompts(path: Path) -> None:
    """Write 1,200 prompts, in the same order each time."""
    pairs = [(a, b) for a in range(2, 40) for b in range(2, 40)]
    random.Random(7).shuffle(pairs)
    rows = (
        {
            "prompt": [
                {"role": "user", "content": f"What is {a} + {b}? Reply with the number only."}
            ],
            "answer": str(a + b),
        }
        for a, b in pairs[:1200]
    )
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def last_number(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """Return 1 for each completion whose last number is the answer."""
    texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    numbers = [re.findall(r"\d+", text) for text in texts]
    return [
        float(bool(found) and found[-1] == wanted)
        for found, wanted in zip(numbers, answer, strict=True)
    ]
