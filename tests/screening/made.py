"""Screens made by hand, without a model."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from grposweep.screening.summary import Screen
from grposweep.storage.screens import PromptSamples, ScreenedData, ScreenRequest

Row = Sequence[float | None]


def make_prompt(number: int, *rewards: Row, truncated: bool = False, mentions: bool = False) -> PromptSamples:
    """A prompt with these rewards, a row a function."""
    count = len(rewards[0])
    return PromptSamples(
        number, f"{number}+1=", str(number + 1), tuple(map(tuple, rewards)), (3,) * count, (truncated,) * count,
        (mentions,) * count, f"{number + 1}=" if mentions else "?",
    )  # fmt: skip


def make_screen(
    folder: Path, prompts: Sequence[PromptSamples], weights: Sequence[float] = (1.0,), **data: int
) -> Screen:
    """Write a finished screen to a folder, and read it."""
    folder.mkdir(parents=True, exist_ok=True)
    samples = len(prompts[0].lengths)
    ScreenRequest(samples).write(folder)
    names = tuple("abc"[: len(weights)])
    train = data.pop("train_prompts", len(prompts))
    ScreenedData(train, {"train": "t", "model": "m"}, names, tuple(weights), **data).write(folder)
    for prompt in prompts:
        prompt.append(folder)
    screen = Screen.read(folder)
    assert screen is not None
    return screen


def mixed(count: int = 240, samples: int = 16) -> list[PromptSamples]:
    """A third of prompts that never pass, a third that always do, a third that pass half the time."""
    random = np.random.default_rng(5)
    passes = np.repeat([0.0, 1.0, 0.5], count // 3)
    drawn = (random.random((count, samples)) < passes[:, None]).astype(float)
    return [make_prompt(number, row.tolist()) for number, row in enumerate(drawn)]
