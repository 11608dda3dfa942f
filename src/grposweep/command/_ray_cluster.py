"""A job's Ray cluster around a program: start one node of it, wait until all nodes have joined, end
it with the program.

Each node of the job has a process of ours. The first one starts the head and writes its address to
``ray.json`` in the trial folder; the others join it and stay until that file says that the program
has ended. ``ray stop`` would end every Ray of the user on a node, so these processes are ended by
their mark (`grposweep.process`).
"""

import os
import secrets
import shlex
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from grporecipe.errors import UserError
from grporecipe.files import Json, parse_json, read_json, write_json
from grposweep.command._contract import RayCluster
from grposweep.storage import paths
from grposweep.train.attempt import Attempt

# in a trial folder: the head's address and folder, then that it has ended
STATE = "ray.json"
# in Ray's folder, by Ray: HOST:PORT of the head
ADDRESS = "ray_current_cluster"
POLL_SECONDS = 0.5
LAST_SECONDS = (
    # that a worker which was asked to end waits for the head, whose program may be writing a
    # checkpoint
    60.0
)
# of Ray's folder: it adds up to 66 characters, and a Unix socket's path has 107
LONGEST_PATH = 40
# in a trial folder, while the cluster runs, for this user alone
TOKEN = "ray.token"
PROBE = "import importlib.util as u, ray; print(u.find_spec('grpc') is not None)"
JOINED = """
import json, sys, time, ray
address, nodes, gpus, cpus, seconds = sys.argv[1], *map(int, sys.argv[2:])
until = time.monotonic() + seconds
ray.init(address=address, log_to_driver=False, logging_level="ERROR")
while True:
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    sizes = [(resources.get("GPU", 0), resources.get("CPU", 0)) for resources in alive]
    joined = sum(gpu >= gpus and cpu >= cpus for gpu, cpu in sizes)
    if joined >= nodes or time.monotonic() > until:
        break
    time.sleep(0.5)
print(json.dumps(sizes))
sys.exit(joined < nodes)
"""

# a command in the program's place, its output in a file
Start = Callable[[Sequence[str], Path], "subprocess.Popen[bytes]"]


class StoppedEarly(Exception):
    """The attempt was asked to stop before its Ray cluster was there."""


def make_folder() -> Path:
    """Return a new folder for Ray's sockets and logs, in the system's own if its path is short
    enough.
    """
    parent = tempfile.gettempdir()
    if len(parent) + len("/ray-12345678") > LONGEST_PATH:
        parent = "/tmp"
    name = Path(tempfile.mkdtemp(prefix="ray-", dir=parent))
    return name.resolve() if len(str(name.resolve())) <= LONGEST_PATH else name


def environment(attempt: Attempt) -> dict[str, str]:
    """Return the environment of all processes of a cluster: no usage reports, and a token of the
    attempt's own.

    Without a token anyone on the network may run code in a Ray cluster. With a token file of the
    user's own (~/.ray/auth_token) Ray's head alone would ask for one. Before 2.52 Ray knows none,
    and ignores it.
    """
    file = attempt.folder / TOKEN
    if attempt.is_main:
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(secrets.token_hex(32))
    # the cluster may have ended by now
    token = file.read_text(encoding="utf-8") if file.is_file() else ""
    # Without SPT_NOENV Ray's agents write their titles over their environment, and so over the mark
    # by which they are ended: they outlived the job by more than 30 s.
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "SPT_NOENV": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
    }


def wait_for_head(attempt: Attempt) -> Path:
    """Return the head's folder on a node that is not the first; Ray uses the same path on every
    node.

    Raises ConnectionError if there is no address in time.
    """
    seconds = attempt.experiment.cluster.ray_timeout
    for _ in _until(attempt, seconds):
        if folder := _state(attempt).get("folder"):
            return Path(folder)
    raise ConnectionError(
        f"Ray on node {attempt.rank}: the first node gave no address of its Ray within {seconds} "
        "s. Read logs/ray-0.log, or set a higher cluster.ray_timeout."
    )


@dataclass
class RayNode:
    """One node of the cluster; ``start`` runs a command where, and with what, the program itself
    will run.
    """

    attempt: Attempt
    cluster: RayCluster
    folder: Path
    start: Start

    @contextmanager
    def head(self) -> Iterator[str]:
        """Start the head; yield its address once every node has joined with what the job has there.

        Raises UserError without Ray, ConnectionError if the cluster does not come up, StoppedEarly.
        """
        try:
            head = self._start_ray(self.cluster.start_head(str(self.folder), *self._further()))
            address = self._address(head)
            self._announce(address=address, folder=str(self.folder))
            self._wait_for_nodes(head, address)
            yield address
        finally:
            self._announce(ended=True)
            (self.attempt.folder / TOKEN).unlink(missing_ok=True)

    def worker(self) -> None:
        """Join the head, and stay until its program has ended.

        Raises ConnectionError if this node's Ray ends before.
        """
        until = inf
        state = _state(self.attempt)
        if state.get("ended"):
            return
        child = self._start_ray(self.cluster.start_worker(state["address"]))
        while not _state(self.attempt).get("ended") and time.monotonic() < until:
            self.attempt.beat(0)
            # Slurm sends SIGTERM to Ray as well
            if child.poll() is not None and not self.attempt.terminated:
                raise self._ended(child)
            if self.attempt.terminated:
                until = min(until, time.monotonic() + LAST_SECONDS)
            time.sleep(POLL_SECONDS)

    def _start_ray(self, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        print(f"$ {shlex.join(command)}", flush=True)
        return self.start(command, self._log)

    @property
    def _log(self) -> Path:
        return self.attempt.folder / paths.LOGS / f"ray-{self.attempt.rank}.log"

    def _further(self) -> list[str]:
        """Return the head's further options: the address that Slurm knows, and a port for Ray's
        client if that exists.
        """
        if self.start((self.cluster.python, "-c", PROBE), self._log).wait():
            raise UserError(
                f"trainer.python={self.cluster.python}: cluster.nodes={self.cluster.nodes} needs "
                f"Ray there ({self._last_line()}). Set trainer.python to the environment that has "
                "the program and Ray."
            )
        has_client = self._last_line().endswith("True")
        own = _own_address(os.environ.get("MASTER_ADDR", ""))
        options = [f"--node-ip-address={own}"] if own else []
        return [*options, f"--ray-client-server-port={free_port()}"] if has_client else options

    def _address(self, head: "subprocess.Popen[bytes]") -> str:
        file = self.folder / ADDRESS
        seconds = self.attempt.experiment.cluster.ray_timeout
        for _ in _until(self.attempt, seconds):
            if file.is_file() and (address := file.read_text().strip()):
                return address
            if head.poll() is not None:
                raise self._ended(head)
        raise ConnectionError(f"Ray's head did not start within {seconds} s. {self._last_line()}")

    def _wait_for_nodes(self, head: "subprocess.Popen[bytes]", address: str) -> None:
        shape = self.cluster
        seconds = self.attempt.experiment.cluster.ray_timeout
        answer = self.attempt.folder / paths.LOGS / "ray-joined.log"
        answer.unlink(missing_ok=True)
        numbers = (shape.nodes, shape.gpus, shape.cpus, seconds)
        asks = self.start((shape.python, "-c", JOINED, address, *map(str, numbers)), answer)
        # the question has a limit of its own
        for _ in _until(self.attempt, 2 * seconds):
            if asks.poll() == 0:
                print(
                    f"Ray runs at {address}: {shape.nodes} nodes, {shape.gpus} GPUs and "
                    f"{shape.cpus} CPUs each",
                    flush=True,
                )
                return
            if asks.poll() is not None or head.poll() is not None:
                break
        nodes = _nodes(answer)
        if nodes is None:
            raise ConnectionError(f"Ray's head at {address} gives no answer. {_last_line(answer)}")
        there = ", ".join(f"{gpus:g} GPUs and {cpus:g} CPUs" for gpus, cpus in nodes)
        raise ConnectionError(
            f"Ray: {shape.nodes} nodes with {shape.gpus} GPUs and {shape.cpus} CPUs each did "
            f"not join within {seconds} s; "
            f"there are {there}. Read logs/ray-*.log, or set a higher cluster.ray_timeout."
        )

    def _announce(self, **state: Any) -> None:
        write_json(self.attempt.folder / STATE, {"attempt": self.attempt.number, **state})

    def _ended(self, child: "subprocess.Popen[bytes]") -> ConnectionError:
        return ConnectionError(
            f"Ray ended on node {self.attempt.rank} of {self.cluster.nodes} with exit code "
            f"{child.returncode}. {self._last_line()}"
        )

    def _last_line(self) -> str:
        return _last_line(self._log)


def _state(attempt: Attempt) -> Json:
    """Return the state that this attempt's head has written; empty before."""
    state = read_json(attempt.folder / STATE) or {}
    return state if state.get("attempt") == attempt.number else {}


def _until(attempt: Attempt, seconds: float) -> Iterator[None]:
    """Yield every POLL_SECONDS for so many seconds. Raises StoppedEarly."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if attempt.asks_to_stop(0):
            raise StoppedEarly
        attempt.beat(0)
        yield
        time.sleep(POLL_SECONDS)


def _last_line(log: Path) -> str:
    """Return the end of a log, for a message."""
    last = next((line.strip() for line in _from_the_end(log) if line.strip()), "nothing")
    return f"logs/{log.name} ends with: {last}"


def _from_the_end(log: Path) -> list[str]:
    """Return the lines of a log, the last one first; none if there is no such file."""
    if not log.is_file():
        return []
    return log.read_text(encoding="utf-8", errors="replace").split("\n")[::-1]


def _nodes(answer: Path) -> list[list[float]] | None:
    """Return the GPUs and CPUs of each node in an answer's last line of that form; None without
    one.
    """
    for line in _from_the_end(answer):
        # Ray may write more
        with suppress(ValueError, TypeError):
            return [list(map(float, node)) for node in parse_json(line)]
    return None


def _own_address(name: str) -> str:
    """Return the address of a name if it is one of this machine's and other nodes can reach it,
    otherwise nothing.

    Ray itself asks for a route to the internet, which a compute node may not have.
    """
    try:
        address = socket.gethostbyname(name)
        with socket.socket() as bound:
            bound.bind((address, 0))
    except OSError:
        return ""
    return "" if address.startswith(("127.", "0.")) else address


def free_port() -> str:
    """Return a port of this machine that nothing listens at now."""
    with socket.create_server(("", 0)) as server:
        return str(server.getsockname()[1])
