"""A real Slurm: the one that $SLURM_CONF names, for which `make slurm` starts
slurm/dev_cluster.sh.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from cluster_jobs import ours, slurm


@pytest.fixture(scope="session", autouse=True)
def cluster() -> None:
    """Skip without a cluster of two nodes; fail instead where $GRPOSWEEP_SLURM_REQUIRED says that
    it must be there. The second worker of pytest has a cluster of its own.
    """
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw1":
        os.environ["SLURM_CONF"] = os.environ["GRPOSWEEP_SECOND_SLURM_CONF"]
    why = "no sinfo on this machine"
    if shutil.which("sinfo"):
        nodes = subprocess.run(
            ["sinfo", "-h", "-N", "-o", "%N"], capture_output=True, text=True, check=False
        )
        if len(set(nodes.stdout.split())) >= 2:
            return
        why = nodes.stderr.strip() or "fewer than two nodes"
    if os.environ.get("GRPOSWEEP_SLURM_REQUIRED"):
        pytest.fail(f"Slurm does not answer: {why}")
    pytest.skip(f"needs Slurm (make slurm starts one): {why}")


@pytest.fixture(autouse=True)
def emptied() -> Iterator[None]:
    """No job of one test is left for the next."""
    yield
    left = ours()
    if left:
        slurm("scancel", *left)
