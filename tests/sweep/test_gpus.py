"""Sweeps on a machine with GPUs, as CUDA_VISIBLE_DEVICES names them; the fake trainer uses none."""

import os
from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grposweep.launchers.local import Local, least_used
from grposweep.schema import Cluster, Experiment, Generation
from in_process import Sweep
from support import Printed, lines, read, trials

FAKE = ("trainer=fake", "name=s", "schedule.budget_completions=512", "tracker=none")


@pytest.mark.slow
def test_the_number_of_ranks_can_be_searched(
    sweep_here: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two GPUs: a trial of two ranks waits until both are free."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    sweep = sweep_here(*FAKE, "cluster.processes=1,2", "lr=1e-4,1e-3", "search.parallel=2")
    results = [read(folder / "result.json")["status"] for folder in trials(sweep)]
    assert results == ["finished"] * 4
    devices = [lines(folder / "runs.jsonl")[0]["devices"] for folder in trials(sweep)]
    assert sorted(devices) == [1, 1, 2, 2]


@pytest.mark.slow
def test_trials_that_share_a_gpu_run_at_once_and_are_charged_their_share(
    sweep_here: Sweep, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    """Two GPUs with two trials each; a GPU second is one second of all trials of a GPU together."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    sweep = sweep_here(*FAKE, "cluster.trials_per_gpu=2", "lr=1e-4,2e-4,3e-4,4e-4")
    assert "4 at once" in printed()
    for folder in trials(sweep):
        result = read(folder / "result.json")
        assert lines(folder / "runs.jsonl")[0]["devices"] == 0.5
        assert result["gpu_seconds"] == pytest.approx(result["seconds"] / 2, abs=0.002)


def test_as_many_trials_share_a_gpu_as_fit_by_the_estimate(
    sweep_here: Sweep, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    """Not more than there are CPU cores, since each trial keeps one busy."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    words = (
        *FAKE,
        "cluster.trials_per_gpu=auto",
        "cluster.gpu_memory_gib=80",
        "model=qwen2_5_0_5b",
        "lr=1e-4,1e-3",
    )
    sweep = sweep_here(*words)
    assert "cluster.trials_per_gpu=auto: 2; the largest trial needs" in printed()
    assert [lines(folder / "runs.jsonl")[0]["devices"] for folder in trials(sweep)] == [0.5, 0.5]


@pytest.mark.slow
def test_trials_that_take_turns_on_a_gpu_are_told_of_mps(
    sweep_here: Sweep,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    printed: Printed,
) -> None:
    """Where it is installed and does not run, and only if trials share a GPU."""
    control = tmp_path / "nvidia-cuda-mps-control"
    control.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "pipe"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    sweep_here(*FAKE, "cluster.trials_per_gpu=2", "lr=1e-4,2e-4")
    assert "Start it with nvidia-cuda-mps-control -d" in printed()
    (tmp_path / "pipe" / "control").parent.mkdir()
    (tmp_path / "pipe" / "control").touch()
    sweep_here(*FAKE, "cluster.trials_per_gpu=2", "lr=3e-4,4e-4", "name=t")
    assert "mps" not in printed()


def test_a_trial_gets_the_gpu_that_the_fewest_share() -> None:
    """Not the first with a place: the others would idle."""
    gpus = ["0", "1"] * 3
    taken = list[int]()
    for _ in gpus:
        taken.append(least_used(gpus, set(range(6)).difference(taken)))
    assert [gpus[place] for place in taken] == ["0", "1"] * 3
    assert gpus[least_used(gpus, {0, 1, 3})] == "1"


def test_a_shared_server_on_the_only_gpu_needs_a_place_there(
    sweep_here: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says how; then one of four places is the server's."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    shared = (*FAKE, "generation=vllm_shared", "model.lora.r=16", "lr=1e-4,1e-3")
    with pytest.raises(
        UserError,
        match=r"Set cluster\.trials_per_gpu=4 generation\.vllm_gpu_memory_utilization=0\.25",
    ):
        sweep_here(*shared)
    experiment = Experiment(
        generation=Generation(vllm_shared_gpus=1), cluster=Cluster(trials_per_gpu=4)
    )
    local = Local.build(experiment, tmp_path)
    local.close()
    assert local.slots == 3
