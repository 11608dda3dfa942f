"""Run attempts as Slurm jobs, which continue without their controller.

One reading of the queue serves all jobs. It happens every ``cluster.poll_seconds``, and soon after
a result appears on disk.
"""

import re
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

from grporecipe.errors import UserError
from grposweep.launchers.base import (
    Description,
    End,
    Job,
    Launcher,
    LauncherBusy,
    LauncherUnreachable,
    Preparation,
    limit_requeues,
    note_cancelled,
)
from grposweep.launchers.slurm import _commands as commands
from grposweep.launchers.slurm._commands import HOPELESS, LOG_PATTERNS, VANISHED, JobInfo, end_of
from grposweep.launchers.slurm._scheduler import SlurmScheduler, check_installed, code_for
from grposweep.launchers.slurm._script import (
    SBATCH_VARIABLES,
    attempt_name,
    warn_seconds,
    write_script,
)
from grposweep.launchers.slurm._sweep_jobs import (
    SlurmPreparation,
    hands_over,
    submit_controller,
)
from grposweep.process import SOURCE, SpawnedProcesses
from grposweep.schema import Cluster, Experiment, Generation, Jobs, starts_own_server
from grposweep.storage.folders import TrialFolder
from grposweep.storage.records import Action, ControlRequest
from grposweep.storage.results import TrialResult, TrialStatus

# a submission whose controller was killed in the middle of it shows up within this time
SETTLE_SECONDS = 1.0
# readings that must agree that a job can never start
CERTAIN = 2
# between two looks for results on disk, and two readings of the queue because of them
NEWS_SECONDS = 2.0
# until a client of NFS shows a file that another node wrote: nfs(5), acdirmax
LATE_SECONDS = 60.0


@dataclass
class _Followed:
    """A job that is polled."""

    job: Job
    # time.monotonic() at submission
    since: float
    last: JobInfo | None = None
    # successive readings with one of the reasons for which a job never starts
    hopeless: int = 0
    # time.monotonic() when its end was first seen
    ended: float | None = None


class Slurm(Launcher):
    """Submits attempts as jobs of this user, at most ``slots`` of a sweep at once."""

    kind = "slurm"
    section = Jobs
    outlives = True
    ranks_follow = True
    scheduler = SlurmScheduler()
    log_patterns = LOG_PATTERNS

    def __init__(self, sweep: Path, cluster: Cluster, slots: int, code: Path) -> None:
        """``code`` is the folder whose grposweep the jobs run."""
        self.slots = slots
        self._code = code
        self._sweep = sweep
        self._cluster = cluster
        self._news_seconds = min(NEWS_SECONDS, cluster.poll_seconds)
        self._jobs: dict[str, _Followed] = {}
        self._read_at = -cluster.poll_seconds
        self._looked_at = 0.0
        if hands_over(cluster):
            self.submit_controller = partial(submit_controller, cluster, sweep)

    @classmethod
    def build(cls, experiment: Experiment, sweep: Path) -> Self:
        """Return the launcher of a sweep.

        Raises UserError if this machine has no Slurm; a scheduler that does not answer now may do
        so later.
        """
        cluster = experiment.cluster
        parallel = experiment.search.parallel
        check_installed()
        slots = cluster.max_jobs if parallel is None else min(parallel, cluster.max_jobs)
        return cls(sweep, cluster, slots, code_for(cluster, sweep))

    @classmethod
    def validate(cls, experiment: Experiment) -> None:
        """Raise UserError if a job's shape contradicts its ranks or its server, or a line cannot
        stand in a script.
        """
        cluster = experiment.cluster
        _check_server(cluster, experiment.generation)
        _check_shape(cluster, experiment.generation)
        for name in (*SBATCH_VARIABLES, "service_partition", "service_account", "service_qos"):
            value = getattr(cluster, name)
            if value is not None and not re.fullmatch(r"[^\s\0]+", value):
                raise UserError(
                    f"cluster.{name}={value!r}: a job script has it in one line as one word, and "
                    "what follows a blank or a line break would be another option or a command. "
                    "Set a value without them, or null for the cluster's default."
                )
        for option in (*cluster.extra, *cluster.container):
            if not option.startswith("-") or "\n" in option:
                raise UserError(
                    f"cluster.extra={option!r}: options of sbatch and srun begin with a dash and "
                    "take one line each. Set for example cluster.extra=[--exclusive]."
                )
        if cluster.gres_type is not None and not re.fullmatch(r"[\w.-]+", cluster.gres_type):
            raise UserError(
                f"cluster.gres_type={cluster.gres_type}: this is the word between the colons of "
                "--gres=gpu:TYPE:N. Set one that "
                "sinfo --format=%G lists, such as cluster.gres_type=a100."
            )

    @classmethod
    def describe(cls, cluster: Cluster) -> Description:
        """Return the job's GPUs, those of a vLLM server among them, and when Slurm warns a job.

        Jobs may run another interpreter, or in a container.
        """
        return Description(
            devices=cluster.nodes * cluster.gpus_per_node or cluster.processes,
            warning_seconds=None if cluster.walltime_min is None else warn_seconds(cluster),
            has_own_environment=cluster.python is not None or bool(cluster.container),
        )

    def submit(self, job: Job) -> str:
        """Write the script and submit it."""
        job_id = commands.submit_script(write_script(job, self._sweep, self._code), job.cluster)
        self._jobs[job_id] = _Followed(job, time.monotonic())
        return job_id

    def find(self, job: Job, job_id: str | None) -> str | None:
        """Return a job by its id, or by the name that only this attempt has."""
        if job_id is None:
            job_id = self._find_by_name(attempt_name(job, self._sweep))
        # none, or another launcher's attempt
        if job_id is None or not job_id.isdigit():
            return None
        self._jobs[job_id] = _Followed(job, time.monotonic())
        return job_id

    def poll(self, job_id: str) -> End | None:
        """Return None while the job waits or runs, and while the scheduler does not answer."""
        self._refresh()
        followed = self._jobs[job_id]
        last = followed.last
        if last is None or last.is_alive:
            self._refuse_hopeless(followed)
            return None
        status = _status(followed.job)
        followed.ended = followed.ended or time.monotonic()
        is_late = last.state == "COMPLETED" and time.monotonic() - followed.ended < LATE_SECONDS
        # this node may not see the result of a job with exit code 0 yet
        if status is None and is_late:
            return None
        del self._jobs[job_id]
        is_asked = ControlRequest.read(followed.job.folder).action != Action.RUN
        end = end_of(last, status, is_asked)
        # "None assigned"
        nodes = "" if last.nodes.startswith("None") else last.nodes
        return replace(limit_requeues(end, followed.job), nodes=nodes)

    def waiting(self, job_id: str) -> str:
        """Return Slurm's state and reason, such as ``pending (Resources)``."""
        last = self._jobs[job_id].last if job_id in self._jobs else None
        if last is None:
            return "submitted"
        if last.state == "RUNNING":
            return ""
        reason = "" if last.reason in ("", "None") else f" ({last.reason})"
        return f"{last.state.lower()}{reason}"

    def cancel(self, job_id: str) -> None:
        """End a job through scancel."""
        commands.cancel_jobs([job_id])

    def preparation(self, cluster: Cluster) -> Preparation:
        """Return a process of this machine, or with ``cluster.prepare=job`` a job."""
        if cluster.prepare == "job":
            return SlurmPreparation(cluster, self._code)
        return Preparation(SpawnedProcesses(Path(cluster.code or SOURCE)), cluster.environment)

    def _find_by_name(self, name: str) -> str | None:
        """Return the job of this name, by two queries, because its submission may still be under
        way.
        """
        for pause in (SETTLE_SECONDS, 0.0):
            try:
                job_ids = [job.job_id for job in commands.read_queue().values() if job.name == name]
            except LauncherUnreachable as error:
                # Submitting now might run the trial twice.
                raise LauncherBusy(f"Slurm does not answer ({error}); trying again") from error
            if job_ids := job_ids or list(commands.read_accounts([], name)):
                return max(job_ids, key=int)
            time.sleep(pause)
        return None

    def _refresh(self) -> None:
        """Read the queue when it is due, for all jobs at once."""
        now = time.monotonic()
        if now - self._read_at < self._cluster.poll_seconds and not self._has_news(now):
            return
        self._read_at = now
        try:
            jobs = commands.read_queue()
        except LauncherUnreachable:
            # what it said before still holds
            return
        lost = [
            job_id
            for job_id, followed in self._jobs.items()
            if job_id not in jobs
            and followed.since < now
            and (followed.last is None or followed.last.is_alive)
        ]
        if lost:
            jobs |= commands.read_accounts(lost)
        for job_id, followed in self._jobs.items():
            if job_id in jobs:
                followed.last = last = jobs[job_id]
                is_hopeless = last.state == "PENDING" and last.reason in HOPELESS
                followed.hopeless = followed.hopeless + 1 if is_hopeless else 0
            elif job_id in lost:
                followed.last = JobInfo(job_id, VANISHED)

    def _has_news(self, now: float) -> bool:
        """Return whether a job has left a result that the queue does not reflect yet; looks every
        few seconds.
        """
        if now - max(self._looked_at, self._read_at) < self._news_seconds:
            return False
        self._looked_at = now
        news = (TrialStatus.FINISHED, TrialStatus.FAILED)
        return any(_status(followed.job) in news for followed in self._jobs.values())

    def _refuse_hopeless(self, followed: _Followed) -> None:
        """Cancel a job that can never start, and raise UserError. Slurm must say so twice: its
        first answer may be hasty.
        """
        last = followed.last
        if last is None or followed.hopeless < CERTAIN:
            return
        commands.cancel_jobs([last.job_id])
        note_cancelled(TrialFolder(followed.job.folder), followed.job.attempt)
        key = HOPELESS[last.reason]
        raise UserError(
            f"cluster.{key}={getattr(followed.job.cluster, key)}: Slurm took job {last.job_id} and "
            f"would never start it ({last.reason}), so it was cancelled. Set another "
            f"cluster.{key}, a smaller job, or another cluster.partition."
        )


def _status(job: Job) -> TrialStatus | None:
    """Return the status in the result of this attempt, or of a restart of its job."""
    result = TrialResult.read(job.folder)
    is_older = result.attempt is not None and result.attempt < job.attempt
    return None if is_older else result.status


def _check_server(cluster: Cluster, generation: Generation) -> None:
    """Raise UserError if a vLLM server is wanted and no GPU of the job is left for it."""
    gpus = generation.vllm_gpus
    is_served = starts_own_server(generation)
    if is_served and gpus and not cluster.gpus_per_node:
        raise UserError(
            f"generation.vllm_gpus={gpus}: a job with cluster.gpus_per_node=0 has none. Set how "
            "many GPUs a node has."
        )
    if is_served and not gpus:
        raise UserError(
            "generation.vllm_gpus=0: no GPU is left for the vLLM server. Set how many of the job's "
            "GPUs it gets, or generation.vllm_server_base_url to one that runs already."
        )


def _check_shape(cluster: Cluster, generation: Generation) -> None:
    """Raise UserError if the number of ranks does not follow from the job's shape."""
    each = cluster.gpus_per_node or cluster.tasks_per_node
    ranks = max(cluster.nodes * each - generation.vllm_gpus, 1)
    if cluster.processes == ranks:
        return
    key, rank = "tasks_per_node", "task"
    if cluster.gpus_per_node:
        key, rank = "gpus_per_node", "GPU"
    served = ""
    if generation.vllm_gpus:
        served = f", of which generation.vllm_gpus={generation.vllm_gpus} run the server"
    raise UserError(
        f"cluster.processes={cluster.processes}: on Slurm this follows from "
        f"cluster.nodes={cluster.nodes} and cluster.{key}={each}, one rank per "
        f"{rank}{served}, which makes {ranks}. Set those, "
        "and leave cluster.processes out."
    )
