"""Which keys the user's command reads, and what in it contradicts the sweep."""

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from grporecipe.fields.recipes import read_recipe
from grporecipe.model.framework import FRAMEWORKS as READS
from grporecipe.model.recipe import Recipe
from grporecipe.registries import load_entry
from grporecipe.rules.check import recipe_rules
from grporecipe.rules.keys import find_violations
from grporecipe.terminal import label_text
from grposweep.command import any_program
from grposweep.command._environment import launch_texts
from grposweep.command._frameworks import FRAMEWORKS
from grposweep.command._launched import find_launch, native_args, stated_processes, with_args
from grposweep.command._script import NO_COMMAND
from grposweep.command.base import Base
from grposweep.command.trial_recipe import point_keys, unchanged
from grposweep.config.fields import KEYS, reaches
from grposweep.config.to_setting import read_setting
from grposweep.schema import (
    AUTO,
    Command,
    Experiment,
    Trainer,
    default_of,
    keys_with,
    trl_arguments,
)
from grposweep.schema.registries import LAUNCHERS, is_external, is_opaque

# Programs that run elsewhere, without the environment of the command. Lines of comments do not
# count.
_ELSEWHERE = r"(?m)^(?![ \t]*#).*?\b(ray job submit|sbatch|qsub|bsub|salloc)\b"
SHARDING = (
    "trainer.sharding",
    "trainer.offload",
    "trainer.deepspeed_config",
    "trainer.fsdp_config",
)


# Sizes follow from each other, and beta says whether there is a KL.
_FOLLOWING = ("batch.", "cluster.", "task.", "kl.enabled")


def _unwritten(launch: Recipe) -> set[str]:
    """Return the keys for which a framework's launch has no key of its own, or none that acts: a
    coefficient of a KL that is not in the loss, a micro-batch where tokens decide it.
    """
    framework = READS[launch.framework]
    setting = read_recipe(launch).setting
    rows = {name for name, row in framework.by_name.items() if row.fixable} | set(framework.special)
    keys = {
        key for name, key in KEYS.items() if name not in rows and not key.startswith(_FOLLOWING)
    }
    if setting.kl_placement not in ("loss", "both"):
        keys |= {"kl", "kl.beta"}
    if setting.dynamic_batching:
        keys.add("batch.per_device_train_batch_size")
    return keys


def check_reach(trainer: Trainer, names: Collection[str]) -> Iterator[str]:
    """Name keys that the user's command does not read, each with the nearest key that it reads, and
    its places without a value.
    """
    if not is_external(trainer):
        return
    yield from any_program.unfilled(trainer, names)
    if is_opaque(trainer):
        yield from any_program.unplaced(trainer, names)
        return
    launch = find_launch(trainer)
    unwritten = () if launch is None else _unwritten(with_args(launch, trainer))
    for name in names:
        if reaches(name) and name not in unwritten:
            continue
        if name in SHARDING:
            advice = "Set it in the command, such as accelerate launch --config_file FILE."
        elif name == "task.max_completion_length":
            advice = "Set generation.max_completion_length."
        elif launch is not None:
            advice = "Set it in the command, or the framework's own key, as trainer.args.KEY."
        else:
            key = {"model": "model.path", "task": "task.path"}.get(name, name)
            native = str(keys_with("native").get(key, key.rpartition(".")[2])).split()[0]
            option = trl_arguments().get(key) or native
            advice = f"Set the option of your command that has it, such as trainer.args.{option}."
        yield (
            f"{name}: trainer={trainer.kind} does not read it, so it would change nothing. {advice}"
        )


def check_program(experiment: Experiment) -> Iterator[str]:
    """Say if the user's command cannot run as a trial, or contradicts the sweep."""
    trainer = experiment.trainer
    if not is_external(trainer):
        for name in Command.__dataclass_fields__:
            default = default_of(f"trainer.{name}")
            if getattr(trainer, name) != default:
                yield (
                    f"trainer.{name} with trainer={trainer.kind}: only trainer=command reads it. "
                    f"Set trainer=command, or leave it out (trainer.{name}={label_text(default)})."
                )
        return
    launch = find_launch(trainer)
    if trainer.command is None:
        yield NO_COMMAND
    elif is_opaque(trainer):
        yield from any_program.check_command(experiment)
    elif re.search(r"\b(?:sbatch|srun)\b", trainer.command):
        yield (
            "trainer.command submits a job, and each trial is one with cluster=slurm. Give the "
            "command that runs in the job."
        )
    elif launch is not None:
        yield from check_launch(experiment, with_args(launch, trainer))
    else:
        yield from check_asked(experiment)


def check_launch(experiment: Experiment, launch: Recipe) -> Iterator[str]:
    """Say if a launch of a framework is for other processes than a trial has, or if a key of
    ``trainer.args`` is wrong.
    """
    trainer, cluster, row = experiment.trainer, experiment.cluster, FRAMEWORKS[launch.framework]
    own = native_args(trainer, launch.framework)
    for rule in recipe_rules(launch) if own else ():
        for broken in find_violations(rule, launch):
            if rule.severity == "error" and {key.lstrip("+") for key in broken.fields} & own.keys():
                yield f"trainer.args.{broken.what}: {broken.why}. {broken.instead}"
    for key in row.lists:
        if key in launch.unresolved:
            yield (
                f"{key}={launch.unresolved[key]} is known to a running shell only, so a trial "
                "cannot add to it. Set "
                f"'trainer.args.{key}=[...]', or write the list in the script."
            )
    batch = experiment.batch
    is_fixed = AUTO not in (batch.per_device_train_batch_size, batch.gradient_accumulation_steps)
    if is_fixed and row.ray_cpus and batch.prompts_per_step is not None:
        yield (
            f"batch.prompts_per_step={batch.prompts_per_step}: only sizes that are auto follow it, "
            "and the launch states its "
            "own. Set batch=auto as well, or the framework's own key as trainer.args.KEY."
        )
    stated = stated_processes(launch)
    if stated is not None and stated != cluster.processes:
        yield (
            f"the command starts {stated} processes, and cluster.processes={cluster.processes}. "
            f"Set cluster.processes={stated} (on Slurm cluster.nodes and cluster.gpus_per_node)."
        )
    for name, text in launch_texts(trainer.command or "", Path(trainer.workdir or ".")):
        if found := re.search(_ELSEWHERE, text):
            yield (
                f"{name or 'the command'} calls {found[1]}, whose program does not run in the "
                "trial, so its values do not "
                "arrive. Give the command that it runs, as in: python3 -m verl.trainer.main_ppo ..."
            )
    # Ray waits forever for what is not there.
    if row.ray_cpus and cluster.nodes > 1:
        if "cluster.nodes" in load_entry(LAUNCHERS[cluster.kind]).unread_keys():
            yield (
                f"cluster.nodes={cluster.nodes} with cluster={cluster.kind}: this machine is one "
                "node, and the job of several starts "
                "Ray on each. Set cluster=slurm, or cluster.nodes=1."
            )
        if cluster.gpus_per_node and cluster.cpus_per_gpu < row.ray_cpus:
            yield (
                f"cluster.cpus_per_gpu={cluster.cpus_per_gpu}: "
                f"{READS[launch.framework].traits.display_name} reserves up to {row.ray_cpus} CPUs "
                "a GPU in the job's Ray cluster, and would wait for them forever. Set "
                f"cluster.cpus_per_gpu={row.ray_cpus} or more."
            )


SEVERAL_NODES = (
    "Each node runs the command once. torchrun needs --nproc_per_node only. For accelerate write "
    "in a shell script: --num_machines $NNODES --machine_rank $NODE_RANK --main_process_ip "
    "$MASTER_ADDR --main_process_port $MASTER_PORT, and in --num_processes those of all nodes."
)


def check_asked(experiment: Experiment) -> Iterator[str]:
    """Ask the user's command for its trainer. Say what in it contradicts the sweep.

    Raises UserError if the command builds no GRPO trainer.
    """
    cluster = experiment.cluster
    metric = experiment.search.metric
    record = Base.of(experiment).asked.record
    if record["world_size"] != cluster.processes:
        instead = (
            SEVERAL_NODES
            if cluster.nodes > 1
            else f"Set cluster.processes={record['world_size']} (on Slurm cluster.nodes and "
            "cluster.gpus_per_node)."
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
            "evaluated. Set schedule.evaluations=4."
        )
    if record["assigned"]:
        yield from _assigned_later(experiment)


def _assigned_later(experiment: Experiment) -> Iterator[str]:
    """Name the point's values that a line of the script always replaces after its configuration is
    built.
    """
    trainer = experiment.trainer
    base = Base.of(experiment)
    record = base.asked.record
    changed = point_keys(base.recipe, unchanged(experiment), read_setting(experiment))
    names = changed.keys() | (trainer.args.keys() - base.options.keys())
    if experiment.search.seeds:
        names |= {"seed"}
    for name in names:
        line = record["assigned"].get(name, "")
        if line and not _is_conditional(Path(trainer.workdir or "."), line):
            yield (
                f"{name}: {line} sets {name}={record['values'][name]} after the configuration is "
                "built, so no trial would get another value. Take that line out, or leave "
                f"{name} out of the sweep."
            )


def _is_conditional(folder: Path, location: str) -> bool:
    """Return whether a line runs under some condition only; also if its file cannot be read."""
    file, _, number = location.rpartition(":")
    try:
        tree = ast.parse((folder / file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return True
    branches = [node for node in ast.walk(tree) if isinstance(node, ast.If)]
    return any(
        node.lineno <= int(number) <= (node.end_lineno or 0)
        for node in branches
        if "__name__" not in ast.unparse(node.test)
    )
