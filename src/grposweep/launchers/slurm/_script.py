"""The sbatch script of an attempt: rendered from slurm/trial.sbatch.j2 into the trial folder, and
kept there.
"""

import hashlib
import os
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from grporecipe.errors import ExitCode
from grporecipe.files import Json, write_text
from grposweep.launchers.base import Job
from grposweep.process import SOURCE, inherited, python_flags
from grposweep.schema import Cluster
from grposweep.storage import paths

TEMPLATES = Path(__file__).parent / "templates"
# seconds a warned job waits for a rollout boundary, at least
LEAST_PATIENCE = 5
# at most, left to requeue the job if the boundary is out of reach
REQUEUE_SECONDS = 60
# seconds, of `warn_seconds`
LEAST_LEAD, UNKNOWN_LEAD, MOST_LEAD = 60, 120, 600
# Options of sbatch that are passed on: the user's defaults for what cluster.* leaves open. Any
# other SBATCH_ variable would override the script. A new one is a word here, a key of Jobs in
# schema/running.py, a line of `service_cluster`, of ``refused`` (and of ``hopeless``, if a job can
# wait for it forever) in states.yaml and of conf/cluster/slurm.yaml, a word of
# tests/security/test_shell.py, and as every key a line of tests/config/knobs.txt and of
# CHANGELOG.md, then `make docs`. The template needs no change.
SBATCH_VARIABLES = {
    name: f"SBATCH_{name.upper()}"
    for name in ("partition", "account", "qos", "constraint", "exclude")
}


def attempt_name(job: Job, sweep: Path) -> str:
    """Return an attempt's own name: ``<trial>:<attempt>:grposweep:<sweep>``. squeue shows eight
    characters of it.
    """
    return build_job_name(f"{job.folder.name}:{job.attempt}", sweep)


def build_job_name(part: str, sweep: Path) -> str:
    """Return the name of a job of a sweep; it differs between two sweeps of one name."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", sweep.name)[:40]
    digest = hashlib.sha256(os.fsencode(sweep.resolve())).hexdigest()[:8]
    return f"{part}:grposweep:{readable}-{digest}"


def write_script(job: Job, sweep: Path, code: Path) -> Path:
    """Render an attempt's script into its trial folder; return its path."""
    (job.folder / paths.LOGS).mkdir(exist_ok=True)
    path = job.folder / f"job-{job.attempt}.sbatch"
    write_text(path, render_script(job, sweep, code))
    return path


def render_template(template: str, **content: Any) -> str:
    """Render a template of slurm/; the caller quotes the values for the shell."""
    # not needed by ranks and by validation
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["shell"] = shlex.quote
    return environment.get_template(template).render(bad_input=int(ExitCode.BAD_INPUT), **content)


def render_script(job: Job, sweep: Path, code: Path) -> str:
    """Return the script's text; the job runs the grposweep in the folder ``code``."""
    cluster, name, lead = job.cluster, attempt_name(job, sweep), warn_seconds(job.cluster)
    return render_template(
        "trial.sbatch.j2",
        name=name,
        options=keep_output(
            sbatch_options(cluster, name, job.starts_ranks), job.folder / paths.LOGS
        ),
        setup=cluster.setup,
        environment=environment_lines(cluster),
        log=quoted(job.folder / paths.LOGS / "job.log"),
        working_directory=quoted(Path.cwd()),
        code=quoted(code),
        attempt=job.attempt,
        threads=cluster.threads,
        requeue_limit=cluster.requeue_limit,
        patience_seconds=max(lead - min(lead // 4, REQUEUE_SECONDS), LEAST_PATIENCE),
        cpus_per_task=cpus_per_task(cluster, job.starts_ranks),
        container=list(map(shlex.quote, cluster.container)),
        mounts=mount_sources(cluster),
        python=python_command(cluster),
        arguments=shlex.join(job.arguments),
        serves=job.serves,
        stopped=ExitCode.STOPPED,
        server=_server(job),
        ranks=cluster.processes,
        single_node=cluster.nodes == 1,
    )


def _server(job: Job) -> Json | None:
    """Return the shape of the job's own vLLM server and the shell line that starts it; None if it
    has none.
    """
    cluster = job.cluster
    generation = job.generation
    gpus = generation.vllm_gpus
    if not gpus:
        return None
    own = f"{python_command(cluster)} -m grposweep.train serve {quoted(job.folder.resolve())}"
    command = generation.vllm_server_command
    if command is not None:
        own = f"bash -c {shlex.quote(command)}"
    elsewhere = f' --nodes={cluster.nodes - 1} --exclude="$server_node"'
    if cluster.nodes == 1:
        elsewhere = f" --gres={gres(cluster, cluster.gpus_per_node - gpus)}"
    return {
        "gpus": gpus,
        "gres": gres(cluster, gpus),
        "cpus": gpus * cpus_per_task(cluster),
        "elsewhere": elsewhere,
        "command": own,
        "log": quoted(job.folder / paths.LOGS / "vllm.log"),
        "seconds": generation.vllm_server_timeout,
        "ended": ExitCode.SERVER_ENDED,
    }


def sbatch_options(cluster: Cluster, name: str, starts_ranks: bool) -> list[str]:
    """Return the options of an attempt's job; ``cluster.extra`` comes last and wins."""
    tasks = 1 if starts_ranks else ranks_per_node(cluster)
    options = [
        f"--job-name={name}",
        f"--nodes={cluster.nodes}",
        f"--ntasks-per-node={tasks}",
        f"--cpus-per-task={cpus_per_task(cluster, starts_ranks)}",
    ]
    if cluster.gpus_per_node:
        options.append(f"--gres={gres(cluster, cluster.gpus_per_node)}")
    if cluster.mem_gb is not None:
        options.append(f"--mem={cluster.mem_gb}G")
    return [*options, *shared_options(cluster), *cluster.extra]


def gres(cluster: Cluster, gpus: int) -> str:
    """Return Slurm's ``gres`` for a number of GPUs, with their type if ``cluster.gres_type`` names
    one.
    """
    return f"gpu:{gpus}" if cluster.gres_type is None else f"gpu:{cluster.gres_type}:{gpus}"


def service_cluster(cluster: Cluster) -> Cluster:
    """Return the cluster as the jobs that do not train see it; a partition of their own knows
    neither QOS nor features.
    """
    if cluster.service_partition is not None:
        cluster = replace(cluster, partition=cluster.service_partition, qos=None, constraint=None)
    return replace(
        cluster,
        account=cluster.service_account or cluster.account,
        qos=cluster.service_qos or cluster.qos,
    )


def service_options(cluster: Cluster, name: str, mem_gb: int | None = None) -> list[str]:
    """Return the options of a job of one CPU that does not train; ``mem_gb`` is its memory if the
    user sets none.
    """
    memory = cluster.service_mem_gb or mem_gb
    shape = [f"--job-name={name}", "--nodes=1", "--ntasks=1", "--cpus-per-task=1"]
    if memory:
        shape.append(f"--mem={memory}G")
    return [*shape, *shared_options(service_cluster(cluster))]


def shared_options(cluster: Cluster) -> list[str]:
    """Return the options of every job: where, how long, and to be warned and requeued."""
    asked = {
        "time": cluster.walltime_min,
        **{name: getattr(cluster, name) for name in SBATCH_VARIABLES},
    }
    return [
        # the script itself opens its log
        NO_OUTPUT,
        "--requeue",
        f"--signal=B:USR1@{warn_seconds(cluster)}",
        *(f"--{key}={value}" for key, value in asked.items() if value is not None),
    ]


NO_OUTPUT = "--output=/dev/null"
# Slurm reads patterns such as %j in other names
_PLAIN_PATH = r"[\w./+-]+"


def keep_output(options: Sequence[str], folder: Path) -> list[str]:
    """Let ``slurm.out`` take what a job says before its own log is open, and Slurm's own messages.

    The file exists beforehand: a job whose output cannot be opened would not start.
    """
    path = folder.resolve() / paths.SLURM_OUTPUT
    if not re.fullmatch(_PLAIN_PATH, str(path)) or not folder.is_dir():
        return list(options)
    path.touch()
    kept: list[str] = []
    for option in options:
        if option == NO_OUTPUT:
            kept += [f"--output={path}", "--open-mode=append"]
        else:
            kept.append(option)
    return kept


def warn_seconds(cluster: Cluster) -> int:
    """Return how many seconds before its end a job is warned.

    Until then must fit: the rest of a rollout (minutes for 7B), an optimizer step, and a checkpoint
    (107 GB for 7B, ZeRO-3).
    """
    if cluster.warn_seconds is not None:
        return cluster.warn_seconds
    if cluster.walltime_min is None:
        return UNKNOWN_LEAD
    return min(max(cluster.walltime_min * 60 // 10, LEAST_LEAD), MOST_LEAD)


def ranks_per_node(cluster: Cluster) -> int:
    """Return a rank for each GPU; without GPUs, for each task."""
    return cluster.gpus_per_node or cluster.tasks_per_node


def cpus_per_task(cluster: Cluster, starts_ranks: bool = False) -> int:
    """Return a task's CPUs: its GPU's share, or one for each thread. One task that starts a node's
    ranks has all of theirs.
    """
    each = cluster.cpus_per_gpu if cluster.gpus_per_node else cluster.threads
    return each * ranks_per_node(cluster) if starts_ranks else each


def python_command(cluster: Cluster) -> str:
    """Return the interpreter for the shell: this one, a path, or words such as ``apptainer exec
    image.sif python``.
    """
    python = cluster.python or sys.executable
    arguments = [python] if Path(python).is_file() else shlex.split(python)
    return shlex.join([*arguments, *python_flags(Path(cluster.code or SOURCE))])


# of pyxis, Apptainer, Docker
_MOUNTS = ("--container-mounts", "--container-image", "--bind", "-B", "--volume", "-v")


def mount_sources(cluster: Cluster) -> list[str]:
    """Return the absolute paths on the node, quoted, that options of a container mount or take as
    an image.
    """
    arguments = list(cluster.container)
    # an open quotation mark, which the shell will report
    with suppress(ValueError):
        arguments += shlex.split(cluster.python or "")
    mounts: dict[str, None] = {}
    for word, following in pairwise([*arguments, ""]):
        name, _, value = word.partition("=")
        if name in _MOUNTS:
            sources = (mount.partition(":")[0] for mount in (value or following).split(","))
            mounts |= dict.fromkeys(source for source in sources if source.startswith("/"))
    return list(map(shlex.quote, mounts))


def environment_lines(cluster: Cluster) -> list[tuple[str, str]]:
    """Return the names and quoted values of ``cluster.environment``."""
    return [(name, shlex.quote(value)) for name, value in cluster.environment.items()]


def submit_command(script: Path) -> list[str]:
    """Return the command that submits a script; the user may repeat it. WorkDir is the folder that
    the sweep was started in.
    """
    return ["sbatch", "--parsable", f"--chdir={Path.cwd()}", str(script)]


def submit_environment(cluster: Cluster) -> dict[str, str]:
    """Return the environment for sbatch and the job, without variables of a surrounding job and
    without sbatch's options.
    """
    defaults = {
        variable for name, variable in SBATCH_VARIABLES.items() if getattr(cluster, name) is None
    }
    kept = {"SLURM_CONF"} | defaults
    dropped = (
        "SLURM_",
        "SBATCH_",
        "SRUN_",
        "GRPOSWEEP_",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "MASTER_",
    )
    return {
        name: value
        for name, value in inherited().items()
        if name in kept or not name.startswith(dropped)
    }


def quoted(path: Path) -> str:
    """Return a path for the shell."""
    return shlex.quote(str(path))
