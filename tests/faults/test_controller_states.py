"""Any interleaving of ticks, ends of jobs, deaths and requests keeps what a sweep promises."""

import math
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from optuna.trial import TrialState

from grposweep.cli.run import _composer
from grposweep.config.session import open_session
from grposweep.files import append_line, write_json
from grposweep.launchers.base import End, Job, LauncherBusy
from grposweep.search.early_stopping import CONTINUE, Action, Decision
from grposweep.search.early_stopping.learning_curve import Curve, State
from grposweep.search.parse import parse_space, split_tokens
from grposweep.search.space import Space
from grposweep.search.validity import Judge
from grposweep.storage.exit_code import ExitCode
from grposweep.storage.folders import SweepFolder, TrialFolder
from grposweep.sweep.controller import Controller
from grposweep.sweep.doctor.checks import check_attempts
from grposweep.sweep.early_stopping import EarlyStoppingMonitor
from grposweep.sweep.outcomes import OutcomeRecorder
from grposweep.sweep.recovery import open_study
from grposweep.sweep.trial_queue import TrialQueue
from grposweep.train.records import Metrics

from .sweeps import EASY, Remembered

SLOTS, TARGET, BUDGET_HOURS = 2, 4, 9.0
ENDS = ("finished", "crash", "memory", "silent", "taken", "cancelled")


class Halves:
    """Pauses what is below the others' median, stops what is near nothing, promotes the best at the end if it is good."""

    def judge(self, curve: Curve, others: Sequence[Curve]) -> Decision:
        """By the last evaluation alone."""
        last = [other.held_out[-1] for other in others if other.held_out]
        if curve.held_out[-1] < 0.1:
            return Decision(Action.STOP, "next to nothing")
        return Decision(Action.PAUSE, "below the median") if last and curve.held_out[-1] < median(last) else CONTINUE

    def promote(self, curves: Sequence[Curve], more: bool) -> int | None:
        """The best of the paused ones."""
        paused = [curve for curve in curves if curve.state is State.PAUSED]
        best = max(paused, key=lambda curve: curve.held_out[-1], default=None)
        return best.number if best is not None and not more and best.held_out[-1] > 0.3 else None

    def foresee(self, curves: Sequence[Curve]) -> dict[int, float]:
        """Their last values."""
        return {curve.number: curve.held_out[-1] for curve in curves if curve.held_out}


class Died(BaseException):
    """The controller's process is gone."""


class Free:
    """A lease that nobody else wants."""

    def check(self) -> None:
        """Still ours."""


@cache
def composed() -> tuple[Space, Remembered]:
    """Four learning rates, composed once."""
    with open_session() as session:
        arguments = [
            *EASY,
            "schedule.max_steps=8",
            "batch=auto",
            "lr=1e-3,2e-3,3e-3,4e-3",
            f"search.budget_gpu_hours={BUDGET_HOURS}",
        ]
        space, fixed = parse_space(list(split_tokens(arguments)), {}, session.loader)
        return space, Remembered(_composer(session.loader, "config"), fixed)


class Jobs:
    """A place where every attempt takes an hour, and ends as the test says; it outlives controllers."""

    outlives = True
    slots = SLOTS

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.ends: dict[str, End] = {}
        self.is_busy = False
        self.dies = ""  # before or after the next submission
        self.open = True  # whether anything may be submitted

    @property
    def alive(self) -> dict[str, Job]:
        """The jobs that have not ended."""
        return {str(n): job for n, job in enumerate(self.jobs) if str(n) not in self.ends}

    @property
    def hours(self) -> float:
        """What the jobs that have ended cost."""
        return float(len(self.ends))

    def submit(self, job: Job) -> str:
        assert self.open, "something was started after a request to stop"
        assert self.hours < BUDGET_HOURS, "something was started over the budget"
        assert all(other.folder != job.folder for other in self.alive.values()), "two jobs of one trial"
        assert not (job.folder / "control.json").exists(), "it is told to end before it begins"
        assert all((other.folder, other.attempt) != (job.folder, job.attempt) for other in self.jobs)
        if self.is_busy:
            raise LauncherBusy("full")
        dies, self.dies = self.dies, ""
        if dies == "before":
            raise Died
        self.jobs.append(job)
        if dies == "after":
            raise Died
        return f"job-{len(self.jobs) - 1}"

    def find(self, job: Job, job_id: str | None) -> str | None:
        if job_id is not None:
            return job_id
        same = [n for n, other in enumerate(self.jobs) if (other.folder, other.attempt) == (job.folder, job.attempt)]
        return f"job-{same[0]}" if same else None

    def poll(self, job_id: str) -> End | None:
        return self.ends.get(job_id.removeprefix("job-"))

    def waiting(self, job_id: str) -> str:
        return "" if job_id else "unknown"

    def cancel(self, job_id: str) -> None:
        self.finish(job_id.removeprefix("job-"), "cancelled")

    def close(self) -> None:
        """Jobs go on."""

    def evaluate(self, name: str, value: float, broken: bool) -> None:
        """A job measures what its training is worth so far."""
        job = self.jobs[int(name)]
        metrics = Metrics(job.folder / "metrics.jsonl", job.attempt)
        step = max((line["step"] for line in metrics.lines()), default=0) + 1
        if step < 8:
            metrics.write("train", step, 64 * step, {"loss": math.nan if broken else 0.1, "reward": value})
            metrics.write("eval", step, 64 * step, {"eval_reward": value})

    def finish(self, name: str, how: str) -> None:
        """End a job, with the files that such an attempt leaves."""
        if name in self.ends:
            return
        job = self.jobs[int(name)]
        for event, time in (("start", 0.0), ("end", 3600.0)):
            append_line(job.folder / "runs.jsonl", {"event": event, "attempt": job.attempt, "time": time, "devices": 1})
        asked = (job.folder / "control.json").exists()
        self.ends[name] = _leave(job.folder, job.attempt, "stopped" if asked and how == "finished" else how)


def _leave(folder: Path, attempt: int, how: str) -> End:
    """The result of an attempt that ended in a certain way, and what its place says of it."""
    messages = {"crash": "a bug", "memory": "CUDA out of memory. Tried to allocate 2.00 GiB"}
    if how in messages:
        failure = {"kind": "RuntimeError", "message": messages[how], "last_lines": []}
        write_json(folder / "result.json", {"status": "failed", "attempt": attempt, "failure": failure})
        return End(ExitCode.FAILED)
    if how in ("finished", "stopped"):
        objective = attempt / 10 + 0.1 if how == "finished" else None
        write_json(folder / "result.json", {"status": how, "attempt": attempt, "objective": objective, "step": 2})
        return End(ExitCode.FINISHED if how == "finished" else ExitCode.STOPPED)
    if how == "taken":
        return End(ExitCode.FAILED, "preempted", again=True)
    return End(ExitCode.FAILED, "cancelled" if how == "cancelled" else "")


class Sweep(RuleBasedStateMachine):
    """One sweep of four trials, two at once."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = SweepFolder(Path(tempfile.mkdtemp()))
        (self.folder.path / "trials").mkdir()
        self.jobs, self.told = Jobs(), dict[int, Any]()
        self.come_back()

    @rule()
    def come_back(self) -> None:
        """The controller is gone without a word, and another one takes over."""
        space, points = composed()
        search, judge = points.base.search, Judge(space, points)
        study, _ = open_study(self.folder, space, "maximize", search.metric)
        proposals = TrialQueue(study, judge, search, "grid", list(space.finite_points()))
        settler = OutcomeRecorder(self.folder, study, judge, search)
        overseer = EarlyStoppingMonitor(self.folder, study, search, Halves())
        self.jobs.open = True
        self.controller = Controller(self.folder, proposals, settler, self.jobs, Free(), [], {}, overseer)

    @rule(dies=st.sampled_from(["", "", "before", "after"]))
    def tick(self, dies: str) -> None:
        """One look; it may die at its first submission."""
        self.controller.busy_until, self.jobs.dies = 0.0, dies
        try:
            self.controller.tick()
        except Died:
            self.come_back()

    @precondition(lambda self: self.jobs.alive)
    @rule(data=st.data(), how=st.sampled_from(ENDS))
    def job_ends(self, data: st.DataObject, how: str) -> None:
        """In any way, whether anybody looks or not."""
        self.jobs.finish(data.draw(st.sampled_from(sorted(self.jobs.alive))), how)

    @precondition(lambda self: self.jobs.alive)
    @rule(data=st.data(), value=st.sampled_from([0.05, 0.2, 0.4, 0.6]), broken=st.sampled_from([False, False, True]))
    def job_evaluates(self, data: st.DataObject, value: float, broken: bool) -> None:
        """It is better or worse than others, or has collapsed."""
        self.jobs.evaluate(data.draw(st.sampled_from(sorted(self.jobs.alive))), value, broken)

    @rule()
    def place_is_busy_or_not(self) -> None:
        """It takes nothing more, or again."""
        self.jobs.is_busy = not self.jobs.is_busy

    @rule(now=st.booleans())
    def somebody_asks_to_stop(self, now: bool) -> None:
        """At the next boundary, or now."""
        self.jobs.open = False
        if now:
            self.controller.kill()
        else:
            self.controller.stop()

    @invariant()
    def no_more_than_there_are_slots_for(self) -> None:
        """By the controller and by the place."""
        assert len(self.controller.running) <= SLOTS
        assert len(self.jobs.alive) <= SLOTS

    @invariant()
    def trials_are_distinct_and_within_the_target(self) -> None:
        """None is run for another's experiment."""
        experiments = [trial.user_attrs["experiment"] for trial in self.controller.started]
        assert len(set(experiments)) == len(experiments) <= TARGET

    @invariant()
    def what_has_ended_stays_as_it_is(self) -> None:
        """State, value and number of attempts."""
        now = {
            trial.number: (trial.state, trial.value, self.attempts(trial))
            for trial in self.controller.started
            if trial.state.is_finished()
        }
        assert {number: now.get(number) for number in self.told} == self.told
        self.told = now

    @invariant()
    def a_paused_trial_does_not_run_and_says_why(self) -> None:
        """Its promotion finds it again under any controller."""
        for number in self.controller.overseer.paused:
            folder = self.controller.trial_folder(self.controller.study.trials[number])
            assert folder.asked.action == "pause"
            assert folder.asked.reason
            assert not folder.is_done
            assert number not in self.controller.running
            assert folder.path not in {job.folder for job in self.jobs.alive.values()}

    @invariant()
    def a_trial_that_was_stopped_early_says_why(self) -> None:
        """In its result, whatever became of the attempt that was to heed it."""
        for trial in self.controller.started:
            if trial.state == TrialState.PRUNED:
                assert (self.controller.trial_folder(trial).result or {}).get("reason")

    @invariant()
    def attempts_are_noted_in_order(self) -> None:
        """As the doctor wants them."""
        for trial in self.folder.trials():
            assert [str(finding) for finding in check_attempts(trial)] == []

    def attempts(self, trial: Any) -> int:
        """How many jobs it had."""
        folder: TrialFolder = self.controller.trial_folder(trial)
        return sum(job.folder == folder.path for job in self.jobs.jobs)

    def teardown(self) -> None:
        """Left alone, every sweep comes to its end: by its target or by its budget."""
        self.jobs.is_busy = False
        for _ in range(4 * TARGET):
            self.come_back()
            self.tick("")
            for name in list(self.jobs.alive):
                self.jobs.finish(name, "finished")
            self.tick("")
        finished = sum(trial.state.is_finished() for trial in self.controller.started)
        dearest = max((self.attempts(trial) for trial in self.controller.started), default=0)
        assert finished == TARGET or self.jobs.hours + dearest >= BUDGET_HOURS
        shutil.rmtree(self.folder.path)


QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much]


class TestSomeInterleavings(Sweep.TestCase):  # type: ignore[name-defined,misc]
    """The same ones each time, in seconds."""

    settings = settings(
        max_examples=4, stateful_step_count=25, deadline=None, derandomize=True, suppress_health_check=QUIET
    )


@pytest.mark.slow
class TestManyInterleavings(Sweep.TestCase):  # type: ignore[name-defined,misc]
    """Others each time."""

    settings = settings(max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=QUIET)
