"""Run Slurm's commands (sbatch, squeue, sacct, scancel), parse their output, and interpret job
states.

Nothing here keeps state.
"""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from grporecipe.errors import ExitCode, UserError
from grporecipe.files import read_own_yaml
from grposweep.launchers.base import End, EndState, LauncherBusy, LauncherUnreachable
from grposweep.launchers.slurm._script import submit_command, submit_environment
from grposweep.process import die_with
from grposweep.schema import Cluster
from grposweep.storage.results import TrialStatus

# for one command: sbatch itself retries for minutes if the queue is full
PATIENCE_SECONDS = 60.0
_COLUMNS = (
    ("JobID", 24),
    ("State", 24),
    ("exit_code", 16),
    ("Reason", 48),
    ("NodeList", 256),
    ("Name", 256),
)

# sbatch's messages if the job may be taken later.
_FULL = (
    "MaxSubmit",
    "MaxJobs",
    "temporarily",
    "job submit limit",
    "QOSMax",
    "AssocMax",
    "AssocGrp",
    "QOSGrp",
)
_UNREACHABLE = (
    "Unable to contact",
    "timed out",
    "connect failure",
    "Connection refused",
    "Zero Bytes",
    "backup mode",
)
# Messages of Slurm's commands if they are installed without a cluster.
_NO_CLUSTER = (
    "Could not establish a configuration source",
    "Unable to establish configuration source",
)
_SCRIPT = "cluster=dry_run writes the script without submitting it."


@dataclass(frozen=True)
class JobInfo:
    """One job as Slurm shows it; ``status`` is a wait status (exit code times 256, plus a
    signal).
    """

    job_id: str
    state: str
    status: int = 0
    reason: str = ""
    name: str = ""
    nodes: str = ""

    @property
    def code(self) -> int:
        """Return the batch script's exit code; negative for a signal."""
        signal = self.status & 0x7F
        return -signal if signal else self.status >> 8

    @property
    def is_alive(self) -> bool:
        """Return whether the job will end, or run again, by itself."""
        return re.fullmatch(ALIVE, self.state) is not None


def submit_script(script: Path, cluster: Cluster) -> str:
    """Submit a script; return the job's id.

    Raises LauncherBusy if Slurm may take it later, UserError if never.
    """
    done = _run(submit_command(script), submit_environment(cluster))
    if done.returncode == 0:
        # a site's plugins may greet first
        lines = done.stdout.split()
        # "id;cluster" if there are several clusters
        job_id = lines[-1].split(";")[0] if lines else ""
        if _is_id(job_id):
            return job_id
        raise LauncherBusy(
            f"sbatch took the job and said {done.stdout[:80]!r} instead of its number; looking "
            "for it"
        )
    error = _last_error(done.stderr)
    # without slurm.conf, a restart of slurmctld says both
    unreachable = any(word in done.stderr for word in _UNREACHABLE)
    if not unreachable and any(word in done.stderr for word in _NO_CLUSTER):
        raise UserError(
            f"cluster=slurm: Slurm's commands find no controller here ({error}). Run this on a "
            "login node, set SLURM_CONF to the cluster's slurm.conf, or set cluster=local."
        )
    if unreachable or any(word in done.stderr for word in _FULL):
        raise LauncherBusy(f"Slurm takes no job now ({error}); trying again")
    raise UserError(_refusal(error, done.stderr, cluster))


def read_queue() -> dict[str, JobInfo]:
    """Return all of this user's jobs by id, recently ended ones included, with one call.

    Raises LauncherUnreachable.
    """
    form = ",".join(f"{name}:{width}" for name, width in _COLUMNS)
    done = _run(
        ["squeue", f"--user={os.getuid()}", "--states=all", "--noheader", f"--Format={form}"]
    )
    if done.returncode:
        raise LauncherUnreachable(_last_error(done.stderr))
    return {
        entry.job_id: entry for entry in map(_entry, done.stdout.splitlines()) if entry is not None
    }


def read_accounts(job_ids: list[str], name: str = "") -> dict[str, JobInfo]:
    """Return the accounting records of jobs, by ids or by name; empty if the cluster keeps none."""
    which = (
        [f"--name={name}", "--starttime=now-30days"] if name else [f"--jobs={','.join(job_ids)}"]
    )
    columns = "--format=JobIDRaw,State,ExitCode,NodeList%256,JobName%256"
    done = _run(
        ["sacct", "--allocations", "--duplicates", "--noheader", "--parsable2", columns, *which]
    )
    jobs: dict[str, JobInfo] = {}
    if done.returncode:
        return jobs
    for line in done.stdout.splitlines():
        job_id, state, status, nodes, called = (line.split("|", 4) + [""] * 4)[:5]
        # "CANCELLED by 1000"; a requeued job has a line for each run, the last one counts
        if _is_id(job_id) and state.strip():
            jobs[job_id] = JobInfo(
                job_id, state.split()[0], wait_status(status), name=called, nodes=nodes
            )
    return jobs


def cancel_jobs(job_ids: Sequence[str]) -> None:
    """End jobs; those that have ended already are no error."""
    if job_ids:
        _run(["scancel", *job_ids])


def _entry(line: str) -> JobInfo | None:
    fields = []
    at = 0
    for _, width in _COLUMNS:
        fields.append(line[at : at + width].strip())
        at += width
    job_id, state, status, reason, nodes, name = fields
    if _is_id(job_id) and state:
        return JobInfo(job_id, state, wait_status(status), reason, name, nodes)
    return None


def wait_status(text: str) -> int:
    """Parse an exit status: ``768`` (squeue) and ``3:0`` (sacct, code and signal) are the same wait
    status.
    """
    match = re.fullmatch(r"([0-9]{1,9})(?::([0-9]{0,3}))?", text)
    if match is None:
        return 0
    code, signal = match.groups()
    return int(code) if signal is None else int(code) * 256 + int(signal or 0)


def _is_id(text: str) -> bool:
    """Return whether this is the number of a job, not of an array or step."""
    return re.fullmatch(r"[0-9]{1,18}", text) is not None


def _run(
    command: list[str], environment: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command that dies with this process: a submission must not happen after its
    controller's death.
    """
    try:
        return subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_SECONDS,
            check=False,
            # a Ctrl-C in the terminal is the controller's alone
            start_new_session=True,
            preexec_fn=partial(die_with, os.getpid()),
        )
    except FileNotFoundError:
        return subprocess.CompletedProcess(
            command, 127, "", f"{command[0]} not found; run this on a login node"
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(
            command, 1, "", f"{command[0]}: timed out after {PATIENCE_SECONDS:.0f} s"
        )


def _last_error(text: str) -> str:
    lines = [line.split("error:", 1)[-1].strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def _refusal(reason: str, text: str, cluster: Cluster) -> str:
    """Return the message to the user, with the key that Slurm seems to complain about."""
    for word, key, look in _REFUSED:
        if word in text.lower() and (getattr(cluster, key) is not None or key == "partition"):
            value = getattr(cluster, key)
            name = f"cluster.{key}"
            if value is None:
                value = "null"
            elif getattr(cluster, f"service_{key}", None) == value:
                name = f"cluster.service_{key}"
            return (
                f"{name}={value}: Slurm refuses the job ({reason}). "
                f"Set another {name}; {look}. {_SCRIPT}"
            )
    return (
        f"cluster=slurm: Slurm refuses the job ({reason}). Correct what cluster.* and "
        f"cluster.extra ask for. {_SCRIPT}"
    )


# A job in one of these states will end, or run again, by itself.
ALIVE = (
    r"PENDING|CONFIGURING|RUNNING|COMPLETING|SUSPENDED|STOPPED|REQUEUED|REQUEUE_FED"
    r"|REQUEUE_HOLD|RESIZING|SIGNALING|STAGE_OUT|SPECIAL_EXIT|RESV_DEL_HOLD"
)
# not one of Slurm's: neither the queue nor accounting knows the job any more
VANISHED = "VANISHED"


class StateInfo(NamedTuple):
    """The meaning of a job's state: its end state, the message, and whether a new attempt continues
    the trial.
    """

    kind: EndState
    message: str
    again: bool


_FILE = read_own_yaml(__file__, "states.yaml")
_REFUSED = _FILE["refused"]
MEANINGS = {
    state: StateInfo(**{**row, "kind": EndState(row["kind"])})
    for state, row in _FILE["meanings"].items()
}
LOG_PATTERNS = tuple((EndState(kind), pattern) for kind, pattern in _FILE["log"])
HOPELESS: Mapping[str, str] = _FILE["hopeless"]


def end_of(job: JobInfo, status: TrialStatus | None, asked_to_stop: bool) -> End:
    """Return how an attempt ended: by its job's last state, and the status in the result it left
    (None: none).

    A result outranks the exit code: srun's is the highest of all ranks', and it kills those left
    over by a signal.
    """
    if status is TrialStatus.FINISHED:
        return End(ExitCode.FINISHED)
    meaning = MEANINGS.get(job.state)
    if meaning is not None:
        message = f"Slurm job {job.job_id} {job.state}: {meaning.message}"
        return End(job.code or ExitCode.FAILED, meaning.kind, message, meaning.again)
    if job.code == ExitCode.SERVER_ENDED:
        message = "its vLLM server ended or never answered; logs/vllm.log says why"
        return End(ExitCode.SERVER_ENDED, EndState.SERVER_ENDED, message)
    # so a signal did: the job's warning, or preemption
    if status is TrialStatus.STOPPED and not asked_to_stop:
        return End(ExitCode.STOPPED, EndState.STOPPED, "a signal stopped it", again=True)
    if status is TrialStatus.STOPPED:
        return End(ExitCode.STOPPED)
    return End(job.code or ExitCode.FAILED)
