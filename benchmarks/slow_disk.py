"""What commands cost on a slow disk with 100 GB of checkpoints: time, memory, calls of the file
system, and reads of checkpoints.

A staged sweep (scale.py) whose trials get two checkpoints of 1 GB each, in sparse files. A library
that is preloaded holds up each call below outputs/ (tests/faults/slow_disk.c), and counts them.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import scale

PROJECT = Path(__file__).resolve().parents[1]
STEPS = (5, 10)
# bytes
LARGE = {"model.safetensors": 300 << 20, "optimizer.pt": 700 << 20}
COMMAND = ["-m", "grposweep"]
# What an attempt that resumes does with its checkpoints, and what deletes them at its end.
STORAGE = "from grposweep.storage.checkpoints import *; "
FIND = STORAGE + "assert newest_checkpoint(Path({0!r}), 1).step == 10; set_aside(Path({0!r}), 1)"
DROP = STORAGE + "drop_checkpoints(Path({0!r}), 1)"


def write_checkpoint(path: Path, step: int) -> None:
    """Write a checkpoint of a plain training: sparse files, with the end of a zip file where
    torch.save writes one.
    """
    path.mkdir(parents=True)
    for name in (*LARGE, "scheduler.pt", "rng_state.pth"):
        with (path / name).open("wb") as file:
            file.truncate(LARGE.get(name, 0))
        if not name.endswith(".safetensors"):
            with zipfile.ZipFile(path / name, "a") as archive:
                archive.writestr("data", "")
    (path / "trainer_state.json").write_text(f'{{"global_step": {step}}}')


def measure(here: Path, library: Path, milliseconds: float, what: str, words: list[str]) -> None:
    """Run one command, and print its row."""
    rules, log = here / "rules", here / "calls"
    rules.write_text(f"any / {milliseconds / 1000} -1\n")
    log.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(PROJECT / "src"),
        "TERM": "dumb",
        "LD_PRELOAD": str(library),
        "SLOW_LOG": str(log),
        "SLOW_BELOW": str(here / "outputs"),
        "SLOW_RULES": str(rules),
    }
    since = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *words], cwd=here, env=environment, stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - since
    calls = log.read_text().splitlines()
    reads = sum(call.startswith("read ") and "/checkpoint-" in call for call in calls)
    inside = sum("/checkpoint-" in call for call in calls)
    print(
        f"| {what} | {os.waitstatus_to_exitcode(status)} | {seconds:.1f} | "
        f"{used.ru_utime + used.ru_stime:.1f} "
        f"| {used.ru_maxrss / 1024:.0f} | {len(calls):,} | {inside:,} | {reads:,} |",
        flush=True,
    )


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument(
        "--milliseconds", type=float, default=2.0, help="that each call takes longer"
    )
    options = parser.parse_args()
    print(
        (
            "| command | exit code | s | CPU s | most MB | calls | inside of checkpoints | reads "
            "there |\n|---"
        )
        + "|---" * 7
        + "|"
    )
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        library, source = here / "slow.so", PROJECT / "tests" / "faults" / "slow_disk.c"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-D_LARGEFILE64_SOURCE", "-o", library, source, "-ldl"],
            check=True,
        )
        arguments = [
            "trainer=fake",
            "name=s",
            *scale.SPACES["grid"],
            f"search.trials={options.trials}",
        ]
        scale.command(here, arguments)
        trials = sorted((here / "outputs" / "s" / "trials").iterdir())
        for trial in trials:
            for step in STEPS:
                write_checkpoint(trial / "checkpoints" / f"checkpoint-{step}", step)
        one = str(trials[0] / "checkpoints")
        path = f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parent)!r}); "
        again = ["-c", path + f"import scale; scale.control({arguments!r})"]
        for what, words in {
            "`status s`": [*COMMAND, "status", "s"],
            "`show 0`": [*COMMAND, "show", "s", "0"],
            "`list`": [*COMMAND, "list"],
            "`report s`": [*COMMAND, "report", "s"],
            "`export s`": [*COMMAND, "export", "s"],
            "the sweep's command again": again,
            "a trial's way to its newest checkpoint": ["-c", FIND.format(one)],
            "deleting a trial's checkpoints (2 GB)": ["-c", DROP.format(one)],
        }.items():
            measure(here, library, options.milliseconds, what, words)


if __name__ == "__main__":
    main()
