"""Variables that Slurm sets for a batch script, where its ``#SBATCH`` lines state them.

Source: sbatch(1), "Output environment variables" (SLURM_GPUS_ON_NODE, SLURM_GPUS_PER_NODE, SLURM_JOB_NUM_NODES, SLURM_NNODES).
"""

import re

from grposweep.frameworks.parsing.shell.words import Values

_OPTION = re.compile(r"^#SBATCH[ \t]+(--[\w-]+|-\w)[= \t]?[ \t]*([^\s#]+)", re.MULTILINE)
_GPUS = {
    "--gres": r"(?:.*,)?gpu:(?:[\w.-]+:)?(\d{1,3})(?:\(.*\))?(?:,.*)?",
    "--gpus-per-node": r"(?:[\w.-]+:)?(\d{1,3})",
}


def slurm_variables(text: str) -> Values:
    """Return them by name."""
    found: Values = {}
    for name, value in _OPTION.findall(text):
        if name in ("--nodes", "-N") and value.isdigit():
            found |= {"SLURM_JOB_NUM_NODES": value, "SLURM_NNODES": value}
        elif name in _GPUS and (gpus := re.fullmatch(_GPUS[name], value)):
            found["SLURM_GPUS_ON_NODE"] = gpus[1]
            if name == "--gpus-per-node":
                found["SLURM_GPUS_PER_NODE"] = gpus[1]
    return found
