"""Values that a configuration refuses, and their neighbours: the rows of refused.txt."""

import json
import shlex
from functools import cache
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from grporecipe.errors import UserError
from grposweep.config.compose import Session, to_experiment
from grposweep.config.points import Points
from refused import read_rows, says
from support import check_experiment

KEYS, COMPOSED = read_rows(Path(__file__).with_name("refused.txt")).values()


def check(words: str) -> None:
    """Check the schema's defaults with these keys."""
    check_experiment(to_experiment(OmegaConf.from_dotlist(shlex.split(words))))


# once for all rows with the same neighbour
accept = cache(check)


@pytest.mark.parametrize(("bad", "words", "good"), KEYS)
def test_bad_values_are_refused_and_their_neighbours_are_not(
    bad: str, words: str, good: str
) -> None:
    """One sentence, with the key and what to set instead."""
    accept(good)
    with pytest.raises(UserError, match=says(words)) as refused:
        check(bad)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("bad", "words", "good"), COMPOSED)
def test_bad_options_and_forced_keys_are_refused(
    session: Session, bad: str, words: str, good: str
) -> None:
    """An option of a group, and a key that Hydra's + and ++ force past the schema."""
    check_experiment(Points(session.compose, good.split()).base)
    with pytest.raises(UserError, match=says(words)):
        check_experiment(Points(session.compose, bad.split()).base)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            {"zero_optimization": {"stage": 3}},
            "has stage 3, and trainer.sharding=zero2 ... Set trainer.sharding=zero3",
        ),
        ({"bf16": {"enabled": True}}, "is not JSON with zero_optimization"),
        (
            {"zero_optimization": {"stage": 2}, "train_batch_size": 64},
            "sets train_batch_size, and every trial has its own",
        ),
    ],
)
def test_a_file_of_deepspeeds_must_fit_the_kind_of_sharding(
    tmp_path: Path, content: dict[str, object], words: str
) -> None:
    """The plan and the estimate of memory go by ``trainer.sharding``."""
    path = tmp_path / "d.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=says(words)):
        check(f"trainer.sharding=zero2 trainer.deepspeed_config={path}")
