"""When a controller has nothing left to do, and whom it watches, over a launcher of the test's
own.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from optuna.trial import TrialState

from grporecipe.errors import LeaseLostError, UserError
from grporecipe.files import write_json, write_text
from grposweep.launchers.base import Description, End
from grposweep.report.view import SweepReader
from grposweep.schema import Cluster, Experiment
from grposweep.search.early_stopping import Action, Curve, Decision, State, StoppingPolicy
from grposweep.search.validity import ValidationResult, Validator
from grposweep.storage.folders import SweepFolder, TrialFolder
from grposweep.storage.lease import Lease
from grposweep.sweep import _attempts as attempts
from grposweep.sweep._attempts import HeartbeatMonitor
from grposweep.sweep._controller import Controller
from grposweep.sweep._outcomes import describe_resume
from grposweep.sweep._start import check_recorded
from grposweep.train.records import MetricsFile
from support import lines, read
from toy_launcher import Place, composed, open_controller

RATES = "lr=1e-3,2e-3,3e-3,4e-3"


class Decides(StoppingPolicy):
    """Decides the same at each evaluation, and promotes what is paused."""

    def __init__(self, action: Action) -> None:
        self.action = action

    def decide(self, curve: Curve, others: object, more: bool) -> Decision:  # noqa: ARG002 - the contract's arguments
        return Decision(self.action, f"trial {curve.number} is not needed")

    def promote(self, curves: Sequence[Curve], more: bool) -> int | None:  # noqa: ARG002 - the contract's arguments
        return next((curve.number for curve in curves if curve.state is State.PAUSED), None)


@pytest.fixture
def place() -> Place:
    """The launcher."""
    return Place()


def begin(
    place: Place, folder: Path, *words: str, policy: StoppingPolicy | None = None
) -> Controller:
    """A controller that has started its first trials."""
    controller = open_controller(
        SweepFolder(folder), place, policy or StoppingPolicy(), *(words or [RATES])
    )
    controller.tick()
    return controller


def test_a_sweep_waits_for_a_busy_place_until_it_is_stopped(place: Place, tmp_path: Path) -> None:
    """A full queue is no end of the sweep, though nothing runs. Stopped, it submits nothing."""
    controller = open_controller(SweepFolder(tmp_path), place, StoppingPolicy(), RATES)
    place.is_busy = True
    assert [controller.tick() for _ in range(3)] == [False, False, False]
    assert controller.trouble == "full"
    assert controller.outcomes.news == ["no trial can start now: full"]
    controller.stop()
    assert controller.tick()


@pytest.mark.parametrize(("size", "status"), [(2, "retried"), (1, "failed")])
def test_a_trial_without_gpu_memory_is_tried_again_only_in_smaller_micro_batches(
    place: Place, tmp_path: Path, size: int, status: str
) -> None:
    """A micro-batch of one completion cannot be split."""
    batch = (
        f"batch.per_device_train_batch_size={size}",
        "batch.gradient_accumulation_steps=8",
        "batch.num_generations=8",
        "batch.prompts_per_step=null",
    )
    controller = begin(place, tmp_path, "lr=1e-3", *batch)
    place.finish("0", "memory")
    controller.tick()
    assert read(place.jobs[0].folder / "result.json")["status"] == status
    assert len(place.jobs) == (2 if status == "retried" else 1)


def test_a_trial_that_others_crowd_out_moves_to_other_nodes_a_limited_number_of_times(
    place: Place, tmp_path: Path
) -> None:
    """A scheduler does not wait for memory. The trial keeps its micro-batch, and its failure says
    who held how much.
    """
    controller = open_controller(
        SweepFolder(tmp_path), place, StoppingPolicy(), "lr=1e-3", "cluster.requeue_limit=2"
    )
    for attempt in range(3):
        controller.tick()
        place.finish(str(attempt), "crowded")
    controller.tick()
    folder = place.jobs[0].folder
    held = "54 of the GPU's 79.1 GiB in use, 24 GiB held by process 1218, not ours"
    ends = [line for line in lines(folder / "attempts.jsonl") if line["event"] == "ended"]
    assert [end["step"] for end in ends] == ["elsewhere", "elsewhere", "fail"]
    # what was free did not suffice
    assert [end["needs_gib"] for end in ends] == [
        56.05,
        pytest.approx(61.655),
        pytest.approx(67.82, abs=0.01),
    ]
    assert read(folder / "result.json")["failure"]["message"] == f"out of GPU memory: {held}"
    assert (
        controller.outcomes.news[0]
        == f"trial 0: out of GPU memory: {held}; it has no checkpoint yet and starts over"
    )
    assert not (folder / "healed.json").exists()
    assert not (tmp_path / "memory.jsonl").exists()


def test_a_resumed_sweep_names_the_trials_that_start_over(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two were stopped after four steps; one had saved a checkpoint by then."""
    controller = begin(place, tmp_path)
    for number, job in enumerate(place.jobs):
        write_json(job.folder / "heartbeat", {"step": 4})
        place.finish(str(number), "cancelled")
    saved = place.jobs[1].folder / "checkpoints"
    for step in (2, 3):
        (saved / f"checkpoint-{step}").mkdir(parents=True)
    write_json(saved / "checkpoint-2/fake.json", {"step": 2})
    controller.kill()
    controller.tick()
    again = open_controller(SweepFolder(tmp_path), place, StoppingPolicy(), RATES)
    caplog.set_level("INFO")
    again.tick()
    assert again.outcomes.news == [
        "trial 0: it has no checkpoint yet and starts over",
        "trial 1: it continues from its last checkpoint (step 2), because checkpoint-3 cannot be read "
        "(it holds no optimizer state of a known kind)",
    ]
    assert "resume: it continues" in caplog.text


def test_what_another_program_resumes_from_is_not_claimed(tmp_path: Path) -> None:
    """Only it knows which of its files it reads."""
    (tmp_path / "model/checkpoint-3").mkdir(parents=True)
    experiment = Experiment()
    experiment.trainer.kind = "command"
    verdict = cast(ValidationResult, SimpleNamespace(experiment=experiment))
    told = describe_resume(TrialFolder(tmp_path), verdict)
    assert "an earlier checkpoint or starts over, because checkpoint-3 cannot be read" in told


@pytest.mark.parametrize("action", [Action.PAUSE, Action.STOP])
def test_a_request_that_comes_after_the_end_of_a_trial_changes_nothing(
    place: Place, tmp_path: Path, action: Action
) -> None:
    """A shared file system may show an evaluation, and the result of the job that has ended a
    minute later.
    """
    folder = SweepFolder(tmp_path)
    controller = open_controller(folder, place, Decides(action), "lr=1e-3")
    controller.tick()
    place.evaluate("0", 0.5)
    controller.tick()
    assert (place.jobs[0].folder / "control.json").exists()
    place.finish("0", "finished", obeys=False)
    assert controller.tick()
    again = open_controller(folder, place, Decides(action), "lr=1e-3")
    assert again.tick()
    for one in (controller, again):
        (trial,) = one.study.trials
        assert (trial.state, trial.value) == (TrialState.COMPLETE, 0.1)
    assert len(place.jobs) == 1
    write_text(tmp_path / "sweep.yaml", "search: {metric: eval_reward}")
    (shown,) = SweepReader(folder).read().trials
    assert shown.state.name == "FINISHED"


@pytest.mark.parametrize("finished", [False, True])
def test_an_objective_that_a_trial_does_not_report_ends_the_sweep_unless_another_trial_has(
    place: Place, tmp_path: Path, finished: bool
) -> None:
    """One message for the sweep, not one for each of three trials."""
    controller = begin(place, tmp_path)
    if finished:
        place.finish("0", "finished")
        controller.tick()
    place.finish("1", "unmeasured")
    controller.tick()
    assert ("trial 1 does not report search.metric" in controller.outcomes.halted) != finished
    assert len(place.jobs) == (4 if finished else 2)


def test_a_sweep_that_stopped_itself_does_not_wait_for_a_busy_place(
    place: Place, tmp_path: Path
) -> None:
    """Three trials have failed alike while the place takes no fourth."""
    controller = begin(place, tmp_path)
    place.finish("0", "crash")
    controller.tick()
    place.is_busy = True
    place.finish("1", "crash")
    assert not controller.tick()
    place.finish("2", "crash")
    assert controller.tick()
    assert controller.stopped_itself


def test_curves_are_judged_until_the_sweep_is_asked_to_stop(place: Place, tmp_path: Path) -> None:
    """Afterwards every attempt ends at its next boundary, and continues with the next
    controller.
    """
    controller = begin(place, tmp_path, policy=Decides(Action.STOP))
    place.evaluate("0", 0.5)
    controller.tick()
    first, second = (job.folder / "control.json" for job in place.jobs)
    asked = read(first)
    assert (asked["action"], asked["reason"]) == ("prune", "trial 0 is not needed")
    assert not second.exists()
    controller.stop()
    place.evaluate("1", 0.5)
    controller.tick()
    assert read(second)["action"] == "stop"


class Warns(Place):
    """Its jobs have a time limit, and are warned two minutes before."""

    @classmethod
    def describe(cls, cluster: Cluster) -> Description:
        return Description(cluster.processes, warning_seconds=120)


@pytest.mark.parametrize(("seconds", "said"), [(60.0, 0), (200.0, 1)])
def test_a_warning_that_comes_too_late_for_a_rollout_is_printed_once(
    tmp_path: Path, seconds: float, said: int
) -> None:
    """As soon as it is known how long one takes; the first one does not count."""
    place = Warns()
    controller = begin(place, tmp_path)
    for step, each in enumerate((900.0, seconds, seconds), start=1):
        for job in place.alive.values():
            MetricsFile(job.folder, 0).write(
                "train", step, 64 * step, {"loss": 0.1, "time/step": each}
            )
            write_json(job.folder / "heartbeat", {"step": step})
        controller.tick()
    found = [line for line in controller.outcomes.news if "cluster.warn_seconds=300" in line]
    assert len(found) == said


def test_an_unfinished_trial_continues_with_the_values_that_it_was_recorded_with(
    place: Place, tmp_path: Path
) -> None:
    """An option of a searched group may stand for other values in another release; more processes
    are the user's choice.
    """
    folder = SweepFolder(tmp_path)
    controller = begin(place, tmp_path)
    check_recorded(
        folder,
        controller.study,
        Validator(*composed(RATES, "cluster.processes=2", "cluster.warm=false")),
    )
    with pytest.raises(UserError, match=r"trial 0 \(lr=0\.001\) was recorded with other values"):
        check_recorded(folder, controller.study, Validator(*composed(RATES, "model.dtype=auto")))


@pytest.mark.slow
def test_an_edited_option_does_not_rank_among_trials_that_finished_with_the_old_one(
    place: Place, tmp_path: Path
) -> None:
    """Its label would stand for two configurations in one study."""
    folder = SweepFolder(tmp_path)
    words = "kl=low,high"
    controller = open_controller(folder, place, StoppingPolicy(), words)
    controller.tick()
    for name in ("0", "1"):
        place.finish(name, "finished")
    assert controller.tick()
    check_recorded(folder, controller.study, Validator(*composed(words)))
    with pytest.raises(
        UserError, match=r"trial 0 \(kl=low\) was recorded .* \(kl\.beta=0\.001 there, 0\.7 here\)"
    ):
        check_recorded(folder, controller.study, Validator(*composed(words, "kl.beta=0.7")))


def test_an_attempt_that_signal_9_ended_says_what_usually_sends_it(
    place: Place, tmp_path: Path
) -> None:
    """It leaves no result, and its log has no error."""
    controller = begin(place, tmp_path, "lr=1e-3")
    place.ends["0"] = End(-9)
    controller.tick()
    failure = read(place.jobs[0].folder / "result.json")["failure"]
    assert (failure["kind"], failure["class"]) == ("signal 9", "killed")
    assert failure["message"].startswith(
        "killed (signal 9), usually by the kernel when memory ran out"
    )


def test_a_trial_whose_folder_is_removed_begins_again(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its attempt is ended, the others continue, and the user is told once."""
    # it leaves no files
    monkeypatch.setattr(place, "cancel", lambda _: place.ends.update({"0": End(-9)}))
    monkeypatch.setattr(
        place, "submit", lambda job: place.jobs.append(job) or f"job-{len(place.jobs) - 1}"
    )
    controller = begin(place, tmp_path)
    folder = controller.running[0].folder
    shutil.rmtree(folder.path)
    controller.tick()
    controller.tick()
    assert place.alive["2"].folder == folder.path
    told = "\n".join(controller.outcomes.news)
    assert told.count("was removed; the trial starts from the beginning") == 1
    for name in list(place.alive):
        place.finish(name, "finished")
    controller.tick()
    assert folder.result.value is not None


def test_a_controller_that_was_replaced_while_it_wrote_a_folder_submits_nothing(
    place: Place, tmp_path: Path
) -> None:
    """The disk stalled for so long that another controller took over."""
    controller = open_controller(SweepFolder(tmp_path), place, StoppingPolicy(), RATES)

    class Lost:
        def check(self) -> None:
            if list(tmp_path.glob("trials/*/config.yaml")):
                raise LeaseLostError("taken over")

    controller.lease = cast(Lease, Lost())
    with pytest.raises(LeaseLostError):
        controller.tick()
    assert place.jobs == []


def test_silence_counts_only_while_the_controller_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Suspended for hours, or held by a file system that stalled for both, it has not seen the
    attempt be silent.
    """
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(attempts, "time", clock)
    monitor = HeartbeatMonitor(tmp_path / "heartbeat", looked=0.0)
    seconds = []
    for now in (1.0, 30.0, 7230.0, 7240.0):
        clock.monotonic = lambda now=now: now
        assert not monitor.look(waits=False)
        seconds.append(monitor.still_seconds)
    assert seconds == [1.0, 30.0, 90.0, 100.0]
    (tmp_path / "heartbeat").write_text("{}")
    assert monitor.look(waits=False)
    assert monitor.still_seconds == 0.0
    clock.monotonic = lambda: 7250.0
    assert monitor.look(waits=True)
    assert monitor.still_seconds == 0.0
