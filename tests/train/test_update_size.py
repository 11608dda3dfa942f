"""How far a step moves the weights."""

import pytest
import torch

from grposweep.train.updates import Sample


def moved(dtype: torch.dtype, by: float, every: int = 1) -> float | None:
    """The relative size of a step that adds ``by`` to weights of one."""
    model = torch.nn.Linear(64, 64, bias=False).to(dtype)
    torch.nn.init.ones_(model.weight)
    sample = Sample(every)
    sample.take(model)
    with torch.no_grad():
        model.weight += by
    return sample.change()


@pytest.mark.parametrize("every", [1, 7])
def test_a_step_of_a_hundredth_of_each_weight_is_a_hundredth(every: int) -> None:
    """Whether all weights are looked at or every seventh."""
    assert moved(torch.float32, 0.01, every) == pytest.approx(0.01, rel=1e-3)


def test_a_step_that_bfloat16_swallows_is_none_at_all() -> None:
    """What really changed is measured, not what the optimizer meant."""
    assert moved(torch.bfloat16, 1e-4) == 0.0


def test_weights_that_are_not_trained_do_not_count() -> None:
    """Without a trainable weight there is no size."""
    sample, model = Sample(1), torch.nn.Linear(4, 4).requires_grad_(False)
    sample.take(model)
    assert sample.change() is None
