"""A sweep on a real Slurm while everything around it dies: python benchmarks/chaos/run.py
[--seconds 240] [--seed 0].

Needs $SLURM_CONF (slurm/dev_cluster.sh) and root (a small tmpfs that can be filled). At random
times, from a seed: the controller is killed, jobs are requeued, a node is set down, a rank is
killed or stopped, the journal is cut while no process holds it, the disk is full for a while. Then
the sweep is left to end, and held against the same sweep undisturbed.
"""

import argparse
import collections
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
SEEDS = (0, 1)
SWEEP = [
    "trainer=fake",
    "name=s",
    "rules.ignore=[disk]",
    "schedule=steps",
    "schedule.max_steps=60",
    "schedule.checkpoints=20",
    "cluster=slurm",
    "cluster.gpus_per_node=0",
    "cluster.max_jobs=4",
    "cluster.poll_seconds=1",
    "cluster.stall_min=0.2",
    "-m",
    f"seed={','.join(map(str, SEEDS))}",
]
# a trial
DISK_BYTES = 2**20


class Chaos:
    """One disturbed sweep."""

    def __init__(self, folder: Path, seed: int, trials: int, step_seconds: float = 0.2) -> None:
        """A sweep with this number of trials, in its own folder."""
        self.folder, self.draw, self.trials = folder, random.Random(seed), trials
        self.step_seconds, self.peak_mib = step_seconds, 0.0
        self.events: collections.Counter[str] = collections.Counter()
        self.controller: subprocess.Popen[bytes] | None = None

    @property
    def sweep(self) -> Path:
        """Its folder."""
        return self.folder / "outputs" / "s"

    def work(self, seconds: float) -> int:
        """Disturb it for so long, then let it end; the last exit code."""
        happenings: list[Callable[[], bool]] = [
            self.kill_controller,
            self.kill_controller,
            self.requeue,
            self.requeue,
            self.node_down,
            self.kill_rank,
            self.stop_rank,
            self.cut_journal,
            self.fill_disk,
        ]
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.is_whole():
            self.keep_running()
            time.sleep(self.draw.uniform(1, 5))
            happening = self.draw.choice(happenings)
            self.measure_memory()
            if happening():
                self.events[happening.__name__] += 1
        code = 1
        # a sweep that stopped itself continues at the same command
        for _ in range(10):
            self.keep_running()
            assert self.controller is not None
            code = self.controller.wait()
            if self.is_whole():
                break
        return code

    def keep_running(self) -> None:
        """There is a controller."""
        if self.controller is None or self.controller.poll() is not None:
            count = self.trials // len(SEEDS)
            rates = ",".join(f"{1e-4 * 100 ** (n / count):.4g}" for n in range(count))
            pace = f"trainer.args.step_seconds={self.step_seconds}"
            command = [sys.executable, str(PROJECT / "src" / "run.py"), *SWEEP, pace, f"lr={rates}"]
            # not on the disk that is filled
            with (self.folder.parent / "output").open("ab") as output:
                self.controller = subprocess.Popen(
                    command, cwd=self.folder, stdout=output, stderr=output
                )

    def measure_memory(self) -> None:
        """Keep the largest resident memory that any controller has had, in MiB."""
        assert self.controller is not None
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{self.controller.pid}/status").read_text()
            found = re.search(r"VmHWM:\s+(\d+) kB", status)
            self.peak_mib = max(self.peak_mib, int(found[1]) / 1024 if found else 0.0)

    def results(self) -> list[dict[str, Any]]:
        """Every result there is."""
        return [
            json.loads(path.read_text()) for path in sorted(self.sweep.glob("trials/*/result.json"))
        ]

    def is_whole(self) -> bool:
        """Whether every trial has ended finally."""
        return (
            sum(result["status"] in ("finished", "failed") for result in self.results())
            == self.trials
        )

    def kill_controller(self) -> bool:
        """SIGKILL at any point."""
        assert self.controller is not None
        self.measure_memory()
        self.controller.kill()
        self.controller.wait()
        return True

    def requeue(self) -> bool:
        """Slurm takes a running job back to its queue."""
        return bool(jobs := running_jobs()) and slurm("scontrol", "requeue", self.draw.choice(jobs))

    def node_down(self) -> bool:
        """A node dies, and comes back after a while."""
        node = self.draw.choice(["n1", "n2"])
        slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=chaos")
        time.sleep(3)
        return slurm("scontrol", "update", f"NodeName={node}", "State=RESUME") or True

    def kill_rank(self) -> bool:
        """SIGKILL for a process that trains."""
        return self._signal_rank(signal.SIGKILL)

    def stop_rank(self) -> bool:
        """SIGSTOP for one: it hangs."""
        return self._signal_rank(signal.SIGSTOP)

    def cut_journal(self) -> bool:
        """The controller dies in the middle of a line, or the disk lost the end of the file."""
        self.kill_controller()
        journal = self.sweep / "study.journal"
        if not journal.exists():
            return False
        os.truncate(journal, self.draw.randint(journal.stat().st_size // 2, journal.stat().st_size))
        return True

    def fill_disk(self) -> bool:
        """Not a byte is left for a few seconds."""
        filler = self.folder / "filler"
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(b"x" * 4096)
                file.flush()
        time.sleep(4)
        filler.unlink()
        return True

    def _signal_rank(self, number: signal.Signals) -> bool:
        marked = f"grposweep.train {self.sweep}"
        pids = subprocess.run(
            ["pgrep", "-f", marked], capture_output=True, text=True, check=False
        ).stdout.split()
        ranks = [
            pid
            for pid in pids
            if b"srun" not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
        ]
        if not ranks:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(self.draw.choice(ranks)), number)
        return True


def losses(chaos: Chaos, undisturbed: dict[str, float]) -> dict[str, int]:
    """What must be nothing: trials lost, run twice, with a step twice or another value, jobs left,
    damage.
    """
    trials = sorted(chaos.sweep.glob("trials/*-*"))
    whole = [
        trial
        for trial in trials
        if (trial / "result.json").exists() and (trial / "trial.json").exists()
    ]
    values = {read_point(trial): objective(trial) for trial in whole}
    command = [sys.executable, "-m", "grposweep", "status", str(chaos.sweep), "--json"]
    variables = {**os.environ, "PYTHONPATH": str(PROJECT / "src")}
    status = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    damage = json.loads(status.stdout)["damage"]
    print(*damage, sep="\n", file=sys.stderr)
    return {
        "lost": chaos.trials - len(values),
        "twice": len(trials) - len(values),
        "unfinished": sum(
            result["status"] not in ("finished", "failed") for result in chaos.results()
        ),
        "another value": sum(
            value is not None and value != undisturbed[point] for point, value in values.items()
        ),
        "a step twice": sum(has_double_step(trial) for trial in whole),
        "jobs left": len(jobs_left()),
        "files damaged": len(damage),
    }


def read_point(trial: Path) -> str:
    """A trial's point."""
    return json.dumps(json.loads((trial / "trial.json").read_text())["point"], sort_keys=True)


def objective(trial: Path) -> float | None:
    """None for a failed one."""
    value = json.loads((trial / "result.json").read_text()).get("objective")
    return None if value is None else float(value)


def has_double_step(trial: Path) -> bool:
    """Whether a training step stands twice in its metrics."""
    path = trial / "metrics.jsonl"
    # none: it failed before its first step
    text = path.read_text() if path.exists() else ""
    steps = [line["step"] for line in map(json.loads, text.splitlines()) if line["kind"] == "train"]
    return len(steps) != len(set(steps))


def slurm(*command: str) -> bool:
    """Whether one of Slurm's commands did it."""
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def running_jobs() -> list[str]:
    """Our jobs that run."""
    listing = subprocess.run(
        ["squeue", "-h", "--states=RUNNING", "-o", "%i %j"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.split()[0] for line in listing.stdout.splitlines() if "grposweep:" in line]


def jobs_left(seconds: float = 15.0) -> list[str]:
    """Those that still run when a job whose ranks have ended has had time to leave."""
    until = time.monotonic() + seconds
    while (jobs := running_jobs()) and time.monotonic() < until:
        time.sleep(0.5)
    return jobs


@contextlib.contextmanager
def small_disk(size: int) -> Iterator[Path]:
    """A folder on a file system of its own that can be filled."""
    folder = Path(tempfile.mkdtemp()) / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def main() -> int:
    """Print what happened and what was lost; 0 where nothing was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=24, help="an even number")
    parser.add_argument("--keep", action="store_true", help="keep a copy of the sweep")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as quiet:
        (Path(quiet) / "calm").mkdir()
        calm = Chaos(Path(quiet) / "calm", asked.seed, asked.trials, step_seconds=0)
        calm.work(0)
        undisturbed = {
            read_point(trial): objective(trial) or 0.0 for trial in calm.sweep.glob("trials/*-*")
        }
    with small_disk(asked.trials * DISK_BYTES) as folder:
        chaos = Chaos(folder, asked.seed, asked.trials)
        since = time.monotonic()
        code = chaos.work(asked.seconds)
        lost = losses(chaos, undisturbed)
        failed = collections.Counter(
            result["failure"]["class"] for result in chaos.results() if result["status"] == "failed"
        )
        if any(lost.values()) or asked.keep:
            kept = shutil.copytree(chaos.sweep, Path(tempfile.mkdtemp()) / "s")
            print(f"the sweep is kept in {kept}")
    print(
        f"seed {asked.seed}, {time.monotonic() - since:.0f} s, {sum(chaos.events.values())} "
        f"events: {dict(chaos.events)}"
    )
    print(
        f"{asked.trials} trials, {asked.trials - failed.total()} finished, failed: "
        f"{dict(failed)}; last exit code {code}"
    )
    print(f"largest memory of a controller: {chaos.peak_mib:.0f} MiB")
    print(f"losses: {lost}")
    return int(any(lost.values()))


if __name__ == "__main__":
    sys.exit(main())
