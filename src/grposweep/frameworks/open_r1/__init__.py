"""Open-R1: TRL 0.18.0 with keys and checks of its own; its grpo.py takes TRL's configuration.

Its own Slurm script, ``sbatch --nodes=N slurm/train.slurm --model M --task grpo --config C``, is read as the launch it makes.
Source: open-r1 slurm/train.slurm: 8 GPUs a node; the last node is the vLLM server's where the recipe has use_vllm: true.
"""

import re
import shlex
from functools import partial

from grposweep.external import ExternalTrainer
from grposweep.frameworks.base import Framework
from grposweep.frameworks.open_r1 import keys
from grposweep.frameworks.parsing.bash import Word
from grposweep.frameworks.trl.recipes import (
    FIELDS,
    SPECIAL,
    collect,
    derive_launch,
    keys_of,
    native_keys,
    render,
    unsaid,
)
from grposweep.registries import Lazy

GPUS_PER_NODE = 8
SCRIPT = "slurm/train.slurm"


def expand_sbatch(words: list[Word]) -> tuple[list[Word], int] | None:
    """Return the words of the launch behind Open-R1's script, and the GPUs that a vLLM server may take.

    None for any other command, or where the number of nodes is unknown.
    """
    script = next((n for n, word in enumerate(words) if word.text.endswith(SCRIPT)), None)
    if script is None or not any(word.text.endswith("sbatch") for word in words[:script]):
        return None
    before, after = _options(words[:script]), _options(words[script + 1 :])
    nodes = before.get("nodes", before.get("N", Word("1", 0)))
    if not nodes.text.isdigit() or not {"model", "config"} <= after.keys() or after.get("task", nodes).text != "grpo":
        return None
    line = words[script].line
    recipe = Word(f"recipes/{after['model'].text}/grpo/config_{after['config'].text}.yaml", line,
                  after["model"].unknown or after["config"].unknown)  # fmt: skip
    launch = f"accelerate launch --num_processes={int(nodes.text) * GPUS_PER_NODE} src/open_r1/grpo.py --config"
    extra = after["args"].text if "args" in after else ""
    launched = [*(Word(text, line) for text in launch.split()), recipe, *(Word(text, line) for text in _split(extra))]
    return launched, GPUS_PER_NODE


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an odd quote: the shell would not have got here
        return text.split()


def _options(words: list[Word]) -> dict[str, Word]:
    """Return ``--name value``, ``--name=value`` and ``-N value``."""
    found, name = {}, ""
    for word in words:
        if word.text.startswith("-") and name != "args":  # --args holds options of the training script
            name, equals, value = word.text.lstrip("-").partition("=")
            if equals:
                found[name] = Word(value, word.line, word.unknown)
        elif name:
            found.setdefault(name, word)
            name = ""
    return found


ACCELERATE = ("--config_file", "recipes/accelerate_configs/zero2.yaml")
FRAMEWORK = Framework(
    traits=keys.TRAITS,
    version=keys.VERSION,
    fields=FIELDS,
    takes=keys.known,
    keys=keys.ONLY,
    programs=re.compile("open[_-]r1"),
    expand=expand_sbatch,
    renamed={"warmup_ratio": "warmup_steps"},
    collect=collect,
    unsaid=unsaid,
    keys_of=keys_of,
    derived=(derive_launch,),
    render=partial(render, script=("src/open_r1/grpo.py",), options=ACCELERATE),
    native_keys=native_keys,
    special=SPECIAL,
    trainer=ExternalTrainer(Lazy("external.script:build"), needs_script=True),
)
