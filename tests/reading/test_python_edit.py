"""The diff of a fix changes arguments of ``GRPOConfig(...)`` where they stand; all else stays byte
for byte.
"""

from pathlib import Path

import pytest

from grporecipe.reading.python.edit import edit_call

HEAD = "from trl import GRPOConfig\nN = 8  # é\n"
CASES = {
    "a value": (
        "c = GRPOConfig(\n  beta = 1, # é\n  seed=2)",
        {"beta": 0.5},
        "c = GRPOConfig(\n  beta = 0.5, # é\n  seed=2)",
    ),
    "its quotes": (
        "c = GRPOConfig(loss_type='grpo', optim=\"a\")",
        {"loss_type": "bnpo", "optim": "b"},
        "c = GRPOConfig(loss_type='bnpo', optim=\"b\")",
    ),
    "a line": (
        "c = GRPOConfig(\n  beta=1,  # why\n  seed=2\n)\n",
        {"beta": None},
        "c = GRPOConfig(\n  seed=2\n)\n",
    ),
    "the last line": (
        "c = GRPOConfig(\n  beta=1,\n  seed=2\n)\n",
        {"seed": None},
        "c = GRPOConfig(\n  beta=1,\n)\n",
    ),
    "within a line": ("c = GRPOConfig(beta=1, seed=2)", {"beta": None}, "c = GRPOConfig(seed=2)"),
    "the end of a line": (
        "c = GRPOConfig(beta=1, seed=2)",
        {"seed": None},
        "c = GRPOConfig(beta=1)",
    ),
    "the only one": ("c = GRPOConfig(seed=2)", {"seed": None}, "c = GRPOConfig()"),
    "a new one": ("c = GRPOConfig(beta=1)", {"seed": 2}, "c = GRPOConfig(beta=1, seed=2)"),
    "the first": ("c = GRPOConfig()", {"seed": 2}, "c = GRPOConfig(seed=2)"),
    "a new one of several lines": (
        "c = GRPOConfig(\n    beta=1,  # one\n)",
        {"seed": 2},
        "c = GRPOConfig(\n    beta=1, seed=2,  # one\n)",
    ),
    "CRLF": (
        "c = GRPOConfig(\r\n    beta=1,\r\n)",
        {"beta": 2},
        "c = GRPOConfig(\r\n    beta=2,\r\n)",
    ),
    "a name": (
        "c = GRPOConfig(\n  warmup_ratio=N, # w\n)",
        {"warmup_ratio": None, "warmup_steps": 8},
        "c = GRPOConfig(\n  warmup_steps=N, # w\n)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_only_the_argument_changes(name: str, tmp_path: Path) -> None:
    """Values, names, removed and added arguments; comments, quotes and line ends stay."""
    before, change, after = CASES[name]
    assert edit_call(tmp_path / "train.py", HEAD + before, 0, change) == HEAD + after


@pytest.mark.parametrize(
    "text",
    [
        "GRPOConfig(seed=N)",
        "GRPOConfig(seed=N + 1)",
        "d = {'seed': 1}\nGRPOConfig(**d)",
        "c = GRPOConfig(seed=1)\nc.seed = 3",
        "class C(GRPOConfig):\n    seed: int = 1\nC()",
    ],
)
def test_a_value_that_is_no_literal_of_the_call_is_left_alone(text: str, tmp_path: Path) -> None:
    """Another call may use the same name."""
    assert edit_call(tmp_path / "train.py", HEAD + text, 0, {"seed": 2}) is None


def test_the_second_call_of_a_file_is_changed_alone(tmp_path: Path) -> None:
    """By its index."""
    text = HEAD + "a = GRPOConfig(seed=1)\nb = GRPOConfig(seed=1)\n"
    assert edit_call(tmp_path / "train.py", text, 1, {"seed": 2}) == text[:-3] + "2)\n"
