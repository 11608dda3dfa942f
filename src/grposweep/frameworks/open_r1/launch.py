"""Open-R1's own Slurm script, ``sbatch --nodes=N slurm/train.slurm --model M --task grpo --config C``, as the launch it makes.

Source: open-r1 slurm/train.slurm: 8 GPUs a node; the last node is the vLLM server's where the recipe has use_vllm: true.
"""

import shlex

from grposweep.frameworks.parsing.bash import Word

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
