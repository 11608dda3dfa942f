"""This machine: an attempt is a group of processes, one for each rank. GPUs are divided among attempts that run at once."""

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from grposweep.errors import ExitCode, UserError
from grposweep.external.script import check_launcher
from grposweep.launchers.base import End, Job, Launcher, LauncherBusy, LocalPreparation, Preparer
from grposweep.launchers.gpus import VISIBLE, choose_gpus, gpu_order, visible_gpus
from grposweep.process import SOURCE, ForkServer, Processes, SpawnedProcesses, end_session
from grposweep.schema import Cluster, Experiment
from grposweep.storage import paths

TRAINING = ["grposweep.train.worker"]
TRL = ["torch", "transformers", "datasets", "trl", "trl.trainer.grpo_trainer", "grposweep.train.trl"]


@dataclass
class _Group:
    """The ranks of one attempt."""

    pids: list[int]
    gpus: list[int]  # places in the launcher's list
    codes: dict[int, int] = field(default_factory=dict)


class Local(Launcher):
    """Starts attempts on this machine, at most ``slots`` at once."""

    kind = "local"

    def __init__(self, processes: Processes, gpus: list[str], slots: int) -> None:
        self.slots = slots
        self.processes = processes
        self._gpus = gpus
        self._free = set(range(len(gpus)))  # places in that list
        self._groups: dict[str, _Group] = {}

    @classmethod
    def build(cls, experiment: Experiment, sweep: Path) -> Self:  # noqa: ARG003 - the contract's arguments
        """Return the launcher for this machine: without ``search.parallel`` as many trials at once as GPUs suffice for.

        Raises UserError if the GPUs asked for are not there.
        """
        gpus, parallel = visible_gpus(experiment.cluster.gpus), experiment.search.parallel
        most = max(len(gpus) // experiment.cluster.processes, 1)
        slots = parallel or most
        return cls(build_processes(experiment), gpus, min(slots, most) if gpus else slots)

    def admit(self, experiment: Experiment) -> None:
        """Raise UserError if a trial needs more GPUs than there are, or a server that nothing starts."""
        generation, needed = experiment.generation, experiment.cluster.processes
        if generation.use_vllm and generation.vllm_mode == "server" and generation.vllm_server_base_url is None:
            raise UserError(
                "generation=vllm_server: only a Slurm job starts a server beside its ranks. Set cluster=slurm, or start one "
                "yourself (trl vllm-serve) and set generation.vllm_server_base_url=http://host:8000 generation.vllm_gpus=0."
            )
        if not self._gpus:
            check_launcher(experiment.trainer, needed)
        elif len(self._gpus) < needed:
            raise UserError(
                f"cluster.processes={needed}: a trial needs a GPU a process, and this machine has {len(self._gpus)}. "
                f"Set cluster.processes={len(self._gpus)}, or cluster.gpus=0 to train on the CPU."
            )

    def submit(self, job: Job) -> str:
        """Start every rank; each writes logs/rank-N.log in the trial folder."""
        gpus = self._take_gpus(job.cluster.processes)
        processes = 1 if job.starts_ranks else job.cluster.processes
        (job.folder / paths.LOGS).mkdir(exist_ok=True)
        shared = {**job.environment, "GRPOSWEEP_ATTEMPT": str(job.attempt), "OMP_NUM_THREADS": str(job.cluster.threads)}
        if gpus:  # the whole group for every rank, as torchrun does: NCCL and vLLM look at the GPUs of other ranks
            shared |= {VISIBLE: ",".join(self._gpus[place] for place in gpus), **gpu_order()}
        if processes > 1:
            shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
            shared |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(processes))
        group = _Group([], gpus)
        for rank in range(processes):
            own = dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)) if processes > 1 else {}
            log = job.folder / paths.LOGS / f"rank-{rank}.log"
            group.pids.append(self.processes.start([str(job.folder)], {**shared, **own}, log))
        job_id = f"local-{group.pids[0]}"
        self._groups[job_id] = group
        return job_id

    def _take_gpus(self, count: int) -> list[int]:
        """Take GPUs for an attempt; none on a machine without. Raises LauncherBusy if too few are free."""
        if not self._gpus:
            return []
        if len(self._free) < count:
            raise LauncherBusy(f"a trial waits for {count} GPUs, and {len(self._free)} of {len(self._gpus)} are free")
        taken = choose_gpus(sorted(self._free), count)
        self._free.difference_update(taken)
        return taken

    def poll(self, job_id: str) -> End | None:
        """Return the worst end among the ranks once all have ended; one that crashes ends the others."""
        group = self._groups[job_id]
        for pid in group.pids:
            if pid not in group.codes and (code := self.processes.poll(pid)) is not None:
                group.codes[pid] = code
        fine = (ExitCode.FINISHED, ExitCode.STOPPED)
        first_crash = next((code for code in group.codes.values() if code not in fine), None)
        if first_crash is not None and len(group.codes) < len(group.pids):
            self.cancel(job_id)
        if len(group.codes) < len(group.pids):
            return None
        self._free.update(group.gpus)
        group.gpus = []
        return End(first_crash if first_crash is not None else max(group.codes.values()))

    def cancel(self, job_id: str) -> None:
        """Kill every rank that still runs, and its children."""
        group = self._groups[job_id]
        for pid in group.pids:
            if pid not in group.codes:
                end_session(pid)

    def close(self) -> None:
        """Kill everything that still runs."""
        self.processes.close()

    def preparation(self, cluster: Cluster) -> Preparer:
        """Return a process of the same server as the trials'."""
        return LocalPreparation(self.processes, cluster.environment)


def build_processes(experiment: Experiment) -> Processes:
    """Return what starts training processes here: a warm server, or a new interpreter for each.

    A rerun's copy of the code may be older than the warm server's module.
    """
    preload = [*TRAINING, *(TRL if experiment.trainer.kind == "trl" else [])]
    code = Path(experiment.cluster.code or SOURCE)
    is_warm = experiment.cluster.warm and (code / "grposweep" / "train" / "warm_server.py").is_file()
    return ForkServer(preload, code, experiment.cluster.environment) if is_warm else SpawnedProcesses(code)


def _free_port() -> int:
    """Return a port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
