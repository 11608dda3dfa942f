"""Sweeps on a real two-node Slurm, from the command line: the same numbers as here, even if jobs
and nodes die.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from cluster_jobs import ours, slurm

from grporecipe.files import Json
from grposweep.storage.provenance import TIMES
from grposweep.storage.results import read_runs
from support import RUN, Run, Start, environment, lines, read, trials, wait_for

pytestmark = pytest.mark.slurm

QUICK = ("cluster.poll_seconds=1", "cluster.cpus_per_gpu=1")
FOUR_RANKS = ("cluster=slurm", "cluster.nodes=2", "cluster.gpus_per_node=2", *QUICK)
ONE_RANK = ("cluster=slurm", "cluster.gpus_per_node=0", *QUICK)
FAKE = ("trainer=fake", "name=s", *ONE_RANK)
SLOW = (
    *FAKE,
    "trainer.args.step_seconds=0.05",
    "schedule=steps",
    "schedule.max_steps=100",
    "schedule.checkpoints=10",
)


LONG = (*SLOW, "trainer.args.step_seconds=0.2")


def metrics(trial: Path) -> list[Json]:
    """A trial's metrics without what may differ between two runs of it."""
    return [
        {k: v for k, v in line.items() if k not in TIMES} for line in lines(trial / "metrics.jsonl")
    ]


def events(trial: Path, event: str) -> list[Json]:
    """One kind of line in attempts.jsonl."""
    return [line for line in lines(trial / "attempts.jsonl") if line["event"] == event]


def step(trial: Path) -> int:
    """The last step that a trial has logged."""
    return max((line["step"] for line in lines(trial / "metrics.jsonl")), default=0)


def read_config(trial: Path) -> Json:
    """A trial's configuration."""
    return dict(yaml.safe_load((trial / "config.yaml").read_text()))


def is_at(here: Path, number: int, least: int) -> Callable[[], bool]:
    """Whether a trial of the sweep ``s`` has got so far."""

    def holds() -> bool:
        found = list(here.glob(f"outputs/s/trials/{number:04d}-*/metrics.jsonl"))
        return bool(found) and step(found[0].parent) >= least

    return holds


def test_a_sweep_of_real_trials_on_two_nodes_equals_the_local_one(run: Run) -> None:
    """Two nodes with two ranks each and gloo between them: the metrics of four ranks here, bit for
    bit.
    """
    grid = ("batch=auto", "debug=smoke", "schedule.checkpoints=0", "lr=1e-3", "-m", "kl=none,low")
    there = run(*FOUR_RANKS, "cluster.max_jobs=2", "name=there", *grid, timeout=900)
    assert there.code == 0, there.err + there.out
    here = run("cluster=local", "cluster.processes=4", "name=here", *grid, timeout=900)
    assert here.code == 0, here.err
    assert len(trials(there.sweep)) == 2
    assert [metrics(trial) for trial in trials(there.sweep)] == [
        metrics(trial) for trial in trials(here.sweep)
    ]
    assert "n[1-2]" in (trials(there.sweep)[0] / "logs" / "job.log").read_text()


PATIENT = """
import os, time

def patient(completions, **columns):
    time.sleep(float(os.environ.get("SECONDS_OF_A_REWARD", 0)))
    return [len(set(str(completion))) / 40 for completion in completions]
"""


def test_a_trial_that_is_requeued_and_then_over_its_time_limit_equals_an_undisturbed_one(
    run: Run, start: Start, here: Path
) -> None:
    """Both are real training on two ranks; the limit's warning stops all ranks at a rollout
    boundary.

    The reward sleeps, so that the training takes longer than Slurm needs to notice its new end.
    """
    (here / "patient.py").write_text(PATIENT)
    long = (
        "batch=auto",
        "schedule=steps",
        "schedule.max_steps=180",
        "schedule.evaluations=3",
        "schedule.checkpoints=15",
        "task.rewards=[patient.py:patient]",
    )
    local = ("cluster=local", "cluster.processes=2", "name=undisturbed")
    undisturbed = trials(run(*local, *long, timeout=900).sweep)[0]
    disturbed = start(
        "cluster=slurm",
        "cluster.gpus_per_node=1",
        "cluster.nodes=2",
        *QUICK,
        "cluster.environment.SECONDS_OF_A_REWARD=0.3",
        "cluster.walltime_min=30",
        "cluster.warn_seconds=30",
        "name=s",
        *long,
    )
    wait_for(is_at(here, 0, 20), 600)
    (job,) = ours()
    slurm("scontrol", "requeue", job)
    wait_for(is_at(here, 0, 40), 600)
    slurm("scontrol", "update", f"JobId={job}", "EndTime=now+60")
    (folder,) = here.glob("outputs/s/trials/*")
    wait_for(lambda: "warned" in (folder / "logs" / "job.log").read_text(), 600)
    slurm("scontrol", "update", f"JobId={job}", "TimeLimit=30")
    output, _ = disturbed.communicate(timeout=900)
    assert disturbed.returncode == 0, output
    assert metrics(folder) == metrics(undisturbed)
    assert max(run.restarts for run in read_runs(folder)) >= 2
    # the same job throughout
    assert len(events(folder, "intent")) == 1


def test_a_sweep_survives_ten_deaths_of_its_controller(run: Run, start: Start, here: Path) -> None:
    """Kill -9 at any moment: no trial lost, none twice, no orphan job, and the grid's best."""
    grid = (
        *SLOW,
        "schedule.max_steps=40",
        "cluster.max_jobs=4",
        "-m",
        "lr=1e-5,1e-4,3e-4,1e-3,3e-3,1e-2",
        "seed=0,1",
    )
    for delay in (0.6, 1.0, 1.3, 1.5, 1.7, 2.0, 2.3, 2.6, 3.0, 3.5):
        process = start(*grid)
        time.sleep(delay)
        process.kill()
        process.wait()
    ended = run(*grid, timeout=900)
    assert ended.code == 0, ended.out
    folders = trials(ended.sweep)
    assert len(folders) == 12
    assert all(len(events(folder, "intent")) == 1 for folder in folders)
    for folder in folders:
        assert [
            line["step"] for line in lines(folder / "metrics.jsonl") if line["kind"] == "train"
        ] == [*range(1, 41)]
    # a controller that dies right after a submission does not note the job, which may have ended
    # before the next one looks
    jobs = [event["job_id"] for folder in folders for event in events(folder, "started")]
    assert len(set(jobs)) == len(jobs) >= 6
    assert not ours()
    best = int(ended.out.split("best: trial ")[1].split(",")[0])
    assert read_config(folders[best])["lr"] == 1e-3


def test_ctrl_c_detaches_and_the_same_command_comes_back(
    run: Run, start: Start, here: Path
) -> None:
    """The job continues meanwhile, and is not submitted again."""
    process = start(*LONG, "lr=1e-3")
    wait_for(is_at(here, 0, 10))
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 130
    assert "detached: 1 job" in output
    assert len(ours()) == 1
    ended = run(*LONG, "lr=1e-3")
    assert ended.code == 0, ended.err
    (folder,) = trials(ended.sweep)
    assert {line["attempt"] for line in lines(folder / "metrics.jsonl")} == {0}


def test_a_job_cancelled_by_hand_is_a_failed_trial_and_the_sweep_continues(
    run: Run, start: Start, here: Path
) -> None:
    """It is told apart from a crash, and not submitted again."""
    process = start(*SLOW, "cluster.max_jobs=1", "-m", "lr=1e-4,1e-3")
    wait_for(is_at(here, 0, 10))
    slurm("scancel", *ours())
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    first, second = trials(here / "outputs" / "s")
    assert read(first / "result.json")["failure"]["kind"] == "cancelled"
    assert read(second / "result.json")["status"] == "finished"


def test_a_trial_survives_its_node(start: Start, here: Path) -> None:
    """The node is set down in the middle; the trial continues elsewhere from its checkpoint."""
    process = start(*SLOW, "lr=1e-3")
    wait_for(is_at(here, 0, 30))
    (job,) = ours()
    node = slurm("squeue", "--noheader", f"--job={job}", "--format=%N").strip()
    slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    try:
        output, _ = process.communicate(timeout=900)
    finally:
        # An error where the node has come back by itself, as clusters may be told to allow.
        subprocess.run(
            ["scontrol", "update", f"NodeName={node}", "State=RESUME"],
            capture_output=True,
            check=False,
        )
    assert process.returncode == 0, output
    (folder,) = trials(here / "outputs" / "s")
    train = [line for line in lines(folder / "metrics.jsonl") if line["kind"] == "train"]
    assert [line["step"] for line in train] == [*range(1, 101)]
    assert len({line["attempt"] for line in train}) > 1


def test_a_bad_partition_is_one_message(run: Run) -> None:
    """Code 2, the key and where to look; not one message a trial."""
    ended = run(*FAKE, "cluster.partition=nowhere", "-m", "lr=1e-4,3e-4,1e-3,3e-3")
    assert ended.code == 2
    assert ended.err.count("Slurm refuses") == 1
    assert "cluster.partition=nowhere" in ended.err
    assert not ours()
    assert run(*FAKE, "cluster.partition=main", "-m", "lr=1e-4,3e-4,1e-3,3e-3").code == 0


def test_a_job_that_can_never_start_is_refused(run: Run) -> None:
    """Slurm takes a job of ten minutes for a partition of two, and would let it wait forever."""
    ended = run(*FAKE, "cluster.partition=short", "cluster.walltime_min=10")
    assert ended.code == 2
    assert "cluster.walltime_min=10" in ended.err
    assert not ours()


@pytest.mark.parametrize(
    "name", ['it\'s a "test"', "100% %j %x", "back\\slash", "$HOME `id` ;#", "new\nline"]
)
def test_hostile_folder_names_are_only_names(name: str, here: Path) -> None:
    """Quotes, Slurm's own patterns, shell syntax, a line break."""
    folder = here / name
    folder.mkdir()
    process = subprocess.run(
        [sys.executable, str(RUN), *FAKE, "lr=1e-3"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert read(trials(folder / "outputs" / "s")[0] / "result.json")["status"] == "finished"


def test_a_preempted_trial_gives_way_and_continues(start: Start, here: Path) -> None:
    """A job of the partition with the higher priority takes all CPUs; ours stops at a boundary and
    requeues itself.
    """
    process = start(
        *SLOW, "cluster.partition=low", "cluster.extra=[--exclusive]", "cluster.nodes=2", "lr=1e-3"
    )
    wait_for(is_at(here, 0, 20))
    other = slurm(
        "sbatch", "--parsable", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 3"
    ).strip()
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    (folder,) = trials(here / "outputs" / "s")
    assert (
        slurm("squeue", "--noheader", "--states=all", f"--job={other}", "--format=%T").strip()
        == "COMPLETED"
    )
    assert "warned" in (folder / "logs" / "job.log").read_text()
    train = [line for line in lines(folder / "metrics.jsonl") if line["kind"] == "train"]
    assert [line["step"] for line in train] == [*range(1, 101)]
    assert len(events(folder, "intent")) == 1


def test_the_controller_may_be_a_job_that_requeues_itself(run: Run, here: Path) -> None:
    """The command returns at once; its time limit lets the controller continue in another run of
    the same job.
    """
    grid = (*SLOW, "cluster.max_jobs=1", "cluster.controller=job", "-m", "lr=1e-4,3e-4,1e-3,3e-3")
    handed = run(*grid)
    assert handed.code == 0, handed.err
    assert "the controller is Slurm job" in handed.out
    again = run(*grid)
    assert "already" in again.out or "another controller" in again.err
    controller = handed.out.split("Slurm job ")[1].split(";")[0]
    wait_for(is_at(here, 1, 5))
    # as its time limit would
    slurm("scancel", "--batch", "--signal=USR1", controller)
    wait_for(
        lambda: len(list(here.glob("outputs/s/trials/*/result.json"))) == 4 and not ours(), 180
    )
    assert all(
        read(trial / "result.json")["status"] == "finished"
        for trial in trials(here / "outputs" / "s")
    )
    assert all(len(events(trial, "intent")) == 1 for trial in trials(here / "outputs" / "s"))
    assert "best: trial" in (here / "outputs" / "s" / "controller.out").read_text()


def test_cancel_ends_the_sweeps_jobs_and_only_those(run: Run, start: Start, here: Path) -> None:
    """Another sweep's job lives on, and the cancelled sweep can be resumed."""
    both = [start(*LONG, f"name={name}", "lr=1e-3") for name in ("s", "other")]
    wait_for(lambda: len(list(here.glob("outputs/*/trials/*/heartbeat"))) == 2)
    for process in both:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=900)
    assert len(ours()) == 2
    done = subprocess.run(
        [sys.executable, "-m", "grposweep", "cancel", "s"],
        cwd=here,
        env=environment(PYTHONPATH=str(RUN.parent)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "cancelled 1 job " in done.stdout
    wait_for(lambda: len(ours()) == 1)
    assert run(*LONG, "lr=1e-3").code == 0
    (folder,) = trials(here / "outputs" / "s")
    assert len(events(folder, "intent")) == 2


def test_jobs_run_the_code_of_their_submission(run: Run) -> None:
    """The snapshot in the sweep folder, not the checkout."""
    ended = run(*FAKE, "lr=1e-3")
    (code,) = (ended.sweep / "code").iterdir()
    assert str(code) in (trials(ended.sweep)[0] / "job-0.sbatch").read_text()
    assert (code / "grposweep" / "train" / "attempt.py").exists()
    assert list(code.rglob("__pycache__")), "nothing ran from it"


def test_a_full_queue_is_filled_again_as_its_jobs_end(run: Run) -> None:
    """This quality of service lets a user have three jobs in the queue; the sweep would have
    six.
    """
    ended = run(
        *FAKE, "cluster.qos=few", "cluster.max_jobs=6", "-m", "lr=1e-4,2e-4,3e-4,1e-3,2e-3,3e-3"
    )
    assert ended.code == 0, ended.err
    assert [read(trial / "result.json")["status"] for trial in trials(ended.sweep)] == [
        "finished"
    ] * 6
    assert all(len(events(trial, "intent")) == 1 for trial in trials(ended.sweep))


def test_accounting_says_how_a_job_ended_that_the_queue_has_forgotten(
    run: Run, start: Start, here: Path
) -> None:
    """Cancelled without a controller, and gone from squeue: told apart from one that has to be run
    again.
    """
    process = start(*LONG, "lr=1e-3")
    wait_for(is_at(here, 0, 10))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=900)
    (job,) = ours()
    slurm("scancel", job)
    wait_for(
        lambda: job not in slurm("squeue", "--noheader", "--states=all", "--format=%i").split(), 120
    )
    ended = run(*LONG, "lr=1e-3")
    assert ended.code == 1
    (trial,) = trials(ended.sweep)
    assert read(trial / "result.json")["failure"]["kind"] == "cancelled"


def test_models_and_data_may_be_prepared_in_a_job(run: Run) -> None:
    """Where the login node has no network, say; this machine's part never needs torch."""
    ended = run("name=s", *ONE_RANK, "cluster.prepare=job", "debug=smoke", timeout=900)
    assert ended.code == 0, ended.err + ended.out
    assert "preparing model and data (as Slurm job" in ended.out
    assert (ended.sweep / "prepare" / "job.sbatch").is_file()
    assert "prepare" in slurm("sacct", "--noheader", "--format=JobName%80", "--starttime=now-1hour")
