"""Open-R1: TRL 0.18.0 with its own keys and checks. Its grpo.py takes TRL's configuration.

Its Slurm script, ``sbatch --nodes=N slurm/train.slurm --model M --task grpo --config C``, is read
as the launch it makes. Sources: open-r1 slurm/train.slurm (8 GPUs per node; the last node is the
vLLM server's if the recipe has use_vllm: true), src/open_r1/configs.py (GRPOConfig,
GRPOScriptArguments, ScriptArguments.__post_init__).
"""

import re
import shlex
from dataclasses import replace
from functools import lru_cache
from typing import Any

from grporecipe.frameworks.trl import FRAMEWORK as TRL_FRAMEWORK
from grporecipe.frameworks.trl import keys as trl_keys
from grporecipe.model.recipe import KeySpec
from grporecipe.model.releases import KeyTable, load_table
from grporecipe.model.setting import FrameworkTraits, Version
from grporecipe.model.values import CommandLine, Word

# its trainer is TRL's
TRAITS = FrameworkTraits("open-r1", "TRL", follows_trl=True)
# of TRL, which Open-R1 pins
VERSION: Version = (0, 18, 0)
TABLE = load_table(__package__)
# Open-R1's own keys with type and default: src/open_r1/configs.py, GRPOConfig and
# GRPOScriptArguments.
KEYS = {name: KeySpec(*spec) for name, spec in TABLE["keys"].items()}
# Keys that only Open-R1's recipes use; chat_template and the like appear in all recipes.
ONLY = frozenset[str](TABLE["only"])

# Its registry of rewards (src/open_r1/rewards.py). TRL's own words end in "_reward", or are dotted
# paths.
REWARDS = frozenset[str](TABLE["rewards"])


@lru_cache(maxsize=128)
def known(version: Version) -> KeyTable:
    """Return every key that a recipe may set, on a release of TRL."""
    return KeyTable({**trl_keys.known(version), **KEYS})


def mixture_trouble(mixture: Any) -> str | None:
    """Return the message of Open-R1's own checks of a ``dataset_mixture``, or None."""
    if not isinstance(mixture, dict) or "datasets" not in mixture:
        return "dataset_mixture is a mapping with a 'datasets' key"
    datasets = mixture["datasets"]
    if not isinstance(datasets, list):
        return "'datasets' is a list of dataset configurations"
    if not all(isinstance(entry, dict) and "id" in entry for entry in datasets):
        return "each dataset of the mixture is a mapping with an 'id'"
    columns = [
        frozenset(map(str, entry["columns"]))
        for entry in datasets
        if isinstance(entry.get("columns"), list)
    ]
    if len(set(columns)) > 1:
        return "the columns are the same for all datasets of a mixture"
    return None


GPUS_PER_NODE = 8
SCRIPT = "slurm/train.slurm"
PROGRAM = "src/open_r1/grpo.py"


def expand_sbatch(words: CommandLine) -> tuple[CommandLine, int] | None:
    """Return the words of the launch in Open-R1's script, and the number of GPUs that a vLLM server
    may take.

    None for any other command, or if the number of nodes is unknown.
    """
    script = next((n for n, word in enumerate(words) if word.text.endswith(SCRIPT)), None)
    if script is None or not any(word.text.endswith("sbatch") for word in words[:script]):
        return None
    before = _options(words[:script])
    after = _options(words[script + 1 :])
    nodes = before.get("nodes", before.get("N", Word("1", 0)))
    if (
        not nodes.text.isdigit()
        or not {"model", "config"} <= after.keys()
        or after.get("task", nodes).text != "grpo"
    ):
        return None
    line = words[script].line
    recipe = Word(
        f"recipes/{after['model'].text}/grpo/config_{after['config'].text}.yaml",
        line,
        after["model"].unknown or after["config"].unknown,
    )
    launch = (
        f"accelerate launch --num_processes={int(nodes.text) * GPUS_PER_NODE} {PROGRAM} --config"
    )
    extra = after["args"].text if "args" in after else ""
    launched = [
        *(Word(text, line) for text in launch.split()),
        recipe,
        *(Word(text, line) for text in _split(extra)),
    ]
    return launched, GPUS_PER_NODE


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        # an unclosed quote, with which the shell fails
        return text.split()


def _options(words: CommandLine) -> dict[str, Word]:
    """Return the options of a command: ``--name value``, ``--name=value`` and ``-N value``."""
    options = {}
    name = ""
    for word in words:
        # --args holds options of the training script
        if word.text.startswith("-") and name != "args":
            name, equals, value = word.text.lstrip("-").partition("=")
            if equals:
                options[name] = Word(value, word.line, word.unknown)
        elif name:
            options.setdefault(name, word)
            name = ""
    return options


FRAMEWORK = replace(
    TRL_FRAMEWORK,
    traits=TRAITS,
    # TRL's source would not have Open-R1's own keys
    vendor=None,
    version=VERSION,
    takes=known,
    keys=ONLY,
    words={"reward_funcs": REWARDS},
    commands={},
    programs=re.compile("open[_-]r1"),
    program=PROGRAM,
    expand=expand_sbatch,
)
