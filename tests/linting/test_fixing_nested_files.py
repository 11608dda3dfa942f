"""Fixes written into EasyR1's and verl's nested files: nothing but the keys that change is
touched.
"""

from pathlib import Path

import pytest
import yaml

from grporecipe.files import Json
from grporecipe.linting.apply_fixes import edit
from support import Run

TEXT = """\
# EasyR1
data:
  rollout_batch_size: 128  # prompts

worker:
  actor:
    global_batch_size: 64
    # the learner
    optim: {lr: 1.0e-6, weight_decay: 0.01}
  rollout:
    n: 8
"""


@pytest.mark.parametrize(
    ("change", "old", "new"),
    [
        ({"worker.rollout.n": 4}, "    n: 8\n", "    n: 4\n"),
        ({"data.rollout_batch_size": 64}, "128  # prompts", "64  # prompts"),
        ({"worker.actor.optim.lr": 5e-6}, "lr: 1.0e-6", "lr: 5.0e-06"),
        (
            {"worker.actor.ppo_epochs": 2},
            "weight_decay: 0.01}\n",
            "weight_decay: 0.01}\n    ppo_epochs: 2\n",
        ),
        (
            {"worker.rollout.val_override_config.n": 1},
            "    n: 8\n",
            "    n: 8\n    val_override_config:\n      n: 1\n",
        ),
        (
            {"algorithm.disable_kl": True},
            "    n: 8\n",
            "    n: 8\nalgorithm:\n  disable_kl: true\n",
        ),
    ],
)
def test_a_dotted_key_is_set_in_place(change: Json, old: str, new: str) -> None:
    """A missing one is added at the end of the deepest existing section."""
    assert edit(TEXT, change, nested=True) == TEXT.replace(old, new)


@pytest.mark.parametrize(
    "change",
    [
        {"worker.rollout.n": None},
        {"worker.actor.optim.lr": None},
        {"data.rollout_batch_size.x": 1},
        {"worker.actor.optim.x": 1},
    ],
)
def test_an_edit_that_would_touch_more_is_not_made(change: Json) -> None:
    """The only key of a section, and keys that share a line."""
    assert edit(TEXT, change, nested=True) is None


def test_a_file_is_fixed_and_its_comments_stay(lint: Run, here: Path) -> None:
    """An overwritten key goes with --fix; what changes the objective only with --unsafe-fixes."""
    path = here / "easy.yaml"
    path.write_text(
        TEXT.replace("    global_batch_size: 64\n", "    global_batch_size: 60\n    kl_coef: 0.1\n")
    )
    ended = lint("easy.yaml", "--fix", "--select", "GV,GB")
    assert ended.code == 1
    assert "kl_coef" not in path.read_text()
    assert lint("easy.yaml", "--fix", "--unsafe-fixes", "--select", "GV,GB").code == 0
    assert yaml.safe_load(path.read_text())["worker"]["actor"]["global_batch_size"] == 64
    assert "# the learner" in path.read_text()
