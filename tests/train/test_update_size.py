"""How far a step moves the weights."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed
from torch.distributed.tensor import DTensor, Shard, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from grposweep.train._trl_callbacks import Sample

# torch and TRL take 8 s to import
pytestmark = pytest.mark.slow


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
    sample = Sample(1)
    model = torch.nn.Linear(4, 4).requires_grad_(False)
    sample.take(model)
    assert sample.change() is None


def test_weights_that_were_moved_are_looked_at_where_they_are_now() -> None:
    """What frameworks do that shard or offload."""
    model = torch.nn.Linear(8, 8, bias=False)
    sample = Sample(1)
    torch.nn.init.ones_(model.weight)
    sample.take(model)
    for before in (1.0, 1.5):
        model.weight.data = model.weight.data + 0.5
        assert sample.change() == pytest.approx(0.5 / before)


@pytest.fixture
def second_rank() -> Iterator[None]:
    """Another rank that never answers: who waits for it gets nothing."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("second_rank")
def test_of_weights_that_fsdp_divides_the_ranks_own_part_counts() -> None:
    """Unevenly divided, and without a message to the other ranks, which do not measure."""
    model = torch.nn.Linear(3, 7, bias=False)
    own = torch.ones(4, 3)
    whole = DTensor.from_local(
        own, init_device_mesh("cpu", (2,)), [Shard(0)], run_check=False, shape=(7, 3), stride=(3, 1)
    )
    model.weight = torch.nn.Parameter(whole)
    sample = Sample(1)
    sample.take(model)
    own += 0.1
    assert sample.change() == pytest.approx(0.1)
