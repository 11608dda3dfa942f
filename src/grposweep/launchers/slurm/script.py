"""The sbatch script of an attempt: rendered from slurm/trial.sbatch.j2 into the trial folder, and kept there."""

import hashlib
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from grposweep.files import PROJECT, write_text
from grposweep.launchers.base import Job
from grposweep.process import inherited
from grposweep.schema import Cluster
from grposweep.storage import paths
from grposweep.storage.exit_code import ExitCode

TEMPLATES = PROJECT / "slurm"
LEAST_PATIENCE = 5  # seconds a warned job waits for a rollout boundary, at least
# A person's defaults for what cluster.* leaves open; any other SBATCH_ variable would override the script.
DEFAULTS = {name: f"SBATCH_{name.upper()}" for name in ("partition", "account", "qos", "constraint", "exclude")}


def job_name(job: Job, sweep: Path) -> str:
    """``grposweep:<sweep>:<trial>:<attempt>``: one name for one attempt."""
    return f"{sweep_name(sweep)}:{job.folder.name}:{job.attempt}"


def sweep_name(sweep: Path) -> str:
    """What the names of a sweep's jobs begin with; another one where two sweeps are called alike."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", sweep.name)[:40]
    digest = hashlib.sha256(os.fsencode(sweep.resolve())).hexdigest()[:8]
    return f"grposweep:{readable}-{digest}"


def write_script(job: Job, sweep: Path, code: Path) -> Path:
    """Render an attempt's script into its trial folder; returns its path."""
    (job.folder / paths.LOGS).mkdir(exist_ok=True)
    path = job.folder / f"job-{job.attempt}.sbatch"
    write_text(path, render_script(job, sweep, code))
    return path


def render(template: str, **content: Any) -> str:
    """A template of slurm/ with its blanks filled; whoever fills them quotes for the shell."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    return environment.get_template(template).render(**content)


def render_script(job: Job, sweep: Path, code: Path) -> str:
    """The script's text; the job runs the package that lies in ``code``."""
    cluster, name = job.cluster, job_name(job, sweep)
    return render(
        "trial.sbatch.j2",
        name=name,
        options=sbatch_options(cluster, name, job.starts_ranks),
        setup=cluster.setup,
        log=quoted(job.folder / paths.LOGS / "job.log"),
        working_directory=quoted(Path.cwd()),
        code=quoted(code),
        attempt=job.attempt,
        threads=cluster.threads,
        requeue_limit=cluster.requeue_limit,
        patience_seconds=max(cluster.warn_seconds * 3 // 4, LEAST_PATIENCE),
        cpus_per_task=cpus_per_task(cluster, job.starts_ranks),
        container=[shlex.quote(option) for option in cluster.container],
        python=shlex.quote(cluster.python or sys.executable),
        folder=quoted(job.folder.resolve()),
        stopped=ExitCode.STOPPED,
        server=_server(job),
        ranks=cluster.processes,
        single_node=cluster.nodes == 1,
    )


def _server(job: Job) -> dict[str, Any] | None:
    """The job's own vLLM server, where it has one: its shape, and the shell line that starts it."""
    cluster, generation = job.cluster, job.generation
    gpus = generation.vllm_gpus
    if not gpus:
        return None
    own = f"{shlex.quote(cluster.python or sys.executable)} -m grposweep.train serve {quoted(job.folder.resolve())}"
    command = generation.vllm_server_command
    on_one_node = f" --gres=gpu:{cluster.gpus_per_node - gpus}"
    on_the_others = f' --nodes={cluster.nodes - 1} --exclude="$server_node"'
    return {
        "gpus": gpus,
        "cpus": gpus * cpus_per_task(cluster),
        "elsewhere": on_one_node if cluster.nodes == 1 else on_the_others,
        "command": own if command is None else f"bash -c {shlex.quote(command)}",
        "log": quoted(job.folder / paths.LOGS / "vllm.log"),
        "seconds": generation.vllm_server_timeout,
        "ended": ExitCode.SERVER_ENDED,
    }


def sbatch_options(cluster: Cluster, name: str, starts_ranks: bool = False) -> list[str]:
    """What the job asks for; ``extra`` comes last and wins."""
    options = [
        f"--job-name={name}",
        f"--nodes={cluster.nodes}",
        f"--ntasks-per-node={1 if starts_ranks else ranks_per_node(cluster)}",
        f"--cpus-per-task={cpus_per_task(cluster, starts_ranks)}",
    ]
    if cluster.gpus_per_node:
        options.append(f"--gres=gpu:{cluster.gpus_per_node}")
    if cluster.mem_gb is not None:
        options.append(f"--mem={cluster.mem_gb}G")
    return [*options, *asked_of(cluster), *cluster.extra]


def asked_of(cluster: Cluster) -> list[str]:
    """What every job of ours asks for: where, how long, and to be warned and requeued."""
    asked = {"time": cluster.walltime_min, **{name: getattr(cluster, name) for name in DEFAULTS}}
    return [
        # Slurm reads patterns such as %j in file names, so the script itself opens its log.
        "--output=/dev/null",
        "--requeue",
        f"--signal=B:USR1@{cluster.warn_seconds}",
        *(f"--{key}={value}" for key, value in asked.items() if value is not None),
    ]


def ranks_per_node(cluster: Cluster) -> int:
    """A rank a GPU, without GPUs a rank a task."""
    return cluster.gpus_per_node or cluster.tasks_per_node


def cpus_per_task(cluster: Cluster, starts_ranks: bool = False) -> int:
    """CPUs of a rank: its GPU's share, without GPUs one a thread; of all ranks of a node where one task starts them."""
    each = cluster.cpus_per_gpu if cluster.gpus_per_node else cluster.threads
    return each * ranks_per_node(cluster) if starts_ranks else each


def submit_command(script: Path) -> list[str]:
    """The command that submits a script; it may be given again by hand."""
    return ["sbatch", "--parsable", "--chdir=/", str(script)]


def submit_environment(cluster: Cluster) -> dict[str, str]:
    """What sbatch and the job inherit: nothing of a job that we may be in ourselves, and no option but defaults."""
    defaults = {variable for name, variable in DEFAULTS.items() if getattr(cluster, name) is None}
    kept = {"SLURM_CONF"} | defaults
    ours = ("SLURM_", "SBATCH_", "SRUN_", "GRPOSWEEP_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_")
    return {name: value for name, value in inherited().items() if name in kept or not name.startswith(ours)}


def quoted(path: Path) -> str:
    """A path for the shell."""
    return shlex.quote(str(path))
