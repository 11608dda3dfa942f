"""sbatch, squeue, sacct, scancel, scontrol and srun on PATH, speaking the tools' own text; one
process per job, no daemons.

State is a folder, $FAKE_SLURM: ``refuse`` holds what sbatch answers instead of submitting,
``silent`` makes squeue fail, ``<id>.state`` overrides a job's state, ``<id>.gone`` hides it from
the queue, ``accounts`` switches sacct on, ``calls`` lists the calls. Not covered: resources,
limits, requeueing, more than one node; tests/slurm has the real thing.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(os.environ.get("FAKE_SLURM", "."))


def sbatch(arguments: list[str]) -> int:
    """Run the script, unless a refusal is staged."""
    refusal = STATE / "refuse"
    if refusal.exists():
        print(refusal.read_text(), file=sys.stderr)
        return 1
    script = Path(arguments[-1])
    name = re.search(r"^#SBATCH --job-name=(.*)$", script.read_text(), re.MULTILINE)
    assert name
    job_id = str(len(list(STATE.glob("*.job"))) + 1)
    environment = {**os.environ, "SLURM_JOB_ID": job_id, "SLURM_JOB_NODELIST": "fake"}
    runner = f"bash {json.dumps(str(script))}; echo $? > {STATE}/{job_id}.code"
    process = subprocess.Popen(
        ["bash", "-c", runner],
        env=environment,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
    )
    (STATE / f"{job_id}.job").write_text(
        json.dumps({"id": job_id, "name": name[1], "pid": process.pid})
    )
    print(job_id)
    return 0


def jobs() -> list[dict[str, str]]:
    """Every job with its state and status."""
    found = []
    for path in sorted(STATE.glob("*.job"), key=lambda path: int(path.stem)):
        job = json.loads(path.read_text())
        code = path.with_suffix(".code")
        state, status, reason = "RUNNING", 0, "None"
        if code.exists() and code.read_text():
            status = int(code.read_text()) * 256
            state = "FAILED" if status else "COMPLETED"
        if path.with_suffix(".state").exists():
            state, _, reason = path.with_suffix(".state").read_text().partition(" ")
        found.append(
            {
                **job,
                "state": state,
                "status": str(status),
                "reason": reason or "None",
                "nodes": "n1",
            }
        )
    return found


def squeue(arguments: list[str]) -> int:
    """Fixed columns, in the order and widths asked for."""
    if (STATE / "silent").exists():
        print(
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
            file=sys.stderr,
        )
        return 1
    (form,) = [
        argument.removeprefix("--Format=")
        for argument in arguments
        if argument.startswith("--Format=")
    ]
    columns = {
        "JobID": "id",
        "State": "state",
        "exit_code": "status",
        "Reason": "reason",
        "NodeList": "nodes",
        "Name": "name",
    }
    for job in jobs():
        if not (STATE / f"{job['id']}.gone").exists():
            widths = [column.split(":") for column in form.split(",")]
            print(
                "".join(
                    str(job[columns[name]])[: int(width)].ljust(int(width))
                    for name, width in widths
                )
            )
    return 0


def sacct(arguments: list[str]) -> int:
    """Parsable lines, where there is accounting."""
    if not (STATE / "accounts").exists():
        print("Slurm accounting storage is disabled", file=sys.stderr)
        return 1
    for job in jobs():
        asked = next(word for word in arguments if word.startswith(("--jobs=", "--name="))).split(
            "=", 1
        )[1]
        if job["id"] in asked.split(",") or job["name"] == asked:
            state = f"{job['state']} by 0" if job["state"] == "CANCELLED" else job["state"]
            print(f"{job['id']}|{state}|{int(job['status']) // 256}:0|n1|{job['name']}")
    return 0


def scancel(arguments: list[str]) -> int:
    """Kill the jobs and call them cancelled."""
    for job in jobs():
        if job["id"] in arguments and job["state"] == "RUNNING":
            # A job that has ended since it was listed has no process left.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(job["pid"]), signal.SIGKILL)
            (STATE / f"{job['id']}.state").write_text("CANCELLED")
    return 0


def srun(arguments: list[str]) -> int:
    """One rank: the command after srun's own options, in the environment of a step of one task."""
    command = arguments[
        next(index for index, word in enumerate(arguments) if not word.startswith("-")) :
    ]
    step = {
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_STEP_NUM_TASKS": "1",
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
    }
    os.execvpe(command[0], command, {**os.environ, **step})


def install(folder: Path) -> None:
    """Put the tools into a folder for PATH."""
    folder.mkdir()
    for tool in ("sbatch", "squeue", "sacct", "scancel", "srun"):
        path = folder / tool
        path.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -S "{Path(__file__).resolve()}" {tool} "$@"\n'
        )
        path.chmod(0o755)


if __name__ == "__main__":
    tool, *rest = sys.argv[1:]
    with (STATE / "calls").open("a") as calls:
        calls.write(f"{time.time()} {tool}\n")
    sys.exit(
        {"sbatch": sbatch, "squeue": squeue, "sacct": sacct, "scancel": scancel, "srun": srun}[
            tool
        ](rest)
    )
