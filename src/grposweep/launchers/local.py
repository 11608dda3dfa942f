"""This machine: an attempt is a group of processes, one for each rank. GPUs are divided among attempts that run at once."""

import os
import shutil
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from grposweep.errors import ExitCode, UserError
from grposweep.external.script import check_launcher
from grposweep.launchers.base import End, Job, Launcher, LocalPreparation, Preparer
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


class Local(Launcher):
    """Starts attempts on this machine, at most ``slots`` at once."""

    kind = "local"

    def __init__(self, processes: Processes, gpus: list[str], slots: int) -> None:
        self.slots = slots
        self.processes = processes
        self._free_gpus = list(gpus)
        self._has_gpus = bool(gpus)
        self._groups: dict[str, _Group] = {}

    @classmethod
    def build(cls, experiment: Experiment, sweep: Path) -> Self:  # noqa: ARG003 - the contract's arguments
        """Return the launcher for this machine; with fewer GPUs than all parallel trials need, fewer run at once.

        Raises UserError if a trial needs more GPUs than there are, or a server that nothing starts.
        """
        generation, needed = experiment.generation, experiment.cluster.processes
        if generation.use_vllm and generation.vllm_mode == "server" and generation.vllm_server_base_url is None:
            raise UserError(
                "generation=vllm_server: only a Slurm job starts a server beside its ranks. Set cluster=slurm, or start one "
                "yourself (trl vllm-serve) and set generation.vllm_server_base_url=http://host:8000 generation.vllm_gpus=0."
            )
        gpus, slots = visible_gpus(experiment.cluster.gpus), experiment.search.parallel or 1
        if not gpus:
            check_launcher(experiment.trainer, needed)
        elif len(gpus) < needed:
            raise UserError(
                f"cluster.processes={needed}: a trial needs a GPU a process, and this machine has {len(gpus)}. "
                f"Set cluster.processes={len(gpus)}, or cluster.gpus=0 to train on the CPU."
            )
        else:
            slots = min(slots, len(gpus) // needed)
        return cls(build_processes(experiment), gpus, slots)

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
        self._free_gpus += group.gpus
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

    def preparation(self) -> Preparer:
        """Return a process of the same server as the trials'."""
        return LocalPreparation(self.processes)


def build_processes(experiment: Experiment) -> Processes:
    """Return what starts training processes here: a warm server, or a new interpreter for each.

    A rerun's copy of the code may be older than the warm server's module.
    """
    preload = [*TRAINING, *(TRL if experiment.trainer.kind == "trl" else [])]
    code = Path(experiment.cluster.code or SOURCE)
    is_warm = experiment.cluster.warm and (code / "grposweep" / "train" / "warm_server.py").is_file()
    return ForkServer(preload, code) if is_warm else SpawnedProcesses(code)


def visible_gpus(setting: int | str) -> list[str]:
    """Return the ids of the GPUs to use: those in CUDA_VISIBLE_DEVICES, otherwise those that nvidia-smi lists."""
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
    """Return a port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
