"""A short chaos run; the long ones are recorded in benchmarks/chaos."""

import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[2] / "benchmarks" / "chaos" / "run.py"


@pytest.mark.slurm
def test_a_sweep_loses_nothing_while_controllers_jobs_nodes_and_the_disk_fail_around_it() -> None:
    """A minute of kills, requeues, dead nodes, a cut journal and a full disk, from a seed."""
    command = [sys.executable, str(RUN), "--seconds", "60", "--trials", "8", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split(" events")[0].split()[-1]) >= 4
