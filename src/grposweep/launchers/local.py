"""This machine: an attempt is a group of processes, one a rank; GPUs are divided among the attempts that run at once."""

import os
import shutil
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from grposweep.errors import UserError
from grposweep.external.script import check_launcher
from grposweep.launchers.base import End, Job
from grposweep.launchers.slurm.commands import is_alive
from grposweep.process import SOURCE, ForkServer, Processes, SpawnedProcesses, end_session
from grposweep.schema import AUTO, Experiment
from grposweep.storage import paths

TRAINING = ["grposweep.train.worker"]
TRL = ["torch", "transformers", "datasets", "trl", "trl.trainer.grpo_trainer", "grposweep.train.trl"]


@dataclass
class _Group:
    """The ranks of one attempt."""

    pids: list[int]
    gpus: list[str]
    codes: dict[int, int] = field(default_factory=dict)


class Local:
    """Starts attempts on this machine, at most ``slots`` at once."""

    outlives = False

    def __init__(self, processes: Processes, gpus: list[str], slots: int) -> None:
        self.slots = slots
        self.processes = processes
        self._free_gpus = list(gpus)
        self._has_gpus = bool(gpus)
        self._groups: dict[str, _Group] = {}

    def submit(self, job: Job) -> str:
        """Start every rank; each writes logs/rank-N.log in the trial folder."""
        gpus = [self._free_gpus.pop(0) for _ in range(job.cluster.processes)] if self._has_gpus else []
        processes = 1 if job.starts_ranks else job.cluster.processes
        (job.folder / paths.LOGS).mkdir(exist_ok=True)
        shared = {**job.environment, "GRPOSWEEP_ATTEMPT": str(job.attempt), "OMP_NUM_THREADS": str(job.cluster.threads)}
        if processes > 1:
            shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(processes)}
        group = _Group([], gpus)
        for rank in range(processes):
            own = {"RANK": str(rank), "LOCAL_RANK": "0" if gpus else str(rank)} if processes > 1 else {}
            if gpus:
                own["CUDA_VISIBLE_DEVICES"] = ",".join(gpus) if job.starts_ranks else gpus[rank]
            log = job.folder / paths.LOGS / f"rank-{rank}.log"
            group.pids.append(self.processes.start([str(job.folder)], {**shared, **own}, log))
        job_id = f"local-{group.pids[0]}"
        self._groups[job_id] = group
        return job_id

    def find(self, job: Job, job_id: str | None) -> str | None:
        """None: what ran here ended with its controller.

        Raises UserError where the trial's attempt is a Slurm job that still waits or runs.
        """
        if job_id is not None and job_id.isdigit() and is_alive(job_id):
            raise UserError(
                f"cluster=local: an attempt of this sweep's {job.folder.name} still is Slurm job {job_id}, and two would "
                f"overwrite each other. Set cluster=slurm to go on with it, or end it first (scancel {job_id})."
            )
        return None

    def poll(self, job_id: str) -> End | None:
        """The worst end among the ranks once all have ended; one that crashed takes the others along."""
        group = self._groups[job_id]
        for pid in group.pids:
            if pid not in group.codes and (code := self.processes.poll(pid)) is not None:
                group.codes[pid] = code
        first_crash = next((code for code in group.codes.values() if code not in (0, 3)), None)
        if first_crash is not None and len(group.codes) < len(group.pids):
            self.cancel(job_id)
        if len(group.codes) < len(group.pids):
            return None
        self._free_gpus += group.gpus
        group.gpus = []
        return End(first_crash if first_crash is not None else max(group.codes.values()))

    def waiting(self, job_id: str) -> str:  # noqa: ARG002 - the contract's arguments
        """Nothing waits: a slot that is free is used at once."""
        return ""

    def cancel(self, job_id: str) -> None:
        """Kill every rank that still runs, and what it started."""
        group = self._groups[job_id]
        for pid in group.pids:
            if pid not in group.codes:
                end_session(pid)

    def close(self) -> None:
        """Kill whatever still runs."""
        self.processes.close()


def build_local(experiment: Experiment, parallel: int, processes: Processes) -> Local:
    """The launcher for this machine.

    Raises UserError where a trial needs more GPUs than there are, or a server that nobody starts; fewer GPUs than all
    parallel trials need means fewer at once.
    """
    generation = experiment.generation
    if generation.use_vllm and generation.vllm_mode == "server" and generation.vllm_server_base_url is None:
        raise UserError(
            "generation=vllm_server: only a Slurm job starts a server beside its ranks. Set cluster=slurm, or start one "
            "yourself (trl vllm-serve) and set generation.vllm_server_base_url=http://host:8000 generation.vllm_gpus=0."
        )
    needed = experiment.cluster.processes
    gpus = visible_gpus(experiment.cluster.gpus)
    slots = parallel
    if gpus:
        if len(gpus) < needed:
            raise UserError(
                f"cluster.processes={needed}: a trial needs a GPU a process, and this machine has {len(gpus)}. "
                f"Set cluster.processes={len(gpus)}, or cluster.gpus=0 to train on the CPU."
            )
        slots = min(parallel, len(gpus) // needed)
    else:
        check_launcher(experiment.trainer, needed)
    return Local(processes, gpus, slots)


def build_processes(experiment: Experiment) -> Processes:
    """What starts training processes here: a warm server, or a new interpreter each."""
    preload = [*TRAINING, *(TRL if experiment.trainer.kind == "trl" else [])]
    code = Path(experiment.cluster.code or SOURCE)
    return (
        ForkServer(preload, code)
        if experiment.cluster.kind == "local" and experiment.cluster.warm
        else SpawnedProcesses(code)
    )


def visible_gpus(setting: int | str) -> list[str]:
    """The ids of the GPUs to use: as CUDA_VISIBLE_DEVICES says, otherwise as nvidia-smi counts them."""
    if setting == 0:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        found = [name for name in visible.split(",") if name.strip() and name.strip() != "-1"]
    elif shutil.which("nvidia-smi"):
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
        count = sum(line.startswith("GPU ") for line in listing.stdout.splitlines())
        found = [str(index) for index in range(count)]
    else:
        found = []
    if setting == AUTO:
        return found
    if int(setting) > len(found):
        raise UserError(
            f"cluster.gpus={setting}: only {len(found)} are visible. Set cluster.gpus={len(found)} or auto."
        )
    return found[: int(setting)]


def _free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
