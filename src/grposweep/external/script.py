"""Run the user's own training script unchanged, with TRL's configuration, under accelerate or torchrun.

Sources: accelerate commands/launch.py, torch distributed/run.py; transformers hf_argparser.py (``--flag true``, lists as
several values, mappings as JSON); trl scripts/utils.py TrlParser (``--config``, the command line wins).
"""

import json
from collections.abc import Mapping
from typing import Any

from grporecipe.errors import UserError
from grposweep.external import ExternalProgram, NodeContext, TrainerStateTail, Trial, interpreter
from grposweep.schema import AUTO, Trainer


def build_script(trial: Trial) -> ExternalProgram:
    """Build the command: the script behind its launcher, with the recipe as a file or each key as a flag."""
    trainer = trial.trainer
    assert trainer.script is not None  # check_program() has verified it
    taken = ["--config", str(trial.file)] if trainer.takes == "config" else flags(trial.recipe)
    again = ["--resume_from_checkpoint", str(trial.checkpoint)] if trial.checkpoint else []
    command = [*launch(trainer, trial.place), trainer.script, *taken, *again, *trainer.arguments]
    return ExternalProgram(tuple(command), TrainerStateTail(trial.output))


def launch(trainer: Trainer, place: NodeContext) -> list[str]:
    """Return the command up to the script's name. If one node has all ranks, a free port is chosen."""
    python = interpreter(trainer)
    several, launcher = place.nodes > 1, chosen_launcher(trainer, place.processes)
    if launcher == "torchrun":
        meet = ["--nnodes", str(place.nodes), "--node_rank", str(place.node), "--master_addr", place.address,
                "--master_port", str(place.port)] if several else ["--standalone"]  # fmt: skip
        ranks = ["--nproc_per_node", str(place.ranks)]
        return [python, "-m", "torch.distributed.run", *ranks, *meet, *trainer.launch_arguments]
    if launcher == "python":
        return [python, *trainer.launch_arguments]
    meet = ["--num_machines", str(place.nodes), "--machine_rank", str(place.node), "--main_process_ip", place.address,
            "--main_process_port", str(place.port)] if several else ["--main_process_port", "0"]  # fmt: skip
    ranks = ["--num_processes", str(place.processes)]
    return [python, "-m", "accelerate.commands.launch", *ranks, *meet, *trainer.launch_arguments]


def chosen_launcher(trainer: Trainer, processes: int) -> str:
    """Return the launcher with ``auto`` resolved: python keeps the exit code, torchrun starts several ranks on CPUs too."""
    if trainer.launcher != AUTO:
        return trainer.launcher
    return "accelerate" if trainer.launch_arguments else "torchrun" if processes > 1 else "python"


def check_launcher(trainer: Trainer, processes: int) -> None:
    """Raise UserError for several ranks on CPUs under accelerate, which silently starts one because it needs MPI."""
    if trainer.script and trainer.launcher == "accelerate" and processes > 1 and not trainer.launch_arguments:
        raise UserError(
            f"trainer.launcher=accelerate with cluster.processes={processes} and no GPU: accelerate starts several "
            "processes on CPUs through MPI only, and one otherwise. Set trainer.launcher=torchrun."
        )


def flags(recipe: Mapping[str, Any]) -> list[str]:
    """Return the recipe as flags for HfArgumentParser. Null keys get no flag, because null is their usual default."""
    found: list[str] = []
    for name, value in recipe.items():
        if value is not None and value != []:
            found += [f"--{name}", *_words(value)]
    return found


def _words(value: Any) -> list[str]:
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    if isinstance(value, Mapping):
        return [json.dumps(value)]
    return [str(value).lower() if isinstance(value, bool) else str(value)]
