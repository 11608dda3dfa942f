"""The Slurm launcher over a fake cluster: what it makes of the tools' answers. tests/slurm has the
real thing.
"""

import signal
from pathlib import Path

import fake_slurm
import pytest

from grporecipe.errors import UserError
from grporecipe.files import append_line, write_json
from grposweep.launchers import cancel_sweep
from grposweep.launchers.base import End, Job, LauncherBusy
from grposweep.launchers.slurm import launcher
from grposweep.launchers.slurm._commands import wait_status
from grposweep.launchers.slurm.launcher import Slurm
from grposweep.schema import Cluster
from grposweep.storage.results import start_run
from in_process import Sweep
from support import Run, Start, lines, read, sampled, trials, wait_for

# the queue is read at every poll
EAGER = Cluster(kind="slurm", poll_seconds=0.0)


@pytest.fixture
def slurm(state: Path, tmp_path: Path) -> Slurm:
    """A launcher that reads the queue at each poll."""
    return Slurm(tmp_path / "a sweep", EAGER, slots=2, code=tmp_path)


def job(tmp_path: Path, attempt: int = 0, **cluster: object) -> Job:
    """An attempt whose script sleeps forever instead of training."""
    folder = tmp_path / "a sweep" / "trials" / "0003-abcdef"
    folder.mkdir(parents=True, exist_ok=True)
    append_line(folder / "attempts.jsonl", {"attempt": attempt, "event": "intent"})
    return Job(folder, attempt, Cluster(kind="slurm", setup=["exec sleep 60"], **cluster))  # type: ignore[arg-type]


def stage(state: Path, job_id: str, what: str) -> None:
    """A job's state and reason from now on."""
    (state / f"{job_id}.state").write_text(what)


@pytest.mark.parametrize(
    ("said", "kind", "again"),
    sampled(
        [
            ("TIMEOUT", "timeout", True),
            ("PREEMPTED", "preempted", True),
            ("NODE_FAIL", "node_fail", True),
            ("OUT_OF_MEMORY", "out_of_memory", False),
            ("CANCELLED", "cancelled", False),
            ("FAILED", "", False),
        ],
        2,
    ),
)
def test_ends_are_told_apart(
    slurm: Slurm, state: Path, tmp_path: Path, said: str, kind: str, again: bool
) -> None:
    """What was taken away continues in a new attempt; what failed does not."""
    job_id = slurm.submit(job(tmp_path))
    assert slurm.poll(job_id) is None
    stage(state, job_id, said)
    end = slurm.poll(job_id)
    assert end is not None
    assert (end.kind, end.again) == (kind, again)
    assert end.code != 0


@pytest.mark.parametrize("said", ["PENDING Priority", "COMPLETING", "REQUEUED", "SUSPENDED"])
def test_a_job_that_will_run_or_end_by_itself_is_left_alone(
    slurm: Slurm, state: Path, tmp_path: Path, said: str
) -> None:
    """A requeued job keeps its id: a second one must not be submitted."""
    job_id = slurm.submit(job(tmp_path))
    stage(state, job_id, said)
    assert slurm.poll(job_id) is None


def test_a_finished_result_outranks_the_jobs_end(slurm: Slurm, state: Path, tmp_path: Path) -> None:
    """The time limit came while the job was tidying up."""
    wanted = job(tmp_path)
    job_id = slurm.submit(wanted)
    write_json(wanted.folder / "result.json", {"status": "finished", "attempt": 0})
    stage(state, job_id, "TIMEOUT")
    assert slurm.poll(job_id) == End(0, nodes="n1")


def test_a_result_that_a_shared_file_system_shows_late_is_waited_for(
    slurm: Slurm, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job ended in order on another node. Without a result after a minute it has failed."""
    waited = job(tmp_path)
    job_ids = [slurm.submit(waited), slurm.submit(job(tmp_path, attempt=1))]
    for job_id in job_ids:
        stage(state, job_id, "COMPLETED")
        assert slurm.poll(job_id) is None
    write_json(waited.folder / "result.json", {"status": "finished", "attempt": 0})
    assert slurm.poll(job_ids[0]) == End(0, nodes="n1")
    monkeypatch.setattr(launcher, "LATE_SECONDS", 0.0)
    assert slurm.poll(job_ids[1]) == End(1, nodes="n1")


@pytest.mark.parametrize(("has_accounts", "kind"), [(True, "cancelled"), (False, "vanished")])
def test_accounting_knows_what_the_queue_has_forgotten(
    slurm: Slurm, state: Path, tmp_path: Path, has_accounts: bool, kind: str
) -> None:
    """``CANCELLED by 1000`` is cancelled; what neither knows has vanished, and continues in a new
    attempt.
    """
    if has_accounts:
        (state / "accounts").touch()
    job_id = slurm.submit(job(tmp_path))
    (state / f"{job_id}.gone").touch()
    stage(state, job_id, "CANCELLED")
    end = slurm.poll(job_id)
    assert end is not None
    assert (end.kind, end.again) == (kind, not has_accounts)


def test_a_scheduler_that_does_not_answer_loses_nothing(
    slurm: Slurm, state: Path, tmp_path: Path
) -> None:
    """What it said last still holds."""
    job_id = slurm.submit(job(tmp_path))
    (state / "silent").touch()
    assert slurm.poll(job_id) is None
    (state / "silent").unlink()
    stage(state, job_id, "PREEMPTED")
    assert slurm.poll(job_id) is not None


def test_a_job_is_found_again_by_its_name(slurm: Slurm, tmp_path: Path) -> None:
    """Its controller died between sbatch and writing down the id; another attempt of the trial is
    another job.
    """
    wanted = job(tmp_path)
    job_id = slurm.submit(wanted)
    later = Slurm(tmp_path / "a sweep", EAGER, slots=2, code=tmp_path)
    assert later.find(wanted, None) == job_id
    assert later.find(job(tmp_path, attempt=1), None) is None
    assert Slurm(tmp_path / "another", EAGER, slots=2, code=tmp_path).find(wanted, None) is None


def test_nothing_is_submitted_again_while_the_queue_cannot_be_read(
    slurm: Slurm, state: Path, tmp_path: Path
) -> None:
    """It might be there already."""
    (state / "silent").touch()
    with pytest.raises(LauncherBusy, match="does not answer"):
        slurm.find(job(tmp_path), None)


@pytest.mark.parametrize(
    ("said", "key"),
    [
        (
            "sbatch: error: Batch job submission failed: Invalid partition name specified",
            "cluster.partition=gpu",
        ),
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition",
            "cluster.partition=gpu",
        ),
        (
            "sbatch: error: Batch job submission failed: Requested node configuration is not "
            "available",
            "cluster.nodes=1",
        ),
        ("sbatch: fatal: Could not establish a configuration source", "set SLURM_CONF"),
        ("sbatch: error: something new", "cluster.extra"),
    ],
)
def test_a_refused_submission_is_bad_input(
    slurm: Slurm, state: Path, tmp_path: Path, said: str, key: str
) -> None:
    """With the key to change and Slurm's own words."""
    (state / "refuse").write_text(said)
    with pytest.raises(UserError) as caught:
        slurm.submit(job(tmp_path, partition="gpu"))
    assert key in str(caught.value)
    assert said.split(": ")[-1] in str(caught.value)


@pytest.mark.parametrize(
    "said",
    [
        "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job "
        "violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
        "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission "
        "failed: Job violates",
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller "
        "(connect failure)",
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        "sbatch: error: fetch_config: Unable to contact slurm controller (connect failure)\n"
        "sbatch: fatal: Could not establish a configuration source",
    ],
)
def test_a_full_queue_is_waited_for(slurm: Slurm, state: Path, tmp_path: Path, said: str) -> None:
    """It is no error of the user or the script."""
    (state / "refuse").write_text(said)
    with pytest.raises(LauncherBusy):
        slurm.submit(job(tmp_path))


def test_a_job_that_can_never_start_is_cancelled_and_refused(
    slurm: Slurm, state: Path, tmp_path: Path
) -> None:
    """It would hold its place in the queue forever."""
    job_id = slurm.submit(job(tmp_path, walltime_min=600))
    stage(state, job_id, "PENDING PartitionTimeLimit")
    # Slurm's first word may be hasty
    assert slurm.poll(job_id) is None
    with pytest.raises(UserError, match=r"cluster\.walltime_min=600"):
        slurm.poll(job_id)


WORDS = (
    "trainer=fake",
    "name=s",
    "lr=1e-4,1e-3",
    "cluster=slurm",
    "cluster.gpus_per_node=0",
    "cluster.poll_seconds=0",
    "cluster.setup=[exit 1]",
)


@pytest.mark.parametrize("reachable", sampled(["no sbatch", "silent"], 2))
def test_a_new_sweep_without_a_reachable_controller_is_refused_before_its_folder_exists(
    sweep_here: Sweep, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reachable: str
) -> None:
    """It would wait, or stop at the first submission."""
    (state / "silent").touch()
    if reachable == "no sbatch":
        monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(
        UserError, match=r"no sbatch|controller does not answer .*Unable to contact"
    ):
        sweep_here(*WORDS)
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("what", "said"),
    sampled(
        [
            ("refuse", "sbatch: error: Invalid partition name specified"),
            ("1.state", "PENDING PartitionConfig"),
        ],
        2,
    ),
)
def test_a_sweep_of_which_no_job_was_taken_leaves_nothing_and_the_corrected_command_begins_it(
    sweep_here: Sweep, state: Path, tmp_path: Path, what: str, said: str
) -> None:
    """Neither if sbatch refuses, nor if the job could never start."""
    (state / what).write_text(said)
    with pytest.raises(UserError, match=r"cluster.partition=gpux") as caught:
        sweep_here(*WORDS, "cluster.partition=gpux", "search.parallel=1")
    assert "outputs" not in str(caught.value)
    assert not (tmp_path / "outputs" / "s").exists()
    (state / what).unlink()
    assert len(trials(sweep_here(*WORDS, "cluster.partition=gpu"))) == 2


@pytest.mark.slow
def test_a_job_that_can_never_start_is_no_failure_of_its_trial_and_leaves_the_others(
    sweep_here: Sweep, state: Path, tmp_path: Path
) -> None:
    """The message says how to come back to them; the same command submits the refused one again."""
    (state / "2.state").write_text("PENDING PartitionConfig")
    (state / "1.state").write_text("RUNNING")
    with pytest.raises(
        UserError, match=r"cluster.partition(?s:.*)detached: 1 job .*\n?.*scancel 1"
    ):
        sweep_here(*WORDS)
    first, second = trials(tmp_path / "outputs" / "s")
    assert lines(first / "attempts.jsonl")[-1]["event"] == "started"
    assert lines(second / "attempts.jsonl")[-1]["kind"] == "cancelled"
    assert not (second / "result.json").exists()


def test_a_trial_taken_away_too_often_fails(slurm: Slurm, state: Path, tmp_path: Path) -> None:
    """Restarts of its job count as new attempts do."""
    wanted = job(tmp_path, requeue_limit=2)
    start_run(wanted.folder, attempt=1, devices=1, restarts=1)
    append_line(wanted.folder / "attempts.jsonl", {"attempt": 1, "event": "ended", "again": True})
    job_id = slurm.submit(wanted)
    stage(state, job_id, "PREEMPTED")
    end = slurm.poll(job_id)
    assert end is not None
    assert not end.again
    assert "cluster.requeue_limit=2" in end.message


def test_the_queue_is_read_rarely_while_nothing_happens(state: Path, tmp_path: Path) -> None:
    """One call for all jobs; at the default period that is two a minute."""
    slurm = Slurm(
        tmp_path / "a sweep", Cluster(kind="slurm", poll_seconds=30.0), slots=2, code=tmp_path
    )
    ids = [slurm.submit(job(tmp_path, attempt)) for attempt in range(3)]
    for _ in range(20):
        assert [slurm.poll(job_id) for job_id in ids] == [None] * 3
    assert (state / "calls").read_text().count("squeue") == 1


FAKE = (
    "trainer=fake",
    "name=s",
    "cluster=slurm",
    "cluster.gpus_per_node=0",
    "cluster.poll_seconds=0.3",
)


@pytest.mark.slow
def test_a_whole_sweep_runs_as_jobs(run: Run, state: Path) -> None:
    """Each trial has its script and its job's log next to it."""
    ended = run(*FAKE, "-m", "lr=1e-4,1e-3,1e-2")
    assert ended.code == 0, ended.err
    assert "3 at once" in ended.out
    for folder in trials(ended.sweep):
        assert read(folder / "result.json")["status"] == "finished"
        assert (folder / "job-0.sbatch").exists()
        assert "exit code 0" in (folder / "logs" / "job.log").read_text()


@pytest.mark.slow
def test_a_full_queue_and_a_killed_controller_lose_and_double_nothing(
    run: Run, start: Start, here: Path, state: Path
) -> None:
    """One trial runs while its controller is killed, one was announced and never submitted."""
    slow = (
        *FAKE,
        "trainer.args.step_seconds=0.03",
        "schedule=steps",
        "schedule.max_steps=60",
        "-m",
        "lr=1e-4,1e-3",
    )
    process = start(*slow, "cluster.max_jobs=1")
    wait_for(lambda: list(here.glob("outputs/s/trials/0000-*/heartbeat")))
    process.kill()
    process.wait()
    (state / "refuse").write_text("sbatch: error: AssocMaxSubmitJobLimit")
    process = start(*slow)
    wait_for(lambda: list(here.glob("outputs/s/trials/0001-*/job-0.sbatch")))
    process.kill()
    process.wait()
    (state / "refuse").unlink()
    ended = run(*slow)
    assert ended.code == 0, ended.err
    assert len(list(state.glob("*.job"))) == 2
    for folder in trials(ended.sweep):
        assert [line["event"] for line in lines(folder / "attempts.jsonl")] == [
            "intent",
            "started",
            "ended",
        ]


@pytest.mark.slow
def test_ctrl_c_detaches(start: Start, here: Path, state: Path) -> None:
    """The job continues; the message names the way back."""
    process = start(*FAKE, "trainer.args.step_seconds=0.1", "lr=1e-3")
    wait_for(lambda: list(here.glob("outputs/s/trials/0000-*/heartbeat")))
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "the same command returns" in output
    assert "scancel 1" in output
    assert fake_slurm.jobs()[0]["state"] == "RUNNING"


def detach(start: Start, here: Path) -> None:
    """Leave a sweep ``s`` with one running job behind."""
    process = start(*FAKE, "trainer.args.step_seconds=0.1", "lr=1e-3")
    wait_for(lambda: list(here.glob("outputs/s/trials/0000-*/heartbeat")))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)


@pytest.mark.slow
def test_a_trial_that_runs_as_a_job_is_not_run_here_as_well(
    run: Run, start: Start, here: Path, state: Path
) -> None:
    """The cluster is no part of a sweep's identity, so the user may come back with another one."""
    detach(start, here)
    ended = run(
        "trainer=fake", "name=s", "cluster=local", "trainer.args.step_seconds=0.1", "lr=1e-3"
    )
    assert ended.code == 2
    assert "scancel 1" in ended.err


@pytest.mark.slow
def test_a_cancelled_sweep_can_be_resumed(run: Run, start: Start, here: Path, state: Path) -> None:
    """Its job ends, and is no failure of its trial."""
    detach(start, here)
    assert cancel_sweep("s", here / "outputs").startswith("cancelled 1 job ")
    assert fake_slurm.jobs()[0]["state"] == "CANCELLED"
    ended = run(*FAKE, "trainer.args.step_seconds=0.1", "lr=1e-3")
    assert ended.code == 0, ended.err
    assert len(list(state.glob("*.job"))) == 2


def test_cancelling_what_is_no_sweep_is_bad_input(tmp_path: Path) -> None:
    """Nothing is cancelled by accident."""
    with pytest.raises(UserError, match="no sweep"):
        cancel_sweep("nothing", tmp_path)


def test_a_dry_run_writes_everything_and_prints_the_commands(
    run: Run, here: Path, state: Path
) -> None:
    """Nothing is submitted, and the real command then submits what was written."""
    ended = run(
        "trainer=fake", "name=s", "cluster=dry_run", "cluster.gpus_per_node=0", "-m", "lr=1e-4,1e-3"
    )
    assert ended.code == 0, ended.err
    assert ended.out.count("sbatch --parsable") == 2
    assert not list(state.glob("*.job"))
    folders = trials(here / "outputs" / "s")
    assert all(
        (folder / "job-0.sbatch").exists() and not (folder / "attempts.jsonl").exists()
        for folder in folders
    )
    assert run(*FAKE, "-m", "lr=1e-4,1e-3").code == 0
    assert trials(here / "outputs" / "s") == folders


@pytest.mark.slow
def test_points_may_have_different_shapes(run: Run, state: Path) -> None:
    """A parameter may be the number of nodes; the ranks, and with them what is valid, follow."""
    ended = run(
        "trainer=fake", "name=s", "cluster=dry_run", "batch=auto", "-m", "cluster.nodes=1,2"
    )
    assert ended.code == 0, ended.err
    scripts = [(folder / "job-0.sbatch").read_text() for folder in trials(ended.sweep.parent / "s")]
    assert ["--nodes=1" in script for script in scripts] == [True, False]
    assert "--nodes=2" in scripts[1]


@pytest.mark.parametrize(
    ("shape", "offered"),
    [("nodes=1", "cluster.tasks_per_node=7."), ("nodes=2", "num_generations=8.")],
)
def test_a_job_without_gpus_is_not_offered_a_number_of_processes(
    sweep_here: Sweep, state: Path, shape: str, offered: str
) -> None:
    """It follows from the job's shape, and setting it is refused."""
    words = (
        "trainer=fake",
        "name=s",
        "cluster=slurm",
        "cluster.gpus_per_node=0",
        f"cluster.{shape}",
    )
    with pytest.raises(UserError, match=r"GB101") as caught:
        sweep_here(*words, "batch.num_generations=7")
    assert str(caught.value).endswith(offered)


@pytest.mark.parametrize(
    ("text", "status"), [("768", 768), ("3:0", 768), ("0:9", 9), ("", 0), ("None", 0)]
)
def test_exit_codes_are_read_in_both_spellings(text: str, status: int) -> None:
    """Squeue and sacct do not agree."""
    assert wait_status(text) == status
