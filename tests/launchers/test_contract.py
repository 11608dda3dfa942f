"""What every launcher promises, for each of them; and a sweep over one that this suite registers by
a line.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import fake_slurm
import pytest

from command_server import share_warm_server
from grporecipe.errors import ExitCode, UserError
from grporecipe.files import append_line, read_json, write_json
from grposweep.config.compose import render_experiment
from grposweep.config.validate import check_place
from grposweep.launchers import build_launcher, cancel_sweep, is_running, launcher_class, schedulers
from grposweep.launchers.base import End, EndState, Job, Launcher
from grposweep.report.view import read_sweep
from grposweep.schema import Cluster, Experiment
from grposweep.schema.registries import LAUNCHERS
from in_process import Sweep
from support import Printed, check_experiment, lines, read, trials, wait_for

NO_JOB = "has no job that waits or runs"


@dataclass
class Place:
    """One launcher under test, and the sweep ``s`` whose attempts it runs."""

    kind: str
    outputs: Path
    opened: list[Launcher] = field(default_factory=list)

    @property
    def sweep(self) -> Path:
        """The sweep's folder."""
        return self.outputs / "s"

    def experiment(self, **cluster: object) -> Experiment:
        """A configuration for it: the fake trainer, 50 steps."""
        experiment = Experiment()
        experiment.trainer.kind = "fake"
        experiment.batch.per_device_train_batch_size = (
            experiment.batch.gradient_accumulation_steps
        ) = 8
        experiment.schedule.max_steps = 50
        experiment.search.parallel = 2
        cluster = {
            "kind": self.kind,
            "poll_seconds": 0.0,
            "snapshot": False,
            "warm": self.kind == "local",
            "gpus": 0,
            **cluster,
        }
        for name, value in cluster.items():
            setattr(experiment.cluster, name, value)
        return experiment

    def controller(self, **cluster: object) -> Launcher:
        """The launcher of another controller."""
        self.opened.append(build_launcher(self.experiment(**cluster), self.sweep))
        return self.opened[-1]

    def job(self, number: int = 0, processes: int = 1, **fake: object) -> Job:
        """The first attempt of a trial, announced; ``processes`` as in its configuration."""
        experiment = self.experiment()
        for name, value in fake.items():
            experiment.trainer.args[name] = value
        folder = self.sweep / "trials" / f"{number:04d}-abcdef"
        folder.mkdir(parents=True)
        (self.sweep / "sweep.yaml").write_text("v: 1\n")
        text = render_experiment(experiment)
        (folder / "config.yaml").write_text(
            text.replace("  processes: 1\n", f"  processes: {processes}\n")
        )
        append_line(folder / "attempts.jsonl", {"attempt": 0, "event": "intent"})
        return Job(folder, 0, experiment.cluster)

    def start(self, launcher: Launcher, job: Job) -> str:
        """Submit an attempt and note its id, as a controller does; returns when it trains."""
        job_id = launcher.submit(job)
        append_line(
            job.folder / "attempts.jsonl", {"attempt": 0, "event": "started", "job_id": job_id}
        )
        wait_for((job.folder / "heartbeat").exists)
        return job_id


@pytest.fixture(params=["local", "toy", pytest.param("slurm", marks=pytest.mark.slow)])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """Each launcher that runs attempts, on the fake Slurm and the toy queue."""
    share_warm_server(monkeypatch)
    for needed in ("state", "toy"):
        request.getfixturevalue(needed)
    place = Place(request.param, tmp_path / "outputs")
    yield place
    for launcher in place.opened:
        launcher.close()


def end_of(launcher: Launcher, job_id: str) -> End:
    """How an attempt ended, once it has."""
    ends: list[End] = []
    wait_for(lambda: (end := launcher.poll(job_id)) is not None and not ends.append(end))
    return ends[0]


def test_an_attempt_ends_with_the_code_of_its_worker(place: Place) -> None:
    """Finished, crashed, stopped when asked, bad input: told apart by code, none of them taken
    away.
    """
    jobs = [
        place.job(0),
        place.job(1, crash_at=3),
        place.job(2, step_seconds=0.02),
        place.job(3, processes=2),
    ]
    write_json(jobs[2].folder / "control.json", {"action": "stop"})
    launcher = place.controller()
    ends = [end_of(launcher, job_id) for job_id in [launcher.submit(job) for job in jobs]]
    assert [end.code for end in ends] == [
        ExitCode.FINISHED,
        ExitCode.FAILED,
        ExitCode.STOPPED,
        ExitCode.BAD_INPUT,
    ]
    assert [(end.kind, end.again) for end in ends] == [(EndState.NONE, False)] * 4
    assert [(read_json(job.folder / "result.json") or {}).get("status") for job in jobs] == [
        "finished",
        "failed",
        "stopped",
        "failed",
    ]
    assert "staged" in (jobs[1].folder / "logs" / "rank-0.log").read_text()


def test_a_cancelled_attempt_ends_alone(place: Place) -> None:
    """It hangs and is killed; the other one continues to its end, and cancelling what has ended is
    no error.
    """
    launcher = place.controller()
    hanging = place.start(launcher, place.job(0, hang_at=2))
    other = place.start(launcher, place.job(1))
    assert launcher.poll(hanging) is None
    assert launcher.waiting(hanging) == ""
    launcher.cancel(hanging)
    end = end_of(launcher, hanging)
    assert end.code not in (ExitCode.FINISHED, ExitCode.STOPPED)
    assert end.kind in (EndState.NONE, EndState.CANCELLED)
    assert end_of(launcher, other).code == ExitCode.FINISHED
    launcher.cancel(other)


def test_a_later_controller_finds_what_outlives_the_first(place: Place) -> None:
    """By its id, or by the attempt alone where the id was never noted; nothing else, and nothing
    that has ended with it.
    """
    first = place.controller()
    job = place.job(step_seconds=0.02)
    job_id = place.start(first, job)
    # what the death of a controller does
    first.close()
    later = place.controller()
    if not first.outlives:
        assert later.find(job, job_id) is None
        return
    assert (later.find(job, job_id), later.find(job, None)) == (job_id, job_id)
    assert later.find(Job(job.folder, 1, job.cluster), None) is None
    assert end_of(later, job_id).code == ExitCode.FINISHED


def test_another_launchers_attempt_is_not_found(place: Place) -> None:
    """Each knows its own ids."""
    ids = {"local": "local-12", "slurm": "12", "toy": "toy-12"}
    launcher = place.controller()
    job = place.job()
    assert [launcher.find(job, ids[kind]) for kind in ids if kind != place.kind] == [None, None]
    owners = {
        kind: [owner.kind for owner in schedulers() if owner.may_have_started(job.folder, job_id)]
        for kind, job_id in ids.items()
    }
    assert owners == {"local": [], "slurm": ["slurm"], "toy": ["toy"]}


def test_cancelling_a_sweep_ends_its_jobs_and_no_others(place: Place) -> None:
    """Their ends are noted; where nothing outlives its controller, one message says that there are
    no jobs.
    """
    launcher = place.controller()
    other = Place(place.kind, place.outputs / "others")
    job = place.job(hang_at=2)
    job_id = place.start(launcher, job)
    place.opened.append(strange := other.controller())
    strange_id = other.start(strange, other.job(hang_at=2))
    message = cancel_sweep("s", place.outputs)
    if not launcher.outlives:
        assert NO_JOB in message
        return
    assert message.startswith("cancelled 1 job ")
    assert end_of(launcher, job_id).kind == EndState.CANCELLED
    assert lines(job.folder / "attempts.jsonl")[-1]["kind"] == "cancelled"
    assert strange.poll(strange_id) is None
    assert NO_JOB in cancel_sweep("s", place.outputs)


def test_whether_an_open_attempt_runs_is_known_without_its_controller(place: Place) -> None:
    """A job is known by its attempt as well as by its id."""
    launcher = place.controller()
    job = place.job(hang_at=2)
    job_id = place.start(launcher, job)
    scheduler = launcher.scheduler
    assert (scheduler is not None) is launcher.outlives
    if scheduler is None:
        return
    assert is_running(scheduler, job.folder, 0, job_id)
    assert is_running(scheduler, job.folder, 0, None)
    assert not is_running(scheduler, job.folder, 1, None)
    launcher.cancel(job_id)
    assert end_of(launcher, job_id)
    assert not is_running(scheduler, job.folder, 0, job_id)


def test_what_cannot_work_is_refused_by_its_launcher(place: Place) -> None:
    """Before anything starts: the configuration alone, or this machine."""
    broken = place.experiment(processes=3, nodes=2)
    words = {"local": "local: a trial", "slurm": "makes 2", "toy": "a toy job has one"}
    check_experiment(place.experiment())
    if place.kind == "local":
        # only this machine can tell
        check_experiment(broken)
        return
    with pytest.raises(UserError, match=words[place.kind]):
        check_experiment(broken)


def test_detaching_says_what_continues(place: Place) -> None:
    """With the command that ends it; what ends with its controller leaves nothing to say."""
    message = place.controller().detach_message(["toy-3", "toy-4"])
    ids = "toy-3 toy-4"
    assert (ids in message and "detached" in message) is launcher_class(place.kind).outlives


def test_the_controller_is_a_job_where_a_launcher_submits_it(place: Place, state: Path) -> None:
    """Slurm does: once, however often it is asked, and cancelling the sweep ends it."""
    submit = place.controller(controller="job").submit_controller
    assert (submit is not None) is (place.kind == "slurm")
    place.job()
    if submit is None:
        return
    assert submit(["sleep", "60"]).startswith("the controller is Slurm job 1; ")
    assert submit(["sleep", "60"]).startswith("the controller is Slurm job 1 already")
    assert cancel_sweep("s", place.outputs).startswith("cancelled 1 job ")
    assert fake_slurm.jobs()[0]["state"] == "CANCELLED"
    assert state.exists()


@pytest.mark.slow
def test_models_and_data_are_prepared(place: Place) -> None:
    """Here or in a job, with the preparation's own exit code."""
    place.job()
    (place.sweep / "prepare").mkdir()
    preparer = place.controller().preparation(place.experiment(prepare="job").cluster)
    preparer.start(place.sweep, place.sweep / "prepare" / "log")
    codes: list[int] = []
    wait_for(lambda: (code := preparer.poll()) is not None and not codes.append(code))
    assert codes == [ExitCode.FINISHED]
    assert ("Slurm job" in preparer.where) is (place.kind == "slurm")


def test_a_dry_run_writes_and_starts_nothing(state: Path, tmp_path: Path, printed: Printed) -> None:
    """Its command is printed; no sweep has a job of it."""
    place = Place("dry_run", tmp_path / "outputs")
    launcher = place.controller()
    job = place.job()
    job_id = launcher.submit(job)
    assert launcher.is_dry
    assert "sbatch --parsable" in printed()
    assert (job.folder / "job-0.sbatch").is_file()
    assert (launcher.poll(job_id), launcher.find(job, None)) == (None, None)
    assert "none is submitted" in launcher.detach_message([job_id])
    assert not list(state.glob("*.job"))
    with pytest.raises(UserError, match="makes 2"):
        check_experiment(place.experiment(processes=3, nodes=2))


def test_an_unknown_launcher_is_refused_with_the_names_of_all(toy: Path) -> None:
    """Those that are registered now."""
    experiment = Place("kubernetes", toy).experiment()
    with pytest.raises(UserError, match="local, slurm, dry_run, toy"):
        check_experiment(experiment)


def test_every_launcher_is_registered_under_its_own_name() -> None:
    """The line and the class agree."""
    assert {kind: launcher_class(kind).kind for kind in LAUNCHERS} == {
        kind: kind for kind in LAUNCHERS
    }


def test_a_whole_sweep_runs_on_a_launcher_that_one_line_registers(
    sweep_here: Sweep, toy: Path, printed: Printed
) -> None:
    """From the command's words to the winner, and no file is damaged."""
    folder = sweep_here("trainer=fake", "name=s", "cluster.kind=toy", "lr=1e-4,1e-3,1e-2")
    assert [read(trial / "result.json")["status"] for trial in trials(folder)] == ["finished"] * 3
    assert len(list(toy.glob("*.job"))) == 3
    assert "best: trial 1" in printed()
    assert read_sweep(folder).damage == []


def test_keys_of_slurm_do_not_train_here_unless_the_command_names_the_cluster() -> None:
    """A login node is no place to train; a study for Slurm with ``cluster=local`` is meant."""
    (problem,) = check_place(
        Cluster(partition="gpu", walltime_min=60), ["cluster.partition", "cluster.walltime_min"]
    )
    assert problem.startswith("only cluster=slurm reads cluster.walltime_min and cluster.partition")
    assert not [*check_place(Cluster(partition="gpu"), ["cluster", "cluster.partition"])]
    # from a study's file
    assert not [*check_place(Cluster(partition="gpu"), ["lr"])]
    assert not [*check_place(Cluster(kind="slurm", partition="gpu"), [])]
    assert not [*check_place(Cluster(processes=2), ["cluster.partition"])]
    assert [
        *check_place(
            Cluster(kind="slurm", gpus=2, max_jobs=4), ["cluster.gpus", "cluster.max_jobs"]
        )
    ] == ["cluster=slurm does not read cluster.gpus. Leave it out."]
