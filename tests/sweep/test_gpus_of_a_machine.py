"""Sweeps on a machine with GPUs, as CUDA_VISIBLE_DEVICES names them; the fake trainer uses none."""

from pathlib import Path

import pytest

from grposweep.errors import UserError
from in_process import sweeps_in
from support import lines, read, trials

FAKE = ("trainer=fake", "name=s", "schedule.budget_completions=512", "tracker=none")


def test_the_number_of_ranks_can_be_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs: a trial of two ranks waits until both are free."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    sweep = sweeps_in(tmp_path, monkeypatch)(*FAKE, "cluster.processes=1,2", "lr=1e-4,1e-3", "search.parallel=2")
    results = [read(folder / "result.json")["status"] for folder in trials(sweep)]
    assert results == ["finished"] * 4
    devices = [lines(folder / "runs.jsonl")[0]["devices"] for folder in trials(sweep)]
    assert sorted(devices) == [1, 1, 2, 2]


def test_more_ranks_than_gpus_are_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if only some points ask for them."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(UserError, match=r"cluster\.processes=4: .* this machine has 2\. Set cluster\.processes=2"):
        sweeps_in(tmp_path, monkeypatch)(*FAKE, "cluster.processes=1,4", "lr=1e-4,1e-3")
    assert trials(tmp_path / "outputs" / "s") == []
