"""When a controller has nothing left to do."""

from types import SimpleNamespace
from typing import Any

import pytest

from grposweep.sweep.controller import Controller


@pytest.mark.parametrize(("halted", "stopping", "done"), [("", False, False), ("alike", False, True), ("", True, True)])
def test_a_busy_place_is_waited_for_only_by_a_sweep_that_goes_on(halted: str, stopping: bool, done: bool) -> None:
    """One that stopped itself, or was stopped, would wait for ever: nothing is to be submitted any more."""
    nobody: Any = SimpleNamespace(slots=1)
    search = SimpleNamespace(budget_gpu_hours=None)
    proposals: Any = SimpleNamespace(study=None, judge=None, search=search, sampler="tpe")
    settler: Any = SimpleNamespace(halted=halted)
    lease: Any = SimpleNamespace(check=lambda: None)
    controller = Controller(nobody, proposals, settler, nobody, lease, [], {}, nobody)
    controller.busy, controller.busy_until, controller.stopping = "a full queue", float("inf"), stopping
    assert controller.tick() is done
