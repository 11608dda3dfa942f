"""One grid on one Slurm, ours and the incumbent's: python benchmarks/slurm_vs_submitit/run.py
(needs $SLURM_CONF).

Durations only (trainer=fake, and a sleep): 32 lognormal ones times two sizes of a group, of which
one is invalid; 8 slots. Then 8 trials of which one job is killed. Then real GRPO of the tiny model:
6 learning rates times the same two sizes, 2 slots. Prints the tables that RESULTS.md keeps. The
incumbent's environment is made under .venvs.
"""

import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
VENV = PROJECT / ".venvs" / "submitit"
SLOTS, TRIALS, STEPS, SEED = 8, 32, 10, 0
MEDIAN_SECONDS, SIGMA = 4.0, 1.0
# for one sweep of durations
LIMIT_SECONDS = 180
REAL_SLOTS, REAL_LIMIT_SECONDS = 2, 900
REAL_LRS = "1e-4,2e-4,3e-4,1e-3,2e-3,3e-3"
REAL = ["schedule=steps", "schedule.max_steps=40", "schedule.evaluations=2", "trainer.keep=none"]


@dataclass
class Measured:
    """One sweep: its wall time, the jobs that it launched, those that were invalid, and the trials
    that finished.
    """

    name: str
    seconds: float
    jobs: int
    invalid: int
    finished: int
    # None: it still waited after LIMIT_SECONDS
    code: int | None


def main() -> None:
    """Measure both, whole and with a killed job."""
    if not (VENV / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    pip = [
        str(VENV / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "-r",
        str(HERE / "requirements.txt"),
    ]
    subprocess.run(pip, check=True)
    draw = random.Random(SEED)
    durations = [
        round(draw.lognormvariate(math.log(MEDIAN_SECONDS), SIGMA), 3) for _ in range(TRIALS)
    ]
    busy = sum(durations)
    least = max(busy / SLOTS, max(durations))
    print(
        f"{TRIALS} valid trials, {busy:.0f} s of work, longest {max(durations):.1f} s, {SLOTS} "
        f"slots: at least {least:.0f} s\n"
    )
    print(
        "| sweep | makespan s | idle slots | jobs | invalid when launched | finished "
        "|\n|---|---|---|---|---|---|"
    )
    for measure in (ours, incumbent):
        found = measure(durations, False)
        idle = 1 - busy / (SLOTS * found.seconds)
        print(
            f"| {found.name} | {found.seconds:.0f} | {idle:.0%} | {found.jobs} | "
            f"{found.invalid} | {found.finished} |",
            flush=True,
        )
    print("\n| one of 8 jobs killed | exit code | finished |\n|---|---|---|")
    for measure in (ours, incumbent):
        found = measure([10 + index / 10 for index in range(8)], True)
        ended = (
            f"none, still waiting after {LIMIT_SECONDS} s"
            if found.code is None
            else str(found.code)
        )
        print(f"| {found.name} | {ended} | {found.finished} of 7 |", flush=True)
    prepare_model()
    print(
        "\n| real GRPO | makespan s | jobs | invalid when launched | finished "
        "|\n|---|---|---|---|---|"
    )
    for real in (ours_real, incumbent_real):
        found = real()
        print(
            f"| {found.name} | {found.seconds:.0f} | {found.jobs} | {found.invalid} | "
            f"{found.finished} |",
            flush=True,
        )


def prepare_model() -> None:
    """The tiny model is made before the clock starts."""
    command = [sys.executable, str(PROJECT / "src" / "run.py"), "debug=smoke"]
    subprocess.run(command, cwd=tempfile.mkdtemp(), check=True, stdout=subprocess.DEVNULL)


def ours_real() -> Measured:
    """Every trial is a job of its own."""
    arguments = [
        *REAL,
        "cluster=slurm",
        "cluster.gpus_per_node=0",
        f"cluster.max_jobs={REAL_SLOTS}",
        "name=s",
        "-m",
        f"lr={REAL_LRS}",
        "batch.num_generations=8,12",
    ]
    folder = Path(tempfile.mkdtemp())
    command = [sys.executable, str(PROJECT / "src" / "run.py"), *arguments]
    seconds, code = timed(command, folder, kill=False, limit=REAL_LIMIT_SECONDS)
    trials = list(folder.glob("outputs/s/trials/*"))
    return Measured("grposweep", seconds, len(trials), 0, finished_in(folder), code)


def incumbent_real() -> Measured:
    """The same trainings, each by a run of ours inside its job."""
    folder = Path(tempfile.mkdtemp())
    arguments = [
        f"lr=choice({REAL_LRS})",
        "generations=choice(8,12)",
        "hydra.sweeper.n_trials=12",
        f"hydra.sweep.dir={folder / 'out'}",
        f"python={sys.executable}",
        f"run={PROJECT / 'src' / 'run.py'}",
        f"folder={folder}",
        f"arguments='{' '.join([*REAL, 'cluster.warm=false'])}'",
    ]
    command = [str(VENV / "bin" / "python"), str(HERE / "incumbent_grpo.py"), "-m", *arguments]
    seconds, code = timed(command, folder, kill=False, limit=REAL_LIMIT_SECONDS)
    jobs = [path for path in folder.glob("out/[0-9]*") if path.is_dir()]
    results = [path.read_bytes() for path in folder.glob("out/.submitit/*/*_result.pkl")]
    invalid = sum(b"must be divisible" in result for result in results)
    return Measured(
        "hydra-optuna-sweeper + submitit", seconds, len(jobs), invalid, finished_in(folder), code
    )


def finished_in(folder: Path) -> int:
    """Trials that trained to their end."""
    return sum(
        '"finished"' in path.read_text() for path in folder.glob("outputs/*/trials/*/result.json")
    )


def ours(durations: list[float], kill: bool) -> Measured:
    """Grposweep with its default settings, but the number of jobs."""
    steps = ",".join(f"{seconds / STEPS:.4f}" for seconds in durations)
    arguments = [
        "trainer=fake",
        "schedule=steps",
        f"schedule.max_steps={STEPS}",
        "cluster=slurm",
        "cluster.gpus_per_node=0",
        f"cluster.max_jobs={SLOTS}",
        "name=s",
        "-m",
        f"trainer.args.step_seconds={steps}",
        "batch.num_generations=8,12",
    ]
    folder = Path(tempfile.mkdtemp())
    seconds, code = timed(
        [sys.executable, str(PROJECT / "src" / "run.py"), *arguments], folder, kill
    )
    trials = list(folder.glob("outputs/s/trials/*"))
    return Measured("grposweep", seconds, len(trials), 0, finished_in(folder), code)


def incumbent(durations: list[float], kill: bool) -> Measured:
    """hydra-optuna-sweeper's grid sampler through hydra-submitit-launcher."""
    steps = ",".join(f"{seconds / STEPS:.4f}" for seconds in durations)
    arguments = [
        f"step_seconds=choice({steps})",
        "generations=choice(8,12)",
        f"hydra.sweeper.n_trials={2 * len(durations)}",
        f"hydra.sweep.dir={(folder := Path(tempfile.mkdtemp())) / 'out'}",
    ]
    command = [str(VENV / "bin" / "python"), str(HERE / "incumbent.py"), "-m", *arguments]
    seconds, code = timed(command, folder, kill)
    jobs = [path for path in folder.glob("out/[0-9]*") if path.is_dir()]
    results = [path.read_bytes() for path in folder.glob("out/.submitit/*/*_result.pkl")]
    invalid = sum(b"must be divisible" in result for result in results)
    finished = len(results) - invalid
    return Measured("hydra-optuna-sweeper + submitit", seconds, len(jobs), invalid, finished, code)


def timed(
    command: list[str], folder: Path, kill: bool, limit: float = LIMIT_SECONDS
) -> tuple[float, int | None]:
    """Wall time and exit code; ``kill`` ends one running job by SIGKILL once it has run for a few
    seconds.
    """
    since = time.monotonic()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
    }
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=output
        )
        if kill:
            wait_for(lambda: bool(running()), 60)
            time.sleep(4)
            subprocess.run(["scancel", "--full", "--signal=KILL", running()[0]], check=True)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            code = None
    return time.monotonic() - since, code


def running() -> list[str]:
    """The ids of the jobs that run."""
    listing = subprocess.run(
        ["squeue", "-h", "--states=RUNNING", "-o", "%i"], capture_output=True, text=True, check=True
    )
    return listing.stdout.split()


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until it holds."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.2)


if __name__ == "__main__":
    main()
