"""Run attempts on this machine: one process for each rank. GPUs are divided among attempts that run
at once.
"""

import errno
import os
import secrets
import shutil
import signal
import socket
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from grporecipe.errors import ExitCode, UserError
from grposweep.launchers.base import (
    End,
    EndState,
    GpuBusy,
    Gpus,
    Job,
    Launcher,
    LauncherBusy,
    Preparation,
)
from grposweep.launchers.gpu_memory import (
    BUSY_MIB,
    BUSY_SHARE,
    VISIBLE,
    GpuMemory,
    Holders,
    ancestors,
    find_holders,
    mib,
    query,
    read_memory,
)
from grposweep.process import (
    MARK,
    SOURCE,
    ForkServer,
    SpawnedProcesses,
    end_session,
    exists,
    kills_for_memory,
)
from grposweep.process.variables import GPU_TRIALS
from grposweep.schema import AUTO, Cluster, Experiment, Generation, ThisMachine, starts_own_server
from grposweep.schema.registries import CHECK_PORTS, runs_trl
from grposweep.storage import paths

# of fork: a limit on processes, or on memory
NO_PROCESS = (errno.EAGAIN, errno.ENOMEM)


def visible_gpus(setting: int | str) -> list[str]:
    """Return the GPUs that a sweep may use: those in CUDA_VISIBLE_DEVICES, otherwise those of
    nvidia-smi that are free.

    Their names are positions on the PCI bus, which need `gpu_order`: vLLM (0.31) reads no UUIDs in
    CUDA_VISIBLE_DEVICES. GPUs on which other processes hold memory are left out, which is printed.
    Raises UserError if ``setting`` (``cluster.gpus``) asks for more GPUs than that, or if this
    machine's GPUs cannot be listed.
    """
    if setting == 0:
        return []
    visible = os.environ.get(VISIBLE)
    gpus = _free_gpus(setting) if visible is None else [name.strip() for name in visible.split(",")]
    gpus = [name for name in gpus if name not in ("", "-1")]
    if setting == AUTO:
        return gpus
    if int(setting) > len(gpus):
        which = "free" if visible is None else "visible"
        raise UserError(
            f"cluster.gpus={setting}: only {len(gpus)} are {which}. Set "
            f"cluster.gpus={len(gpus)} or auto."
        )
    return gpus[: int(setting)]


def gpu_order() -> dict[str, str]:
    """Return the variable by which CUDA counts GPUs as `visible_gpus` does; empty if the user has
    named them.
    """
    # CUDA's default: fastest first
    return {} if VISIBLE in os.environ else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def choose_gpus(free: Sequence[int], count: int) -> list[int]:
    """Choose free GPUs for a trial: as close together as possible, starting at a multiple of
    ``count``.

    GPUs that are neighbours share NVLink pairs, PCIe switches and NUMA nodes.
    """
    places = sorted(free)
    groups = [places[start : start + count] for start in range(len(places) - count + 1)]
    return min(groups, key=lambda group: (group[-1] - group[0], group[0] % count, group[0]))


def least_used(gpus: Sequence[str], free: Collection[int]) -> int:
    """Return a free place on the GPU that the fewest trials share; ``gpus`` names the GPU of each
    place.
    """
    count = Counter(gpus[index] for index in free)
    return min(free, key=lambda index: (-count[gpus[index]], index))


def _free_gpus(setting: int | str) -> list[str]:
    """Return the GPUs that nvidia-smi lists and no other process uses; empty without nvidia-smi.

    Raises UserError if nvidia-smi fails and the user has asked for GPUs. With ``auto`` the failure
    is printed.
    """
    if shutil.which("nvidia-smi") is None:
        tool = next(filter(shutil.which, ("amd-smi", "rocm-smi")), None)
        if tool is None:
            return []
        # its GPUs would stay idle
        raise UserError(
            f"cluster.gpus={setting}: this machine has {tool}, and only NVIDIA's GPUs are found "
            f"without help. Set {VISIBLE}=0,1,... to the GPUs to use (ROCm reads it as well), or "
            "cluster.gpus=0 to train on the CPU."
        )
    gpus, failure = query("gpu=index,uuid,memory.used,memory.total")
    if failure:
        text = (
            f"cluster.gpus={setting}: nvidia-smi fails ({failure}), so this machine's GPUs "
            "cannot be listed"
        )
        instead = f"set {VISIBLE} to the GPUs to use"
        if setting != AUTO:
            raise UserError(f"{text}. Repair the driver, {instead}, or cluster.gpus=0.")
        print(f"{text}. Trials run on the CPU. Repair the driver, or {instead}.", file=sys.stderr)
        return []
    processes, ours, own = defaultdict(list), Counter[str](), set(map(str, ancestors(os.getpid())))
    for uuid, pid, used in query("compute-apps=gpu_uuid,pid,used_memory")[0]:
        if pid in own:
            ours[uuid] += mib(used)
        elif mib(used) > BUSY_MIB:
            processes[uuid].append(pid)
    busy = {}
    for index, uuid, used, total in gpus:
        if uuid in processes:
            busy[index] = f"process {', '.join(processes[uuid])}"
        elif mib(used) - ours[uuid] > BUSY_SHARE * mib(total) > 0:
            busy[index] = f"{used} of {total} MiB are used"
    free = [index for index, *_ in gpus if index not in busy]
    if not busy:
        return free
    shown = "; ".join(f"GPU {index}: {reason}" for index, reason in busy.items())
    if not free:
        raise UserError(
            f"cluster.gpus={setting}: other processes hold memory on all of this machine's GPUs "
            f"({shown}). Wait for them, set {VISIBLE}={','.join(busy)} to share these GPUs, or "
            "cluster.gpus=0 to train on the CPU."
        )
    print(
        f"cluster.gpus: left out, because other processes hold memory there: {shown}. Set "
        f"{VISIBLE} to use them.",
        file=sys.stderr,
    )
    return free


TRAINING = ["grposweep.train.run"]
TRL = [
    "torch",
    "transformers",
    "datasets",
    "trl",
    "trl.trainer.grpo_trainer",
    "grposweep.train.trl",
]
# an attempt's: where its ranks meet, its vLLM server, the weights sent there
PORTS = 3
FIRST_PORT = 10_000
LAST_PORT = 32_000


@dataclass
class _Group:
    """The processes of one attempt: its ranks, and a vLLM server if it has one of its own."""

    # places in the launcher's list
    gpus: list[int]
    # of each GPU, as far as it is known
    needs_gib: float = 0.0
    # of its GPUs, also after its end
    names: set[str] = field(default_factory=set)
    # process ids
    ranks: list[int] = field(default_factory=list)
    server: int | None = None
    # of processes that have ended, in that order
    codes: dict[int, int] = field(default_factory=dict)
    # it ended before the ranks
    lost_server: bool = False
    # they ended with the warm server that they were forked from
    lost_ranks: bool = False
    # what ends from now on was killed
    cancelled: bool = False
    # of the kernel for lack of memory, when the attempt started
    kills_before: int = 0

    @property
    def running(self) -> list[int]:
        """Return the processes that have not ended."""
        return [
            pid for pid in (*self.ranks, self.server) if pid is not None and pid not in self.codes
        ]


class _LocalGpus(Gpus):
    """The GPUs of this machine, which others may use too."""

    def __init__(self, names: Sequence[str], groups: Mapping[str, _Group], pids: Set[int]) -> None:
        """``pids`` are the processes that were started for attempts."""
        self._names, self._groups, self._started = names, groups, pids

    @property
    def sees_memory(self) -> bool:
        return bool(self._names) and read_memory(set(self._names)).keys() == set(self._names)

    def memory(self, job_id: str) -> Sequence[GpuMemory]:
        group = self._groups.get(job_id)
        return () if group is None else tuple(read_memory(group.names).values())

    def owns(self, pid: int, ended: bool = False) -> bool:
        if not ancestors(pid).isdisjoint(self._started):
            return True
        try:
            # Ray's processes leave their parents
            environment = (Path("/proc") / str(pid) / "environ").read_bytes()
        except OSError:
            environment = b""
        return f"{MARK}=".encode() in environment or (ended and not exists(pid))


class Local(Launcher):
    """Starts attempts on this machine, at most ``slots`` at once."""

    kind = "local"
    section = ThisMachine
    shares_gpus = True

    def __init__(
        self, processes: SpawnedProcesses, gpus: list[str], slots: int, share: int = 1
    ) -> None:
        """``gpus`` names each GPU ``share`` times."""
        self.slots = slots
        self.share = share
        self.processes = processes
        self._gpus = gpus
        # places in that list
        self._free = set(range(len(gpus)))
        self._groups: dict[str, _Group] = {}
        # process ids
        self._started: set[int] = set()
        self.gpus = _LocalGpus(gpus, self._groups, self._started)

    @classmethod
    def build(cls, experiment: Experiment, sweep: Path) -> Self:  # noqa: ARG003 - the contract's arguments
        """Return the launcher for this machine: without ``search.parallel`` as many trials at once
        as GPUs suffice for.

        Raises UserError if the GPUs asked for are not there.
        """
        gpus = visible_gpus(experiment.cluster.gpus)
        parallel = experiment.search.parallel
        # `share_gpus` has put a number in the place of auto
        share = int(experiment.cluster.trials_per_gpu)
        if share > 1 and not gpus:
            raise UserError(
                f"cluster.trials_per_gpu={share}: this machine has no GPU to share. Set "
                f"search.parallel={share} to run that many "
                "trials at once on the CPU, and cluster.trials_per_gpu=1."
            )
        # a GPU is there once for each of the trials that share it
        gpus *= share
        free = len(gpus) - experiment.generation.vllm_shared_gpus
        most = max(free // _gpus_of(experiment.cluster, experiment.generation), 1)
        slots = parallel or most
        if gpus:
            slots = min(slots, most)
        return cls(build_processes(experiment), gpus, slots, share)

    @classmethod
    def validate(cls, experiment: Experiment) -> None:
        share = experiment.cluster.trials_per_gpu
        processes = experiment.cluster.processes
        what = f"cluster.trials_per_gpu={share}"
        if share != AUTO and int(share) < 1:
            raise UserError(
                f"{what}: a GPU runs one trial or more. Set a number from 1 on, or auto."
            )
        has_engine = experiment.generation.use_vllm and not experiment.generation.vllm_shared_gpus
        if share != 1 and (processes > 1 or has_engine):
            has = f"cluster.processes={processes}" if processes > 1 else "generation.use_vllm=true"
            raise UserError(
                f"{what} with {has}: only trials of one rank without a vLLM engine of their own "
                "can share a GPU. Set cluster.trials_per_gpu=1."
            )

    def admit(self, experiment: Experiment) -> None:
        """Raise UserError if a trial needs more GPUs than there are, or a server that nothing
        starts.
        """
        generation = experiment.generation
        total = len(self._gpus)
        if starts_own_server(generation) and not (generation.vllm_gpus and total):
            raise UserError(
                f"generation.vllm_gpus={generation.vllm_gpus} on a machine with {total} GPUs: "
                "none is left for the vLLM server. "
                "Set how many of the GPUs it gets, or start one yourself (trl vllm-serve) and set "
                "generation.vllm_server_base_url=http://host:8000 generation.vllm_gpus=0."
            )
        self._check_gpus(experiment.cluster, generation)
        CHECK_PORTS(experiment.trainer, self.slots)

    def submit(self, job: Job) -> str:
        """Start every rank, and a vLLM server if it has GPUs; each writes a log in the trial
        folder.
        """
        self._check_gpus(job.cluster, job.generation)
        group = _Group(self._take_gpus(job), job.needs_gib or 0.0, kills_before=kills_for_memory())
        group.names = {self._gpus[index] for index in group.gpus}
        try:
            self._start(group, job)
        except BaseException as error:
            # such as a full disk, after which the controller tries again
            self._kill(group)
            self._free.update(group.gpus)
            if isinstance(error, OSError) and error.errno in NO_PROCESS:
                raise LauncherBusy(
                    f"this machine starts no further process ({error.strerror}; 'ulimit -u' "
                    "limits processes); trying again"
                ) from error
            raise
        job_id = f"local-{group.ranks[0]}"
        self._groups[job_id] = group
        self._started |= set(group.running)
        return job_id

    def _start(self, group: _Group, job: Job) -> None:
        """Start the processes of an attempt."""
        (job.folder / paths.LOGS).mkdir(exist_ok=True)
        shared = {
            **job.cluster.environment,
            "GRPOSWEEP_ATTEMPT": str(job.attempt),
            "OMP_NUM_THREADS": str(job.cluster.threads),
        }
        if self.share > 1:
            shared[GPU_TRIALS] = str(self.share)
        port = _free_ports(PORTS)
        if job.generation.vllm_gpus:
            environment = {**os.environ, **shared}
            direct_to = (
                environment.get("no_proxy") or environment.get("NO_PROXY"),
                "localhost",
                "127.0.0.1",
            )
            direct = ",".join(filter(None, direct_to))
            shared |= {
                "GRPOSWEEP_PORT": str(port),
                "GRPOSWEEP_VLLM_PORT": str(port + 1),
                "GRPOSWEEP_VLLM_SERVER": f"http://127.0.0.1:{port + 1}",
                # not through a proxy
                "no_proxy": direct,
                "NO_PROXY": direct,
            }
            mine = self._show(group.gpus[job.cluster.processes :])
            log = job.folder / paths.LOGS / "vllm.log"
            group.server = self.processes.start(["serve", str(job.folder)], {**shared, **mine}, log)
        # The whole group for every rank, as torchrun does: NCCL and vLLM look at the GPUs of other
        # ranks.
        shared |= self._show(group.gpus[: job.cluster.processes])
        processes = 1 if job.starts_ranks else job.cluster.processes
        if processes > 1:
            shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            shared |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(processes))
        for rank in range(processes):
            own = dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)) if processes > 1 else {}
            log = job.folder / paths.LOGS / f"rank-{rank}.log"
            group.ranks.append(self.processes.start(job.arguments, {**shared, **own}, log))

    def _check_gpus(self, cluster: Cluster, generation: Generation) -> None:
        """Raise UserError if an attempt needs more GPUs than there are; a machine without any
        trains on the CPU.
        """
        total, served, shared = len(self._gpus), generation.vllm_gpus, generation.vllm_shared_gpus
        if not total or _gpus_of(cluster, generation) + shared <= total:
            return
        server = f" and generation.vllm_gpus={served} for its server" if served else ""
        fewer = f"cluster.processes={max(total - served - shared, 1)}"
        if shared:
            server += f", the sweep's server has generation.vllm_shared_gpus={shared}"
            if total == 1:
                fewer = (
                    "cluster.trials_per_gpu=4 generation.vllm_gpu_memory_utilization=0.25 "
                    "to share it"
                )
        raise UserError(
            f"cluster.processes={cluster.processes}: a trial needs a GPU per process{server}, and "
            f"this machine has {total}. Set {fewer}, or cluster.gpus=0 to train on the CPU."
        )

    def _take_gpus(self, job: Job) -> list[int]:
        """Take GPUs for an attempt; none on a machine without. Raises LauncherBusy if too few are
        free.
        """
        if not self._gpus:
            return []
        count = _gpus_of(job.cluster, job.generation)
        if len(self._free) < count:
            raise LauncherBusy(
                f"a trial waits for {count} GPUs, and {len(self._free)} of {len(self._gpus)} "
                "are free"
            )
        free = self._free - self._held_by_others(job, count)
        if self.share == 1:
            taken = choose_gpus(sorted(free), count)
        else:
            taken = [least_used(self._gpus, free)]
        self._free.difference_update(taken)
        return taken

    def _held_by_others(self, job: Job, count: int) -> set[int]:
        """Return the free places on GPUs whose memory does not suffice because of other processes.

        Raises GpuBusy if fewer than ``count`` are left.
        """
        if job.needs_gib is None:
            return set()
        by_gpu: dict[str, Holders] = {}
        for name, memory in read_memory({self._gpus[index] for index in self._free}).items():
            running = [
                group.needs_gib
                for group in self._groups.values()
                if group.gpus and name in group.names
            ]
            needed = min(job.needs_gib, memory.total / self.share)
            owns = self.gpus.owns
            holders = find_holders(memory, owns, running, needed, job.was_crowded_out)
            if holders is not None:
                by_gpu[name] = holders
        places = {index for index in self._free if self._gpus[index] in by_gpu}
        if len(self._free) - len(places) < count:
            name, holders = next(iter(by_gpu.items()))
            raise GpuBusy(f"GPU {name}: {holders.text}", f"{name} {holders.processes}")
        return places

    def _show(self, gpus: list[int]) -> dict[str, str]:
        """Return the variables that show a process these GPUs; none on a machine without."""
        if gpus:
            return {VISIBLE: ",".join(self._gpus[index] for index in gpus), **gpu_order()}
        return {}

    def poll(self, job_id: str) -> End | None:
        """Return the worst end of all ranks once all have ended. A rank that crashes ends the
        others.
        """
        group = self._groups[job_id]
        for pid in group.running:
            if (code := self.processes.poll(pid)) is not None:
                group.codes[pid] = code
                group.lost_ranks |= not group.cancelled and self.processes.lost(pid)
        codes = [code for pid, code in group.codes.items() if pid != group.server]
        is_over = len(codes) == len(group.ranks)
        group.lost_server |= group.server in group.codes and not (is_over or group.cancelled)
        fine = (ExitCode.FINISHED, ExitCode.STOPPED)
        first_crash = next((code for code in codes if code not in fine), None)
        if group.running and (is_over or group.lost_server or first_crash is not None):
            self.cancel(job_id)
        if group.running:
            return None
        self._free.update(group.gpus)
        group.gpus = []
        if group.lost_server:
            message = "its vLLM server ended; logs/vllm.log says why"
            return End(ExitCode.SERVER_ENDED, EndState.SERVER_ENDED, message)
        if group.lost_ranks:
            return End(
                -signal.SIGKILL,
                EndState.FORK_SERVER_DIED,
                "the process that trials are forked from was killed",
                True,
            )
        if first_crash == -signal.SIGKILL and kills_for_memory() > group.kills_before:
            return End(
                first_crash,
                EndState.OUT_OF_MEMORY,
                "killed (signal 9) while the kernel ended processes because memory ran out",
            )
        if first_crash is None:
            return End(max(codes))
        return End(first_crash)

    def cancel(self, job_id: str) -> None:
        """Kill every process of an attempt that still runs, and its children."""
        self._kill(self._groups[job_id])

    def _kill(self, group: _Group) -> None:
        group.cancelled = True
        for pid in group.running:
            end_session(pid)

    def close(self) -> None:
        """Kill everything that still runs."""
        self.processes.close()

    def preparation(self, cluster: Cluster) -> Preparation:
        """Return a process of the same server as the trials'."""
        return Preparation(self.processes, cluster.environment)


def build_processes(experiment: Experiment) -> SpawnedProcesses:
    """Return the starter of training processes: a warm server, or a new interpreter for each.

    A rerun's copy of the code may be older than the warm server's module.
    """
    trains = runs_trl(experiment.trainer)
    if trains and sys.flags.optimize > 1:
        raise UserError(
            "PYTHONOPTIMIZE=2 removes docstrings, and transformers cannot be imported without "
            "them. Set PYTHONOPTIMIZE=1, or unset it."
        )
    preload = [*TRAINING, *TRL] if trains else [*TRAINING]
    code = Path(experiment.cluster.code or SOURCE)
    is_warm = (
        experiment.cluster.warm and (code / "grposweep" / "train" / "warm_server.py").is_file()
    )
    if is_warm:
        return ForkServer(preload, code, experiment.cluster.environment)
    return SpawnedProcesses(code)


def _gpus_of(cluster: Cluster, generation: Generation) -> int:
    """Return how many GPUs an attempt takes: one per rank, and those of its vLLM server."""
    return cluster.processes + generation.vllm_gpus


def _free_ports(count: int) -> int:
    """Return the first of successive ports that are free now, below those that systems give to
    outgoing connections.
    """
    while True:
        first = FIRST_PORT + secrets.randbelow(LAST_PORT - FIRST_PORT - count)
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
