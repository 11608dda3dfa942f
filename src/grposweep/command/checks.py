"""Which keys a trainer reads, and what the files and the command of an external one contradict."""

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from grporecipe.registries import load_entry
from grposweep.command import any_program
from grposweep.command.base import Base
from grposweep.command.script import missing_files
from grposweep.config.fields import reaches
from grposweep.registries import EXTERNAL, LAUNCHERS, asks, is_external, is_opaque
from grposweep.schema import (
    Cluster,
    Experiment,
    Trainer,
    keys_with,
    trl_arguments,
)

SHARDING = (
    "trainer.sharding",
    "trainer.offload",
    "trainer.deepspeed_config",
    "trainer.fsdp_config",
)


def _theirs(key: str) -> str:
    """Return the key of a recipe with the same meaning, under TRL's names."""
    whole = {"model": "model.path", "task": "task.path"}.get(key, key)
    return (
        trl_arguments().get(whole)
        or str(keys_with("native").get(whole, whole.rpartition(".")[2])).split()[0]
    )


def check_keys(experiment: Experiment, names: Collection[str]) -> Iterator[str]:
    """Name keys and groups that the program does not read, and a recipe for more processes."""
    yield from check_reach(experiment.trainer, names)
    yield from check_processes(experiment, names)


def check_reach(trainer: Trainer, names: Iterable[str]) -> Iterator[str]:
    """Name keys that an external trainer does not read, each with the nearest key that it reads."""
    if is_opaque(trainer.kind):
        yield from any_program.unplaced(trainer, names)
        return
    for name in names if is_external(trainer.kind) else ():
        if reaches(name):
            continue
        if name in SHARDING:
            advice = (
                "Set trainer.launch_arguments=[--config_file,FILE], an accelerate configuration."
            )
        elif name == "task.max_completion_length":
            advice = "Set generation.max_completion_length."
        elif not asks(trainer.kind):
            advice = "Set it in trainer.recipe, or among trainer.arguments."
        else:
            advice = (
                f"Set the option of your command that has it, such as trainer.args.{_theirs(name)}."
            )
        yield (
            f"{name}: trainer={trainer.kind} does not read it, so it would change nothing. {advice}"
        )


def check_ray(trainer: Trainer, cluster: Cluster, cpus: int) -> Iterator[str]:
    """Say if a program in a Ray cluster would wait forever, or expects another shape than the
    job's.
    """
    shape = {
        "trainer.nnodes": cluster.nodes,
        "trainer.n_gpus_per_node": cluster.processes // cluster.nodes,
    }
    for word in trainer.arguments:
        key, _, value = word.lstrip("+").partition("=")
        if key in shape and value != str(shape[key]):
            yield (
                f"trainer.arguments has {word}, and the trial has {key}={shape[key]}: the "
                "program would wait for nodes or GPUs "
                "that are not there. Leave it out, and set cluster.nodes and cluster.gpus_per_node."
            )
    if cluster.nodes == 1:
        return
    if "cluster.nodes" in load_entry(LAUNCHERS[cluster.kind]).unread_keys():
        yield (
            f"cluster.nodes={cluster.nodes} with cluster={cluster.kind}: this machine is one "
            "node, and the job of several starts "
            "Ray on each. Set cluster=slurm, or cluster.nodes=1."
        )
    if cluster.gpus_per_node and cluster.cpus_per_gpu < cpus:
        yield (
            f"cluster.cpus_per_gpu={cluster.cpus_per_gpu}: trainer={trainer.kind} reserves up "
            f"to {cpus} CPUs a GPU in the job's "
            f"Ray cluster, and would wait for them forever. Set cluster.cpus_per_gpu={cpus} or "
            "more."
        )


def check_program(experiment: Experiment) -> Iterator[str]:
    """Say if a program lacks its script, or if files that it needs do not exist."""
    trainer, cluster = experiment.trainer, experiment.cluster
    external = EXTERNAL.get(trainer.kind)
    if external is not None and external.opaque:
        yield from any_program.check_command(experiment)
    elif trainer.command is not None and not (external and external.asks):
        yield (
            f"trainer.command with trainer={trainer.kind}: only trainer=script and "
            "trainer=command run it. Set one of them."
        )
    if external is None:
        return
    if trainer.launcher == "python" and cluster.processes > 1:
        yield (
            "trainer.launcher=python starts one process, and "
            f"cluster.processes={cluster.processes}. "
            "Set trainer.launcher=torchrun or accelerate."
        )
    if external.ray_cpus:
        yield from check_ray(trainer, cluster, external.ray_cpus)
    missing = list(missing_files(trainer))
    yield from missing
    if external.asks and not missing:
        yield from check_command(experiment)


SEVERAL_NODES = (
    "Each node runs the command once. torchrun needs --nproc_per_node only. For accelerate "
    "write in a shell script: "
    "--num_machines $NNODES --machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR "
    "--main_process_port $MASTER_PORT, and in "
    "--num_processes those of all nodes."
)
# of a command that grposweep puts together
PARTS = ("script", "recipe", "launch_arguments", "arguments", "python")


def check_command(experiment: Experiment) -> Iterator[str]:
    """Ask the user's command for its trainer. Say what in it contradicts the sweep.

    Raises UserError if the command builds no GRPO trainer.
    """
    trainer, cluster, metric = experiment.trainer, experiment.cluster, experiment.search.metric
    unread = [
        f"trainer.{name}"
        for name in PARTS
        if trainer.command is not None and getattr(trainer, name)
    ]
    if unread:
        yield (
            f"trainer.command and {', '.join(unread)}: the command holds all of it. Leave "
            f"{' and '.join(unread)} out."
        )
        return
    if trainer.command is not None and re.search(r"\b(?:sbatch|srun)\b", trainer.command):
        yield (
            "trainer.command submits a job, and each trial is one with cluster=slurm. Give "
            "the command that runs in the job."
        )
        return
    record = Base.of(experiment).asked.record
    if record["world_size"] != cluster.processes:
        several = cluster.nodes > 1 and trainer.command is not None
        instead = (
            SEVERAL_NODES
            if several
            else (
                f"Set cluster.processes={record['world_size']} (on Slurm cluster.nodes and "
                "cluster.gpus_per_node)."
            )
        )
        yield (
            f"the command starts {record['world_size']} processes, and "
            f"cluster.processes={cluster.processes}. {instead}"
        )
    evaluates = (
        experiment.schedule.evaluations > 0 or record["values"].get("eval_strategy", "no") != "no"
    )
    if metric.startswith("eval_") and not record["evaluates"]:
        yield (
            f"search.metric={metric}: {record['line']} passes no eval_dataset to its trainer, "
            "so there is no such metric. Pass "
            f"one, or set search.metric={metric.removeprefix('eval_')} for the rewards of training."
        )
    elif metric.startswith("eval_") and not evaluates:
        yield (
            f"search.metric={metric}: the program's eval_strategy is no, so nothing would be "
            "evaluated. Set "
            "schedule.evaluations=4."
        )


SHAPE = frozenset(
    {f"cluster.{name}" for name in ("processes", "nodes", "gpus_per_node", "tasks_per_node")}
)


def check_processes(experiment: Experiment, names: Collection[str]) -> Iterator[str]:
    """Say if a recipe is for several processes, and trials would have one that the command does not
    ask for.
    """
    recipe, processes = experiment.trainer.recipe, experiment.cluster.processes
    is_chosen = processes > 1 or not names or not SHAPE.isdisjoint(names)
    if (
        experiment.trainer.kind not in EXTERNAL
        or recipe is None
        or is_chosen
        or asks(experiment.trainer.kind)
    ):
        return
    # only a program's recipe needs it
    from grporecipe.reading.load import stated_processes

    if stated := stated_processes(Path(recipe)):
        yield (
            f"trainer.recipe={recipe} is for {stated} processes, and cluster.processes=1: a "
            "trial would train on one, with other "
            f"batches. Set cluster.processes={stated} (on Slurm cluster.nodes and "
            "cluster.gpus_per_node), or "
            "cluster.processes=1 if one is meant."
        )
