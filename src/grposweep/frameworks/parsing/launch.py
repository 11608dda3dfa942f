"""Open-R1's own Slurm script, ``sbatch --nodes=N slurm/train.slurm --model M --task grpo --config C``, as the launch it makes.

Source: open-r1 slurm/train.slurm: 8 GPUs a node; the last node is the vLLM server's where the recipe has use_vllm: true.

The launch in a shell script: its last command that starts a training, its processes, its options as a recipe.

Sources: accelerate launch's and torchrun's options; transformers hf_argparser.py (``--key value``, ``--key=value``,
``--flag``, ``--no_flag``, dashes for underscores); trl scripts/utils.py TrlParser (``--config``, command line wins);
ms-swift cli/main.py (``swift rlhf FILE``, NPROC_PER_NODE).
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from grposweep.errors import UserError
from grposweep.frameworks.keys import KeySpec, known
from grposweep.frameworks.parsing.bash import Command, Values, Word, parse_script
from grposweep.frameworks.parsing.values import convert
from grposweep.recipe import LaunchContext
from grposweep.setting import TRL

GPUS_PER_NODE = 8
SCRIPT = "slurm/train.slurm"


def expand_sbatch(words: list[Word]) -> list[Word] | None:
    """The words of the launch behind Open-R1's script; None for any other command, or where a node count is unknown."""
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
    return [*(Word(text, line) for text in launch.split()), recipe, *(Word(text, line) for text in _split(extra))]


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an odd quote: the shell would not have got here
        return text.split()


def _options(words: list[Word]) -> dict[str, Word]:
    """``--name value``, ``--name=value`` and ``-N value``."""
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


PYTHONS = ("python", "python3")
LAUNCHERS = {"accelerate": "accelerate", "accelerate-launch": "accelerate", "torchrun": "torchrun", "deepspeed": "deepspeed",
             "trl": "trl", "swift": "swift", "megatron": "megatron"}  # fmt: skip
COMMANDS = {
    "accelerate": "launch",
    "trl": "grpo",
    "swift": "rlhf",
    "megatron": "rlhf",
}  # the word behind such a launcher
OWN_PROGRAMS = {"trl": "trl.scripts.grpo", "swift": "swift rlhf", "megatron": "megatron rlhf"}
MODULES = {"torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
           "accelerate.commands.launch": "accelerate"}  # fmt: skip
PROCESSES = {  # launcher: option that counts processes, option that multiplies them
    "accelerate": ("num_processes", ""),
    "trl": ("num_processes", ""),
    "torchrun": ("nproc_per_node", "nnodes"),
    "deepspeed": ("num_gpus", "num_nodes"),
}
SHIPPED = dict.fromkeys(("fsdp1", "fsdp2", "multi_gpu", "zero1", "zero2", "zero3"), 8) | {"single_gpu": 1}  # with TRL
LAUNCHER_OPTIONS = frozenset({"num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port",
                              "accelerate_config", "config_file", "mixed_precision", "gpu_ids"})  # fmt: skip
# An override of EasyR1 or verl, and the programs that take them.
DOTTED_OPTION = re.compile(
    r"\+{0,2}~?(?:data|worker|algorithm|trainer|actor_rollout_ref|critic|reward|ray_kwargs)\.\S*="
)
DOTTED_PROGRAM = re.compile(r"\bverl[./]trainer[./]main(?:_ppo)?(?:\.py)?$|\bmain_(?:ppo|dapo)(?:\.py)?$")
RECIPES = (".yaml", ".yml", ".json")
NODES = ("NPROC_PER_NODE", "NNODES")
RIVALS = (
    "sft",
    "dpo",
    "vllm_serve",
    "vllm-serve",
    "eval",
    "merge",
)  # programs beside a GRPO training, in their own scripts


@dataclass
class LaunchCommand:
    """A launch as it was found: who starts what, and the options on either side of the program's name."""

    launch: LaunchContext
    before: list[Word]
    after: list[Word]
    options: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    unresolved: dict[str, str] = field(default_factory=dict)
    environment: Values = field(default_factory=dict)  # variables at that point of the script
    server_gpus: int = 0  # of the processes, those that a vLLM server takes where the recipe uses one


def find_launch(text: str) -> LaunchCommand:
    """The last launch of a script that looks like a training, its options read."""
    starts = list(_starts(parse_script(text)))
    if not starts:
        raise UserError(
            "no launch command found (accelerate launch, torchrun, trl grpo, swift rlhf, deepspeed or python with a script)."
        )
    start = max(enumerate(starts), key=lambda item: (_looks_like_training(item[1]), item[0]))[1]
    if _looks_like_training(start) < 0:
        raise UserError(f"it launches {start.launch.program}, which is no GRPO training.")
    _read_options(start)
    return start


def _starts(commands: list[Command]) -> list[LaunchCommand]:
    """Every launch, in order; also inside ``bash -c "..."``."""
    found = []
    for command, following in zip(commands, [*commands, Command()][1:], strict=True):
        cut = following.words[0].line if following.words and _is_option(following.words[0].text) else None
        words = expand_sbatch(command.words) or command.words
        server_gpus = GPUS_PER_NODE if words is not command.words else 0
        inner = next(
            (n for n, word in enumerate(words[:-1]) if word.text in ("-c", "-lc") and _is_shell(words, n)), None
        )
        if inner is not None:
            found += _starts(_shifted(words[inner + 1]))
        elif start := _start(words, cut):
            start.server_gpus, start.environment = server_gpus, command.environment
            found.append(start)
    return found


def _is_shell(words: list[Word], at: int) -> bool:
    return at > 0 and PurePosixPath(words[at - 1].text).name in ("bash", "sh")


def _shifted(word: Word) -> list[Command]:
    """The commands inside a quoted script, on the lines of the outer one."""
    commands = parse_script(word.text)
    for inner in (inner for command in commands for inner in command.words):
        inner.line += word.line - 1
        inner.unknown = inner.unknown or (word.unknown and "$" in inner.text)
    return commands


def _start(words: list[Word], cut: int | None) -> LaunchCommand | None:
    """The launcher among the words (wrappers such as srun or nohup come first), and the program it starts."""
    for n, word in enumerate(words):
        name = PurePosixPath(word.text).name
        if name in LAUNCHERS and COMMANDS.get(name, _second(words, n)) == _second(words, n):
            return _launched(LAUNCHERS[name], words[n + 1 + (name in COMMANDS) :], cut)
        if name in PYTHONS or name.startswith("python3."):
            rest = words[n + 1 :]
            module = rest[1].text if _second(words, n) == "-m" and len(rest) > 1 else ""
            return _launched(MODULES[module], rest[2:], cut) if module in MODULES else _launched("python", rest, cut)
    return None


def _second(words: list[Word], at: int) -> str:
    return words[at + 1].text if at + 1 < len(words) else ""


def _launched(launcher: str, words: list[Word], cut: int | None) -> LaunchCommand | None:
    if launcher in OWN_PROGRAMS:
        return LaunchCommand(LaunchContext(launcher, OWN_PROGRAMS[launcher], cut), words, words)
    for n, word in enumerate(words):
        if word.text in ("-m", "--module") and n + 1 < len(words):
            return LaunchCommand(LaunchContext(launcher, words[n + 1].text, cut), words[:n], words[n + 2 :])
        if word.text.endswith(".py"):
            return LaunchCommand(LaunchContext(launcher, word.text, cut), words[:n], words[n + 1 :])
    return None


def _looks_like_training(start: LaunchCommand) -> int:
    """2 where GRPO is named, 1 where options of a trainer are, 0 for what may be anything, -1 for what is something else."""
    names = {_option(word.text)[0] for word in start.after if word.text.startswith("--")}
    program = start.launch.program.lower()
    if any(DOTTED_OPTION.match(word.text) for word in start.after) or DOTTED_PROGRAM.search(program):
        return 2
    if "grpo" in program or start.launch.launcher in OWN_PROGRAMS or "num_generations" in names:
        return 2
    if any(word in PurePosixPath(program).name for word in RIVALS):
        return -1
    return int(bool(names & known("trl", TRL).keys()) or "config" in names)


def _is_option(text: str) -> bool:
    """What no command begins with: options that were meant for the one before."""
    return text.startswith("--") or DOTTED_OPTION.match(text) is not None


def _option(text: str) -> tuple[str, str | None]:
    name, equals, value = text.removeprefix("--").partition("=")
    return name.replace("-", "_"), value if equals else None


def _read_options(start: LaunchCommand) -> None:
    """``--key value ...`` behind the program's name; an option's values run to the next option."""
    name = ""
    if start.launch.launcher in ("swift", "megatron") and start.after and start.after[0].text.endswith(RECIPES):
        start.options["config"] = [start.after[0].text]  # the file stands where others have --config
        if start.after[0].unknown:
            start.unresolved["config"] = start.after[0].text
    for word in start.after:
        if word.text.startswith("--"):
            name, value = _option(word.text)
            start.options[name] = [] if value is None else [value]
            start.lines[name] = word.line
            start.unresolved.pop(name, None)
        elif word.unknown and (not name or start.options[name]):
            start.unresolved[word.text] = word.text  # "$@" and the like may hold options
            continue
        elif name:
            start.options[name].append(word.text)
        if word.unknown and name:
            start.unresolved[name] = word.text.partition("=")[2] if word.text.startswith("--") else word.text


def build_config(start: LaunchCommand, takes: Mapping[str, KeySpec]) -> dict[str, Any]:
    """The options as a recipe's keys, in the types that argparse gives them."""
    config: dict[str, Any] = {}
    for name, values in start.options.items():
        if name in ("config", "local_rank") or (start.launch.launcher == "trl" and name in LAUNCHER_OPTIONS):
            continue
        key = name if name in takes or not name.startswith("no_") or name[3:] not in takes else name[3:]
        if key != name:
            config[key] = False
        else:
            config[key] = _value(values, takes[key].type if key in takes else "any")
    return config


def _value(values: list[str], kind: str) -> Any:
    if kind.startswith("list"):
        return values
    if not values:
        return True  # a flag
    text = " ".join(values)
    found = convert(text, kind)
    return found.value if found.trouble != "type" else text


def count_processes(start: LaunchCommand) -> tuple[int | None, str]:
    """Training processes as the launcher's own options state them, or None and what is in the way."""
    if start.launch.launcher == "python":
        return 1, ""
    if start.launch.launcher in ("swift", "megatron"):
        return _from_environment(start.environment)
    option, times = PROCESSES[start.launch.launcher]
    given = {}
    name = ""
    for word in start.before:
        if word.text.startswith("--"):
            name, value = _option(word.text)
            given[name] = value
        elif name and given.get(name) is None:
            given[name] = word.text
        else:
            name = ""
    if option not in given:
        return (1, "") if start.launch.launcher == "torchrun" else (None, "")  # torchrun's default
    count, factor = given[option] or "", given.get(times, "1") or ""
    if count.isdigit() and factor.isdigit():
        return int(count) * int(factor), ""
    return None, count if not count.isdigit() else f"{times} {factor}"


def _from_environment(environment: Values) -> tuple[int | None, str]:
    """NPROC_PER_NODE times NNODES; without either `swift` starts a single process, which takes all GPUs."""
    product = 1
    for name in NODES:
        value = environment.get(name, "1")
        if not isinstance(value, str) or not value.isdigit():
            return None, f"{name}={value}"
        product *= int(value)
    return product, ""


def count_visible_gpus(environment: Values) -> int | None:
    """The GPUs that CUDA_VISIBLE_DEVICES shows; None where it is not set, or only a running shell knows it."""
    shown = environment.get("CUDA_VISIBLE_DEVICES")
    if not isinstance(shown, str):
        return None
    names = [name.strip() for name in shown.split(",") if name.strip()]
    return len(names) if all(name.isdigit() or name.startswith(("GPU-", "MIG-")) for name in names) else None


def accelerate_file(start: LaunchCommand) -> str | None:
    """The accelerate configuration that a launch names."""
    for n, word in enumerate(start.before):
        name, value = _option(word.text)
        if word.text.startswith("--") and name in ("config_file", "accelerate_config"):
            return value or _second(start.before, n)
    return None
