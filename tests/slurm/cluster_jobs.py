"""Slurm's own words about our jobs, for the tests on a real cluster."""

import os
import subprocess


def slurm(*command: str) -> str:
    """What one of Slurm's commands says."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def ours() -> dict[str, str]:
    """Our jobs that have not ended, with their states."""
    lines = slurm("squeue", "--noheader", f"--user={os.getuid()}", "--format=%i %T %j").splitlines()
    found = [line.split(maxsplit=2) for line in lines]
    return {job: state for job, state, name in found if ":grposweep:" in name}
