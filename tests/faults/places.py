"""Two places where attempts run, both forks of this process: one whose attempts end with it, one
where they continue.

Each attempt notes in a ledger outside the sweep that it begins and how it ends, and what should
never be when it begins: that its trial has finished, or that another attempt of it still runs.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from grporecipe.errors import ExitCode
from grporecipe.files import read_json
from grposweep.launchers.base import End, EndState, Job, Launcher
from grposweep.process import die_with
from support import is_running


def ledger(state: Path) -> list[dict[str, Any]]:
    """What attempts noted: ``begin`` and ``end``, in order."""
    path = state / "ledger"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def become_attempt(
    state: Path, folder: Path, environment: Mapping[str, str], log: Path, deaf: bool = False
) -> int:
    """Run an attempt in this process, from begin to end; its exit code. A ``deaf`` one is stopped
    before it does anything.
    """
    from grposweep.train.run import run_attempt

    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(environment)
    number = int(os.environ["GRPOSWEEP_ATTEMPT"])
    ended = {(line["trial"], line["pid"]) for line in ledger(state) if line["event"] == "end"}
    others = {line["pid"] for line in ledger(state) if line["trial"] == folder.name} - {
        pid for _, pid in ended
    }
    done = (read_json(folder / "result.json") or {}).get("status") == "finished"
    _note(
        state,
        folder,
        "begin",
        attempt=number,
        alongside=[pid for pid in others if is_running(pid)],
        done=done,
    )
    if deaf:
        os.kill(os.getpid(), signal.SIGSTOP)
    code = run_attempt(folder)
    sys.stdout.flush()
    sys.stderr.flush()
    _note(state, folder, "end", attempt=number, code=code)
    return code


def _note(state: Path, folder: Path, event: str, **content: Any) -> None:
    line = {"trial": folder.name, "pid": os.getpid(), "event": event, **content}
    handle = os.open(state / "ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(handle, (json.dumps(line) + "\n").encode())
    os.close(handle)


def fork(work: Callable[[], int]) -> int:
    """A child that does this and ends; its pid."""
    pid = os.fork()
    if pid == 0:
        _end(work)
    return pid


def _end(work: Callable[[], int]) -> NoReturn:
    code = 99
    try:
        code = work()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - the caller's stack is not this process's to continue with
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Forks:
    """What ``Local`` starts its ranks with: forks that die with the controller."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._running: set[int] = set()
        self._ended: dict[int, int] = {}

    def start(self, arguments: list[str], environment: Mapping[str, str], log: Path | None) -> int:
        assert log is not None
        controller = os.getpid()

        def work() -> int:
            os.setsid()
            die_with(controller)
            return become_attempt(self._state, Path(arguments[0]), environment, log)

        pid = fork(work)
        self._running.add(pid)
        return pid

    def poll(self, pid: int, timeout: float = 0.0) -> int | None:  # noqa: ARG002 - the contract's arguments
        if pid not in self._ended:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self._running.discard(pid)
                self._ended[pid] = os.waitstatus_to_exitcode(status)
        return self._ended.get(pid)

    def lost(self, pid: int) -> bool:  # noqa: ARG002 - the contract's arguments
        """None had a server."""
        return False

    def close(self) -> None:
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


class Elsewhere(Launcher):
    """A place as Slurm is one: jobs are found again by their attempt, and continue without their
    controller.

    ``taken`` names attempts that it takes away as soon as they run: ``{"0001": 1}`` the first one
    of trial 1; ``deaf`` those that hang until they are cancelled.
    """

    kind = "elsewhere"
    outlives = True

    def __init__(
        self, state: Path, slots: int, taken: Mapping[str, int], deaf: Mapping[str, int]
    ) -> None:
        self.slots, self._state, self._taken, self._deaf = slots, state, taken, deaf

    def submit(self, job: Job) -> str:
        """A grandchild, so that no process waits for it; the job is known once its file is
        there.
        """
        job_id = f"job-{len(list(self._state.glob('*.job')))}"
        (job.folder / "logs").mkdir(exist_ok=True)
        waiting, go = os.pipe()
        os.waitpid(fork(lambda: self._leave(job, job_id, waiting)), 0)
        content = {"trial": job.folder.name, "attempt": job.attempt, "id": job_id}
        (self._state / f"{job_id}.job").write_text(json.dumps(content))
        os.write(go, b"x")
        os.close(go)
        os.close(waiting)
        return job_id

    def find(self, job: Job, job_id: str | None) -> str | None:
        if job_id is not None:
            return job_id
        for path in self._state.glob("*.job"):
            content = json.loads(path.read_text())
            if (content["trial"], content["attempt"]) == (job.folder.name, job.attempt):
                return str(content["id"])
        return None

    def poll(self, job_id: str) -> End | None:
        path = self._state / f"{job_id}.end"
        if not path.exists():
            return None
        end = json.loads(path.read_text())
        return End(end["code"], EndState(end.get("kind", "")), again=end.get("again", False))

    def cancel(self, job_id: str) -> None:
        job = json.loads((self._state / f"{job_id}.job").read_text())
        (begun,) = (
            line
            for line in ledger(self._state)
            if all(line.get(k) == job[k] for k in ("trial", "attempt"))
        )
        assert begun["attempt"] < self._deaf.get(begun["trial"].split("-")[0], 0), (
            f"no request for the end of {job_id}"
        )
        os.kill(begun["pid"], signal.SIGKILL)
        self._end(job_id, {"code": ExitCode.FAILED, "kind": "cancelled"})

    def _leave(self, job: Job, job_id: str, waiting: int) -> int:
        """Become a session of its own, and leave its child to the system."""
        os.setsid()
        fork(lambda: self._run(job, job_id, waiting))
        return 0

    def _run(self, job: Job, job_id: str, waiting: int) -> int:
        os.read(waiting, 1)
        number = job.folder.name.split("-")[0]
        if job.attempt < self._taken.get(number, 0):
            self._end(job_id, {"code": ExitCode.FAILED, "kind": "preempted", "again": True})
            return 0
        environment = {"GRPOSWEEP_ATTEMPT": str(job.attempt)}
        deaf = job.attempt < self._deaf.get(number, 0)
        self._end(
            job_id,
            {
                "code": become_attempt(
                    self._state, job.folder, environment, job.folder / "logs" / "rank-0.log", deaf
                )
            },
        )
        return 0

    def _end(self, job_id: str, end: Mapping[str, Any]) -> None:
        draft = self._state / f".{job_id}"
        draft.write_text(json.dumps(end))
        draft.replace(self._state / f"{job_id}.end")
