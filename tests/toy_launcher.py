"""A controller over a launcher of the test's own: attempts do nothing but what the test says, and
the clock does not matter.
"""

import math
from functools import cache
from pathlib import Path
from typing import cast

from faults.sweeps import EASY, Remembered
from grporecipe.errors import ExitCode
from grporecipe.files import append_line, write_json
from grposweep.cli.composed import composer
from grposweep.config.compose import open_session
from grposweep.config.search_budget import Budget
from grposweep.launchers.base import End, EndState, Job, Launcher, LauncherBusy
from grposweep.search.early_stopping import StoppingPolicy
from grposweep.search.parse import parse_space, split_tokens
from grposweep.search.space import Space
from grposweep.search.validity import Validator
from grposweep.storage.folders import SweepFolder
from grposweep.storage.lease import Lease
from grposweep.sweep._controller import Controller
from grposweep.sweep._early_stopping import EarlyStoppingMonitor
from grposweep.sweep._outcomes import OutcomeRecorder
from grposweep.sweep._resume import open_study
from grposweep.sweep._spending import Spending
from grposweep.sweep._trial_queue import TrialQueue
from grposweep.train.records import MetricsFile

CROWDED = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of "
    "which 1.06 GiB is free. Process 1218 has 24.00 GiB memory in use. Including non-PyTorch "
    "memory, this process has 54.05 GiB memory in use."
)


class Died(BaseException):
    """The controller's process is gone."""


class Free:
    """A lease without competitors."""

    def check(self) -> None:
        """Still ours."""


@cache
def composed(*arguments: str) -> tuple[Space, Remembered]:
    """A space and its points, composed once."""
    with open_session() as session:
        words = [*EASY, "schedule.max_steps=8", "batch=auto", *arguments]
        space, fixed = parse_space(list(split_tokens(words)), {}, session.loader)
        return space, Remembered(composer(session.loader, "config"), fixed)


def open_controller(
    folder: SweepFolder, place: "Place", stopping: StoppingPolicy, *arguments: str
) -> Controller:
    """A controller of a grid, such as ``lr=1e-3,2e-3``, that knows nothing but the folder."""
    space, points = composed(*arguments)
    search = points.base.search
    validator = Validator(space, points)
    (folder.path / "trials").mkdir(exist_ok=True)
    study = open_study(folder, space, "maximize", search.metric)
    limit = None if search.budget is None else Budget.parse(search.budget).hours
    spending = Spending(folder, study, limit)
    queue = TrialQueue(study, validator, search, "grid", list(space.finite_points()))
    recorder = OutcomeRecorder(folder, study, validator, search, place)
    monitor = EarlyStoppingMonitor(folder, study, search, stopping)
    return Controller(
        folder, queue, recorder, place, cast(Lease, Free()), [], {}, monitor, spending
    )


class Place(Launcher):
    """A launcher whose every attempt takes an hour, and ends as the test says. It outlives
    controllers.
    """

    kind = "toy"
    outlives = True
    slots = 2

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.ends: dict[str, End] = {}
        self.is_busy = False
        # before or after the next submission
        self.dies = ""
        # whether anything may be submitted
        self.open = True
        self.budget_hours = math.inf

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
        assert self.hours < self.budget_hours, "something was started over the budget"
        running = [other.folder for other in self.alive.values()]
        assert job.folder not in running, "two jobs of one trial"
        assert not (job.folder / "control.json").exists(), "it is told to end before it begins"
        assert self.find(job, None) is None, "an attempt is submitted once"
        if self.is_busy:
            raise LauncherBusy("full")
        dies = self.dies
        self.dies = ""
        if dies == "before":
            raise Died
        self.jobs.append(job)
        if dies == "after":
            raise Died
        return f"job-{len(self.jobs) - 1}"

    def find(self, job: Job, job_id: str | None) -> str | None:
        if job_id is not None:
            return job_id
        for number, other in enumerate(self.jobs):
            if (other.folder, other.attempt) == (job.folder, job.attempt):
                return f"job-{number}"
        return None

    def poll(self, job_id: str) -> End | None:
        return self.ends.get(job_id.removeprefix("job-"))

    def waiting(self, job_id: str) -> str:
        return "" if job_id else "unknown"

    def cancel(self, job_id: str) -> None:
        self.finish(job_id.removeprefix("job-"), "cancelled")

    def evaluate(self, name: str, value: float, broken: bool = False) -> None:
        """A job trains a step, and measures what its training is worth so far."""
        job = self.jobs[int(name)]
        metrics = MetricsFile(job.folder, job.attempt)
        step = max((line["step"] for line in metrics.lines()), default=0) + 1
        if step < 8:
            metrics.write(
                "train", step, 64 * step, {"loss": math.nan if broken else 0.1, "reward": value}
            )
            metrics.write("eval", step, 64 * step, {"eval_reward": value})

    def finish(self, name: str, how: str, obeys: bool = True) -> None:
        """End a job, with the files that such an attempt leaves; ``obeys``: it stops if it was
        asked to.
        """
        if name in self.ends:
            return
        job = self.jobs[int(name)]
        for event, time in (("start", 0.0), ("end", 3600.0)):
            append_line(
                job.folder / "runs.jsonl",
                {"event": event, "attempt": job.attempt, "time": time, "devices": 1},
            )
        if how == "finished" and obeys and (job.folder / "control.json").exists():
            how = "stopped"
        self.ends[name] = _leave(job.folder, job.attempt, how)


def _leave(folder: Path, attempt: int, how: str) -> End:
    """The result of an attempt that ended in a certain way, and what its place says of it."""
    messages = {
        "crash": "a bug",
        "memory": "CUDA out of memory. Tried to allocate 2.00 GiB",
        "crowded": CROWDED,
        "unmeasured": "no evaluation reported it",
    }
    if how in messages:
        kind, code = "RuntimeError", ExitCode.FAILED
        if how == "unmeasured":
            kind, code = "unknown_metric", ExitCode.BAD_INPUT
        failure = {"kind": kind, "message": messages[how], "last_lines": []}
        write_json(
            folder / "result.json", {"status": "failed", "attempt": attempt, "failure": failure}
        )
        return End(code)
    if how in ("finished", "stopped"):
        objective = attempt / 10 + 0.1 if how == "finished" else None
        write_json(
            folder / "result.json",
            {"status": how, "attempt": attempt, "objective": objective, "step": 2},
        )
        return End(ExitCode.FINISHED if how == "finished" else ExitCode.STOPPED)
    if how == "taken":
        return End(ExitCode.FAILED, EndState.PREEMPTED, again=True)
    return End(ExitCode.FAILED, EndState.CANCELLED if how == "cancelled" else EndState.NONE)
