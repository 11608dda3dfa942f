"""Variables of the environment that would change a training, or give a trial a place in a
surrounding job.

One table says which are removed and which are refused. What torch, accelerate and transformers read
is in ``os.environ`` of accelerate 1.15 (``utils/environment.py``, ``state.py``,
``utils/dataclasses.py``), transformers 5 (``training_args.py``), torch 2.13
(``aten/src/ATen/Context.cpp``) and cuBLAS; W&B 0.31 documents its own.
"""

import re
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass

# the variable that tells an attempt how many trials share its GPU
GPU_TRIALS = "GRPOSWEEP_GPU_TRIALS"
# names the launcher whose `Scheduler.rank_place` a rank must ask for its place
RANKS = "GRPOSWEEP_RANKS"

# Set by torchrun and other launchers for torch.distributed. The launcher of a trial sets its own.
OF_RANKS = frozenset(
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
)
# Set by torchrun and mpirun, from which accelerate reads a number of processes, and by W&B's agent
# and a resumed run of the user, with which all trials would be one run.
_OF_JOBS = (
    r"(?:TORCHELASTIC|OMPI|PMI|PMIX|MV2|I_MPI|MPI)_\w+|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_(?:RANK"
    r"|NAME|WORLD_SIZE)"
    r"|WANDB_(?:RUN_ID|SWEEP_ID|SWEEP_PARAM_PATH|RESUME)"
)
# Set by "accelerate launch" for the program that it starts. In ours the configuration says all of
# it.
_OF_ACCELERATE = r"(?:ACCELERATE|FSDP|PARALLELISM_CONFIG|MEGATRON_LM)_\w+|FORK_LAUNCHED"
# Set by the user. Each silently trains in another precision than the configuration says.
_INSTEAD = {
    "NVIDIA_TF32_OVERRIDE": "Unset it, and set model.tf32",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "Unset it, and set model.tf32",
    "ONEDNN_DEFAULT_FPMATH_MODE": "Unset it, and set model.dtype",
    "DNNL_DEFAULT_FPMATH_MODE": "Unset it, and set model.dtype",
}


@dataclass(frozen=True)
class RankPlace:
    """The place of a rank in its job; ``rank``, ``local_rank`` and ``ranks`` as torch.distributed
    counts them.

    ``address`` is that of the first rank's node. ``port`` is the first of three that no other job
    of a node takes: for the ranks, for a vLLM server, and for the weights sent to it. ``restarts``
    is how often the launcher has restarted the job.
    """

    rank: int
    local_rank: int
    ranks: int
    address: str
    port: int
    restarts: int = 0


def is_of_a_job(name: str) -> bool:
    """Return whether a variable describes a surrounding job, which is no business of a trial's."""
    return name in OF_RANKS or re.fullmatch(_OF_JOBS, name) is not None


def leave_job(environment: MutableMapping[str, str], trains_ours: bool) -> None:
    """Remove what a surrounding job has set, apart from `OF_RANKS`, which by now are this trial's
    own.

    ``trains_ours``: our own trainer starts here, and no program that may read accelerate's
    variables.
    """
    for name in list(environment):
        if re.fullmatch(_OF_JOBS, name) or (trains_ours and re.fullmatch(_OF_ACCELERATE, name)):
            del environment[name]


def refused_variables(environment: Mapping[str, str], given: Iterable[str] = ()) -> list[str]:
    """Return a sentence for each variable with which a training would not be what its configuration
    says.

    ``given`` are the names in ``cluster.environment``, which is no part of a trial's identity.
    """
    mistakes = [
        f"{name}={environment[name]} is set in the environment: trials would train in another "
        f"precision than their configuration says. {instead}."
        for name, instead in _INSTEAD.items()
        if environment.get(name)
    ]
    for name in given:
        if name in _INSTEAD or is_of_a_job(name) or re.fullmatch(_OF_ACCELERATE, name):
            mistakes.append(
                f"cluster.environment.{name}: it changes what is trained, and "
                "cluster.environment is no part of a trial's "
                "identity. Leave it out, and set the key of the configuration instead."
            )
    return mistakes
