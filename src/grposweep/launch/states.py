"""What Slurm's job states mean for an attempt: going on, taken away, or failed and why."""

from typing import NamedTuple

from grposweep.launch import queue
from grposweep.launch.base import CRASHED, FINISHED, SERVER_ENDED, STOPPED, End
from grposweep.launch.queue import Entry

# A job in one of these will end, or run again, by itself.
ALIVE = {
    "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD",
    "RESIZING", "SIGNALING", "STAGE_OUT", "SPECIAL_EXIT", "RESV_DEL_HOLD",
}  # fmt: skip
VANISHED = "VANISHED"  # ours: neither the queue nor accounting knows it any more


class Meaning(NamedTuple):
    """A state's kind in our words, what to tell a person, and whether a new attempt goes on."""

    kind: str
    message: str
    again: bool


MEANINGS = {
    "TIMEOUT": Meaning("timeout", "the time limit ended it; set cluster.walltime_min higher, or more schedule.checkpoints", True),
    "DEADLINE": Meaning("timeout", "its deadline ended it", True),
    "PREEMPTED": Meaning("preempted", "another job took its place", True),
    "NODE_FAIL": Meaning("node_fail", "a node failed under it", True),
    "BOOT_FAIL": Meaning("node_fail", "a node did not come up for it", True),
    "REVOKED": Meaning("preempted", "the cluster gave it back", True),
    VANISHED: Meaning("vanished", "Slurm does not know it any more, and it left no result", True),
    "OUT_OF_MEMORY": Meaning("out_of_memory", "it used more memory than it asked for; set cluster.mem_gb higher", False),
    "CANCELLED": Meaning("cancelled", "somebody cancelled it", False),
}  # fmt: skip
# A pending job with one of these reasons stays pending for ever; the key that a person should look at first.
HOPELESS = {
    "PartitionTimeLimit": "walltime_min", "PartitionNodeLimit": "nodes", "BadConstraints": "constraint",
    "PartitionConfig": "partition", "InvalidAccount": "account", "InvalidQOS": "qos",
    "QOSMaxWallDurationPerJobLimit": "walltime_min",
    "AssocMaxWallDurationPerJobLimit": "walltime_min", "QOSMaxNodePerJobLimit": "nodes",
}  # fmt: skip


def is_alive(job_id: str) -> bool:
    """Whether Slurm has a job of this user that waits or runs; no where this machine has no Slurm."""
    try:
        entry = queue.read_queue().get(job_id)
    except queue.Unreachable:
        return False
    return entry is not None and entry.state in ALIVE


def end_of(entry: Entry, status: str | None, asked_to_stop: bool) -> End:
    """How an attempt ended: the job's last state, and the status in the result it left (None: none).

    A result outranks the exit code: srun's is the highest of all ranks', and it kills those left over by a signal.
    """
    if status == "finished":
        return End(FINISHED)
    meaning = MEANINGS.get(entry.state)
    if meaning is not None:
        message = f"Slurm job {entry.job_id} {entry.state}: {meaning.message}"
        return End(entry.code or CRASHED, meaning.kind, message, meaning.again)
    if entry.code == SERVER_ENDED:
        return End(SERVER_ENDED, "vllm_server", "its vLLM server ended or never answered; logs/vllm.log says why")
    if status == "stopped":
        # Nobody asked for it, so a signal did: the job's warning, or preemption.
        return End(STOPPED) if asked_to_stop else End(STOPPED, "stopped", "a signal stopped it", again=True)
    return End(entry.code or CRASHED)
