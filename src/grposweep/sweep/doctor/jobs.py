"""Which of a sweep's attempts still run, where no controller is at work."""

from functools import cached_property
from pathlib import Path

from grposweep.config.schema import Cluster
from grposweep.launch import queue
from grposweep.launch.base import Job
from grposweep.launch.script import job_name
from grposweep.launch.states import ALIVE
from grposweep.sweep.folder import Begun, TrialFolder


class Jobs:
    """The queue, read once and only where somebody asks for a Slurm job."""

    def __init__(self, sweep: Path) -> None:
        self._sweep = sweep

    def runs(self, trial: TrialFolder, begun: Begun) -> bool | None:
        """Whether an open attempt waits or runs; None where Slurm does not answer."""
        on_slurm = begun.job_id.isdigit() if begun.job_id else any(trial.path.glob("job-*.sbatch"))
        if not on_slurm:
            return False  # what runs on this machine ends with its controller
        if self._queue is None:
            return None
        name = job_name(Job(trial.path, begun.number, Cluster()), self._sweep)
        return any(
            entry.state in ALIVE and (entry.job_id == begun.job_id or entry.name == name)
            for entry in self._queue.values()
        )

    @cached_property
    def _queue(self) -> dict[str, queue.Entry] | None:
        try:
            return queue.read_queue()
        except queue.Unreachable:
            return None
