"""Where attempts run: one contract (submit, poll, cancel) for every launcher.

Which launcher a configuration means: the registry of the places where attempts run.
"""

from pathlib import Path

from rich.console import Console

from grposweep.errors import UserError
from grposweep.launchers.base import Launcher
from grposweep.launchers.dry_run import DryRun
from grposweep.launchers.local import build_local
from grposweep.launchers.preparation import LocalPreparation, Preparer, SlurmPreparation
from grposweep.launchers.slurm.launcher import build_slurm, code_for
from grposweep.process import Processes
from grposweep.schema import Cluster, Experiment, is_external


def build_launcher(experiment: Experiment, sweep: Path, processes: Processes, console: Console) -> Launcher:
    """The launcher of ``cluster.kind``; ``processes`` start what runs on this machine.

    Raises UserError where this machine cannot serve as one.
    """
    parallel, gpus = experiment.search.parallel, experiment.generation.vllm_gpus
    if gpus and is_external(experiment.trainer.kind):
        raise UserError(
            f"generation.vllm_gpus={gpus}: trainer={experiment.trainer.kind} starts its ranks itself, so the job has no "
            "server of its own. Set generation=transformers, and let the program or another job run one."
        )
    match experiment.cluster.kind:
        case "slurm":
            return build_slurm(experiment.cluster, sweep, parallel)
        case "dry_run":
            code = code_for(experiment.cluster, sweep)
            return DryRun(sweep, code, lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True))
        case _:
            return build_local(experiment, parallel or 1, processes)


def build_preparer(cluster: Cluster, sweep: Path, processes: Processes) -> Preparer:
    """Who prepares models and data: this machine, or with ``cluster.prepare=job`` a job."""
    if cluster.kind == "slurm" and cluster.prepare == "job":
        return SlurmPreparation(cluster, code_for(cluster, sweep))
    return LocalPreparation(processes)


def is_dry(experiment: Experiment) -> bool:
    """Whether nothing is to run at all."""
    return experiment.cluster.kind == "dry_run"
