"""A launcher in one file: each attempt is a detached process, and a folder is the queue.

``$TOY_QUEUE`` holds a file for each job, and next to it the exit code once it has ended.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from grporecipe.errors import ExitCode, UserError
from grposweep.launchers.base import End, EndState, Job, Launcher, Scheduler, SweepJob
from grposweep.process import inherited
from grposweep.schema import Experiment

RUN = 'log=$1 code=$2; shift 2; "$@" >>"$log" 2>&1; echo $? >"$code.new"; mv "$code.new" "$code"'


def queue() -> Path:
    """Return the folder of all jobs."""
    return Path(os.environ["TOY_QUEUE"])


class ToyJobs(Scheduler):
    """The jobs in the folder."""

    kind = "toy"
    name = "the toy queue"
    job_name = "toy job"

    def may_have_started(self, trial: Path, job_id: str | None) -> bool:  # noqa: ARG002 - the contract's arguments
        return job_id is None or job_id.startswith("toy-")

    def may_have_jobs(self, sweep: Path) -> bool:
        return any('"toy-' in path.read_text() for path in sweep.glob("trials/*/attempts.jsonl"))

    def list_jobs(self, sweep: Path) -> list[SweepJob]:
        alive = (entry for entry in _jobs() if not (queue() / f"{entry['id']}.code").exists())
        return [
            SweepJob(
                entry["id"],
                folder.name,
                entry["attempt"],
                is_of_sweep=folder.is_relative_to(sweep.resolve()),
            )
            for entry in alive
            for folder in [Path(entry["folder"]).resolve()]
        ]

    def cancel_jobs(self, job_ids: Sequence[str]) -> None:
        for entry in _jobs():
            code = queue() / f"{entry['id']}.code"
            if entry["id"] in job_ids and not code.exists():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(entry["pid"], signal.SIGKILL)
                code.write_text("cancelled")

    def cancel_command(self, job_ids: Sequence[str]) -> str:
        return " ".join(["toycancel", *job_ids])


JOBS = ToyJobs()


class Toy(Launcher):
    """Runs attempts that outlive their controller."""

    kind = "toy"
    outlives = True
    scheduler = JOBS

    def __init__(self, slots: int) -> None:
        self.slots = slots

    @classmethod
    def build(cls, experiment: Experiment, sweep: Path) -> Self:  # noqa: ARG003 - the contract's arguments
        return cls(experiment.search.parallel or 2)

    @classmethod
    def validate(cls, experiment: Experiment) -> None:
        if experiment.cluster.processes > 1:
            raise UserError(
                f"cluster.processes={experiment.cluster.processes}: a toy job has one. Set it to 1."
            )

    def submit(self, job: Job) -> str:
        job_id = f"toy-{len(list(queue().glob('*.job'))) + 1}"
        (job.folder / "logs").mkdir(exist_ok=True)
        files = [str(job.folder / "logs" / "rank-0.log"), str(queue() / f"{job_id}.code")]
        process = subprocess.Popen(
            [
                "sh",
                "-c",
                RUN,
                "toy",
                *files,
                sys.executable,
                "-m",
                "grposweep.train",
                str(job.folder),
            ],
            env={**inherited(), **job.cluster.environment, "GRPOSWEEP_ATTEMPT": str(job.attempt)},
            start_new_session=True,
        )
        content = {
            "id": job_id,
            "pid": process.pid,
            "folder": str(job.folder),
            "attempt": job.attempt,
        }
        (queue() / f"{job_id}.job").write_text(json.dumps(content))
        return job_id

    def find(self, job: Job, job_id: str | None) -> str | None:
        if job_id is not None:
            return job_id if job_id.startswith("toy-") else None
        same = (
            entry
            for entry in _jobs()
            if (entry["folder"], entry["attempt"]) == (str(job.folder), job.attempt)
        )
        return next((str(entry["id"]) for entry in same), None)

    def poll(self, job_id: str) -> End | None:
        code = queue() / f"{job_id}.code"
        if not code.exists():
            return None
        if code.read_text() == "cancelled":
            return End(ExitCode.FAILED, EndState.CANCELLED)
        return End(int(code.read_text()))

    def cancel(self, job_id: str) -> None:
        JOBS.cancel_jobs([job_id])


def _jobs() -> Iterator[dict[str, Any]]:
    return (json.loads(path.read_text()) for path in sorted(queue().glob("*.job")))
