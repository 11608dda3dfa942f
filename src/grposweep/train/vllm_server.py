"""The vLLM server of a trial's own, as TRL wants it: ``python -m grposweep.train serve <trial folder>``."""

import os
import sys
from pathlib import Path

from grposweep.config.compose import load_experiment
from grposweep.schema import Experiment
from grposweep.storage import paths


def serve(folder: Path) -> None:
    """Become the server, on port $GRPOSWEEP_VLLM_PORT."""
    from grposweep.train.models import load_model  # torch; only here

    experiment = load_experiment(folder / paths.CONFIG)
    path = load_model(experiment.model).path
    command = server_command(experiment, path, int(os.environ["GRPOSWEEP_VLLM_PORT"]))
    # vLLM's development mode holds the endpoints by which TRL sends its weights.
    os.execve(sys.executable, command, {**os.environ, "VLLM_SERVER_DEV_MODE": "1"})


def server_command(experiment: Experiment, path: str, port: int) -> list[str]:
    """What TRL's own ``trl vllm-serve`` would start for this model.

    Source: trl 1.16 scripts/vllm_serve.py, build_command.
    """
    from trl.scripts.vllm_serve import ScriptArguments, build_command

    model, generation = experiment.model, experiment.generation
    arguments = ScriptArguments(
        model=path,
        revision=model.revision,
        tensor_parallel_size=generation.vllm_tensor_parallel_size,
        data_parallel_size=max(generation.vllm_gpus // generation.vllm_tensor_parallel_size, 1),
        port=port,
        gpu_memory_utilization=generation.vllm_gpu_memory_utilization,
        dtype=model.dtype,
        max_model_len=generation.vllm_max_model_length,
    )
    return list(build_command(arguments))
