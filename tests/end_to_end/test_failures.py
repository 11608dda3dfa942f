"""What a sweep does about failing attempts, from the command line: retries, heals, gives up, or
stops itself.
"""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from grporecipe.files import write_json
from support import Run, Start, lines, read, sampled, trials, wait_for

FAKE = ("trainer=fake", "name=s")
# four seconds of training
SECONDS = ("trainer.args.step_seconds=0.1", "schedule=steps", "schedule.max_steps=40")


def failure(trial: Path) -> dict[str, Any]:
    """What result.json says of it."""
    return dict(read(trial / "result.json")["failure"])


def ends(trial: Path) -> list[str]:
    """What was decided after each attempt."""
    return [
        line.get("step", "finished")
        for line in lines(trial / "attempts.jsonl")
        if line["event"] == "ended"
    ]


def test_the_same_crash_three_times_in_a_row_stops_the_sweep(run: Run) -> None:
    """Instead of burning through eight trials; the same command continues once it is fixed."""
    sweep = ("-m", "lr=1e-4,2e-4,3e-4,4e-4,1e-3,2e-3,3e-3,4e-3")
    ended = run(*FAKE, "trainer.args.crash_at=2", *sweep)
    assert ended.code == 1
    assert len(trials(ended.sweep)) == 3
    assert "stopped, with 5 trials to go: the last trials all failed alike" in ended.out
    assert {failure(trial)["class"] for trial in trials(ended.sweep)} == {"crash"}


def test_an_attempt_out_of_gpu_memory_continues_in_smaller_micro_batches(run: Run) -> None:
    """Once: half the per-device size, twice the accumulation; the trial stays the same one."""
    ended = run(
        *FAKE,
        "trainer.args.oom_above=16",
        "batch=auto",
        "batch.prompts_per_step=4",
        "batch.num_generations=8",
    )
    assert ended.code == 0, ended.out + ended.err
    (trial,) = trials(ended.sweep)
    assert read(trial / "result.json")["status"] == "finished"
    assert ends(trial) == ["heal", "finished"]
    assert read(trial / "healed.json")["batch"] == {
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 2,
    }
    assert (
        "trial 0: out of GPU memory: 2 GiB more asked for; it continues in smaller micro-batches"
        in ended.out
    )


@pytest.mark.slow
def test_memory_that_half_the_size_does_not_save_fails_the_trial(run: Run) -> None:
    """It is not halved forever."""
    ended = run(
        *FAKE,
        "trainer.args.oom_above=4",
        "batch=auto",
        "batch.prompts_per_step=4",
        "batch.num_generations=8",
    )
    assert ended.code == 1
    (trial,) = trials(ended.sweep)
    assert ends(trial) == ["heal", "fail"]
    assert failure(trial)["class"] == "gpu_memory"


@pytest.mark.slow
def test_a_point_larger_than_one_that_ran_out_of_memory_is_not_tried(run: Run) -> None:
    """Eight completions a device are too many, and so are four; sixteen cost nothing any more."""
    sizes = (
        "batch=small",
        "batch.num_generations=8",
        "batch.gradient_accumulation_steps=4",
        "search.seed=0",
    )
    ended = run(
        *FAKE, "trainer.args.oom_above=3", *sizes, "-m", "batch.per_device_train_batch_size=2,8,16"
    )
    assert ended.code == 0, ended.out + ended.err
    assert [
        failure(trial)["class"]
        for trial in trials(ended.sweep)
        if "failure" in read(trial / "result.json")
        and read(trial / "result.json")["status"] == "failed"
    ] == ["gpu_memory"]
    assert len(trials(ended.sweep)) == 2
    assert "1 point left out: trial 1 showed that a GPU's memory is too small for them" in ended.out


@pytest.mark.slow
def test_a_rank_that_hangs_ends_itself_and_is_tried_once_more(run: Run) -> None:
    """Its log says where it stood, and how to look at its process before."""
    ended = run(*FAKE, "trainer.args.hang_at=3", "cluster.stall_min=0.02", "lr=1e-3")
    assert ended.code == 1
    (trial,) = trials(ended.sweep)
    assert ends(trial) == ["elsewhere", "fail"]
    assert failure(trial)["class"] == "hang"
    log = (trial / "logs" / "rank-0.log").read_text()
    assert "_misbehave" in log
    assert re.search(
        r"^rank 0 on \S+ is process (\d+)\. If it is silent: py-spy dump --pid \1$",
        log,
        re.MULTILINE,
    )


@pytest.mark.slow
def test_an_attempt_that_is_stopped_as_a_whole_is_ended_by_its_controller(
    start: Start, here: Path
) -> None:
    """SIGSTOP: its own watchdog is stopped as well."""
    process = start(*FAKE, *SECONDS, "cluster.stall_min=0.05", "lr=1e-3")
    wait_for(lambda: list(here.glob("outputs/s/trials/0000-*/heartbeat")))
    (trial,) = trials(here / "outputs" / "s")
    job = next(
        line["job_id"] for line in lines(trial / "attempts.jsonl") if line["event"] == "started"
    )
    os.kill(int(job.removeprefix("local-")), signal.SIGSTOP)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert ends(trial) == ["elsewhere", "finished"]
    assert re.search("trial 0: no sign of life; it (continues from|has no) ", output)


def ranks(trial: Path) -> list[int]:
    """The processes that train a trial, the first rank's first; their log is what they have
    open.
    """
    found: dict[str, int] = {}
    for handle in Path("/proc").glob("[0-9]*/fd/2"):
        try:
            log = handle.readlink()
        except OSError:
            # ended meanwhile, or not ours
            continue
        if log.parent == trial / "logs" and log.name.startswith("rank-"):
            found[log.name] = int(handle.parts[2])
    return [found[name] for name in sorted(found)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "killed",
    sampled([slice(0, 1), slice(1, 2), slice(0, 2)], 3, pytest.mark.thorough),
    ids=["the first rank", "the second", "all"],
)
def test_a_trial_whose_ranks_are_killed_costs_no_other_and_leaves_none_behind(
    start: Start, here: Path, killed: slice
) -> None:
    """Kill -9, as the kernel does: the rest of its ranks is ended, the failure is recorded, and
    both trials finish.
    """
    process = start(*FAKE, *SECONDS, "cluster=local_ddp", "lr=1e-3,2e-3", "-m")
    wait_for(lambda: list(here.glob("outputs/s/trials/0000-*/heartbeat")))
    (trial,) = trials(here / "outputs" / "s")
    wait_for(lambda: len(ranks(trial)) == 2)
    for pid in ranks(trial)[killed]:
        os.kill(pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    first, second = trials(here / "outputs" / "s")
    assert not ranks(first)
    assert [
        event["failure"] for event in lines(first / "attempts.jsonl") if "failure" in event
    ] == ["killed"]
    assert [read(folder / "result.json")["status"] for folder in (first, second)] == [
        "finished"
    ] * 2


@pytest.mark.slow
def test_a_failure_without_a_controller_is_classified_by_the_next_controller(run: Run) -> None:
    """The controller dies between the attempt's end and its ruling: the result is there, its class
    is not.
    """
    ended = run(
        *FAKE,
        "trainer.args.oom_above=16",
        "batch=auto",
        "batch.prompts_per_step=4",
        "batch.num_generations=8",
    )
    (trial,) = trials(ended.sweep)
    # up to the start of the first attempt
    kept = (trial / "attempts.jsonl").read_text().splitlines()[:2]
    (trial / "attempts.jsonl").write_text("\n".join(kept) + "\n")
    (trial / "healed.json").unlink()
    crashed = {"kind": "RuntimeError", "message": "CUDA out of memory. Tried to allocate 2.00 GiB"}
    write_json(trial / "result.json", {"status": "failed", "attempt": 0, "failure": crashed})
    (ended.sweep / "study.journal").unlink()
    again = run(
        *FAKE,
        "trainer.args.oom_above=16",
        "batch=auto",
        "batch.prompts_per_step=4",
        "batch.num_generations=8",
    )
    assert again.code == 0, again.out + again.err
    assert ends(trial) == ["heal", "finished"]
