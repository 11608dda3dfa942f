"""A healed batch trains as the unhealed one did: real GRPO steps of every loss, compared."""

from pathlib import Path
from typing import Any

import pytest

from grporecipe.errors import ExitCode
from grposweep.sweep._oom import SPLITTABLE
from grposweep.train.run import run_attempt

from .conftest import MakeTrial, metrics_of

# torch and real training: the default tier is for seconds
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cool_tiny")]
HALVED = ["batch.per_device_train_batch_size=4", "batch.gradient_accumulation_steps=2"]


def steps(folder: Path) -> list[dict[str, Any]]:
    """What training logged, step by step."""
    assert run_attempt(folder) == ExitCode.FINISHED
    return [line for line in metrics_of(folder) if line["kind"] == "train"]


def both(make_trial: MakeTrial, loss: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The same two steps in one micro-batch of 8 and in two of 4, with completions of different
    lengths and a KL.
    """
    shared = [
        f"loss.loss_type={loss}",
        "kl.enabled=true",
        "kl.beta=0.1",
        "schedule.max_steps=2",
        "schedule.evaluations=1",
    ]
    return steps(make_trial(*shared)), steps(make_trial(*shared, *HALVED, name="0001-b"))


@pytest.mark.parametrize("loss", sorted(SPLITTABLE))
def test_two_halves_make_the_same_step(make_trial: MakeTrial, loss: str) -> None:
    """The rollouts are the same ones, and the gradients agree up to rounding."""
    whole, halves = both(make_trial, loss)
    assert [line["reward"] for line in halves] == pytest.approx(
        [line["reward"] for line in whole], abs=1e-6
    )
    assert [line["grad_norm"] for line in halves] == pytest.approx(
        [line["grad_norm"] for line in whole], rel=1e-3
    )
    assert all(line["grad_norm"] > 0 for line in whole)


def test_bnpo_divides_by_each_micro_batchs_own_tokens(make_trial: MakeTrial) -> None:
    """So its gradients differ, and it is not healed."""
    whole, halves = both(make_trial, "bnpo")
    assert halves[0]["reward"] == pytest.approx(whole[0]["reward"], abs=1e-6)
    assert halves[0]["grad_norm"] != pytest.approx(whole[0]["grad_norm"], rel=1e-3)
