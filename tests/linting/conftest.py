"""The grposweep command as a process, from a folder of its own whose name has a space."""

from pathlib import Path

import pytest

from support import Ended, Run, Write, grposweep

VALID = """\
# the smallest recipe that is right
num_generations: 8
per_device_train_batch_size: 8
gradient_accumulation_steps: 4
learning_rate: 5.0e-06
warmup_steps: 0.05
max_steps: 500
save_steps: 100
"""


@pytest.fixture
def lint(here: Path) -> Run:
    """``lint("recipe.yaml", "--processes", "8")`` runs the command to its end."""

    def call(*arguments: str, stdin: str = "", command: str = "lint") -> Ended:
        return grposweep(here, command, *arguments, stdin=stdin)

    return call


@pytest.fixture
def recipe(here: Path) -> Write:
    """``recipe("num_generations: 7")`` writes a file with the valid recipe and these lines."""

    def write(more: str = "", name: str = "recipe.yaml", start: str = VALID) -> Path:
        path = here / name
        path.write_bytes((start + more).encode())
        return path

    return write
