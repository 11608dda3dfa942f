"""Find the launch in a shell script: the last command that starts a training, its processes, and
its options as a recipe.

Sources: accelerate launch's and torchrun's options; transformers hf_argparser.py (``--key value``,
``--key=value``, ``--flag``, ``--no_flag``, dashes for underscores); trl scripts/utils.py TrlParser
(``--config``, command line wins); ms-swift cli/main.py (``swift rlhf FILE``, NPROC_PER_NODE);
EasyR1 verl/trainer/main.py (OmegaConf.from_cli: ``config=x.yaml a.b=c``) and hydra 1.3 main's own
options (verl: ``--config-name=x +a.b=c``): in both the last of two overrides wins, but Hydra
refuses ``+key`` for a key that exists.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from grporecipe.errors import UserError
from grporecipe.files import Json
from grporecipe.model.framework import Command as OwnCommand
from grporecipe.model.framework import Framework
from grporecipe.model.recipe import Duplicate, KeySpec, LaunchContext, LaunchedCode
from grporecipe.model.values import CommandLine, Word, convert
from grporecipe.project.repository import head_of
from grporecipe.reading.shell._bash import Command, Reader, parse_script
from grporecipe.reading.shell._programs import slurm_variables
from grporecipe.reading.shell._syntax import CLOSE, OPEN
from grporecipe.reading.shell._words import Values, plain
from grporecipe.reading.signs import GROUPS, is_named
from grporecipe.reading.yaml_text import parse_override

# command: launcher, and the word that follows
LAUNCHERS = {
    "accelerate": ("accelerate", "launch"),
    "accelerate-launch": ("accelerate", ""),
    "torchrun": ("torchrun", ""),
    "deepspeed": ("deepspeed", ""),
}
MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}
# launcher: option that counts processes, option that multiplies them
PROCESSES = {
    "accelerate": ("num_processes", ""),
    "torchrun": ("nproc_per_node", "nnodes"),
    "deepspeed": ("num_gpus", "num_nodes"),
}
LAUNCHER_OPTIONS = frozenset(
    {
        "num_processes",
        "num_machines",
        "machine_rank",
        "main_process_ip",
        "main_process_port",
        "accelerate_config",
        "config_file",
        "mixed_precision",
        "gpu_ids",
    }
)
# characters of a Python file that are searched
LONGEST_PROGRAM = 2**19
RECIPES = (".yaml", ".yml", ".json")
_UNKNOWN = rf"{OPEN}[^{CLOSE}]*{CLOSE}/?"
# such a script is started in the repository's root
_WORKING = r"\$(?:\(pwd\)|PWD|\{PWD\})/"
NODES = ("NPROC_PER_NODE", "NNODES")
# Programs next to a GRPO training, by the words of their names.
RIVALS = (
    r"(?<![a-z])(?:sft|dpo|kto|serve|server|eval|evaluate|evaluation|merge|merger|prepare"
    r"|preprocess|build|data|plot|convert|infer|inference|generate|generation|test|download|upload"
    r"|benchmark|demo)(?![a-z])|^(?!.*grpo).*(?:sft|dpo)"
)
DOTTED_RIVALS = (
    r"(?<![a-z])(?:sft|sac|merger|merge|generation|eval|serve|server|preprocess)(?![a-z])"
)
# Commands that may name a launch in their words but do not run it.
NOT_STARTING = (
    r"echo|printf|cat|grep|egrep|pgrep|pkill|killall|kill|ls|cp|mv|rm|mkdir|sed|awk|pip|pip3"
    r"|git|wget|curl|which|type|command|trap|alias|sleep|touch|chmod|tail|head|find|tar|unzip"
    r"|huggingface-cli|hf|conda-env|log|logger|ps"
)
RUNNERS = frozenset({"uv", "poetry", "pdm", "pixi", "hatch", "rye", "pipenv"})
# A script is judged as it runs without arguments, with its defaults (${1:-8}).
ARGUMENTS = r"\$[@*]|\$\{[@*]\W?.*\}"
# Options of which two show that a program trains with groups of completions.
GROUP_OPTIONS = GROUPS | {"max_completion_length", "beta", "use_vllm", "loss_type"}


def _handed_on(commands: Iterable[Command]) -> str:
    """Return a sentence that names the script to lint instead, if a script starts another one."""
    for command in commands:
        for word in command.words[:2]:
            if word.text.endswith((".sh", ".slurm", ".sbatch")):
                return f" It runs {word.text[:120]}: lint that script."
    return ""


@dataclass
class LaunchCommand:
    """A launch: the launcher, the program, and the options before and after the program's name."""

    launch: LaunchContext
    before: CommandLine
    after: CommandLine
    options: Json = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    unresolved: dict[str, str] = field(default_factory=dict)
    # environment variables at that point of the script
    environment: Values = field(default_factory=dict)
    # a framework's own command
    own: OwnCommand | None = None
    # the options are overrides of dotted keys
    is_dotted: bool = False
    # the working directory, if the script changes it
    folder: str = ""
    # in a function that is not called, or after an exit
    aside: bool = False
    # words known only to a running shell may hold further options
    may_have_more: bool = False
    # of the processes, those for a vLLM server if the recipe uses one
    server_gpus: int = 0


class LaunchParser:
    """Finds the launch in a script by the frameworks' commands and overrides."""

    def __init__(self, frameworks: Iterable[Framework]) -> None:
        self.frameworks = list(frameworks)
        self.commands: dict[str, OwnCommand] = {}
        sections: list[str] = []
        for framework in self.frameworks:
            self.commands |= framework.commands
            sections += framework.sections
        self.override = re.compile(rf"\+{{0,2}}~?(?:{'|'.join(sections)})\.\S*=")

    def find(
        self, text: str, path: str | None = None, read: Reader = lambda *_: None
    ) -> list[LaunchCommand]:
        """Return the launches of a script that may be trainings, in order, with their options.

        ``path`` is the script's own path, and ``read`` returns the text of a file that it sources.

        Raises UserError if there is none.
        """
        commands = parse_script(text, slurm_variables(text), path, read)
        # A launch may be switched off by a default: RUN=${RUN:-0}.
        starts = self._starts(commands) or self._starts(
            parse_script(text, slurm_variables(text), path, read, True)
        )
        starts = [start for start in starts if not start.aside] or starts
        if not starts:
            own = ", ".join(f"{name} {command.word}" for name, command in self.commands.items())
            raise UserError(
                f"no launch command found (accelerate launch, torchrun, {own}, deepspeed or "
                f"python with a script).{_handed_on(commands)}"
            )
        for start in starts:
            _read_options(start)
        launches = [start for start in starts if not self._is_rival(start)]
        if not launches:
            raise UserError(f"it launches {starts[-1].launch.program}, which is no GRPO training.")
        return launches

    def _starts(self, commands: list[Command]) -> list[LaunchCommand]:
        """Return every launch, in order."""
        launches = []
        for command, following in pairwise([*commands, Command()]):
            if re.fullmatch(NOT_STARTING, PurePosixPath(command.words[0].text).name):
                continue
            cut = command.lost
            # only an option, meant for the command before it
            if following.words and self._is_option(following.words[0]):
                cut = following.words[0].line
            fields, server_gpus = command.words, 0
            for framework in self.frameworks:
                if framework.expand:
                    fields, server_gpus = framework.expand(fields) or (fields, server_gpus)
            start = self._start(fields, cut)
            if start is None:
                continue
            start.server_gpus = server_gpus
            start.environment = command.environment
            start.folder = command.folder
            start.aside = command.aside
            start.launch = replace(start.launch, line=min(field.line for field in command.words))
            start.is_dotted = any(self.override.match(field.text) for field in start.after)
            for framework in self.frameworks:
                if framework.trainings and framework.trainings.search(start.launch.program):
                    start.is_dotted = True
            launches.append(start)
        return launches

    def _is_option(self, field: Word) -> bool:
        return field.text.startswith("--") or self.override.match(field.text) is not None

    def _start(self, fields: CommandLine, cut: int | None) -> LaunchCommand | None:
        """Return the launch in a command's fields. Wrappers such as srun or nohup may come before
        the launcher.
        """
        for n, each in enumerate(fields):
            name = PurePosixPath(each.text).name
            rest = fields[n + 1 :]
            second = _second(fields, n)
            own = self.commands.get(name)
            if own is not None and own.word == second:
                return LaunchCommand(
                    LaunchContext(name, own.program, cut), rest[1:], rest[1:], own=own
                )
            if name in LAUNCHERS and LAUNCHERS[name][1] in ("", second):
                launcher, subcommand = LAUNCHERS[name]
                return _launched(launcher, rest[bool(subcommand) :], cut)
            is_unknown = each.unknown and (second == "-m" or second.endswith(".py"))
            if _is_python(name) or (is_unknown and "py" in each.text.lower()):
                return _with_python("python", rest, cut)
            if is_unknown:
                return _with_python("", rest, cut)
            if name in RUNNERS and second == "run" and not _names_launcher(rest):
                return _launched("python", rest[1:], cut)
        program = fields[0].text
        if program.endswith(".py") and "/" in program:
            return LaunchCommand(LaunchContext("python", program, cut), [], fields[1:])
        return None

    def _is_rival(self, start: LaunchCommand) -> bool:
        """Return whether the program's name shows that a launch is no GRPO training."""
        program = start.launch.program.lower()
        name = re.split("[./]", program.removesuffix(".py"))[-1]
        # a command of the program
        if start.after and start.after[0].text.isalpha():
            name += f" {start.after[0].text}"
        if start.own is not None or len(start.options.keys() & GROUP_OPTIONS) > 1:
            return False
        rivals = RIVALS
        if start.is_dotted:
            rivals = DOTTED_RIVALS
        return re.search(rivals, name) is not None


def has_sign_of_grpo(start: LaunchCommand, code: LaunchedCode) -> bool:
    """Return whether the name or the text of a launch's program shows that it trains with GRPO."""
    program = start.launch.program.lower()
    if start.own is not None or is_named(program, start.options):
        return True
    # open_r1/$TASK.py
    if "$" in program:
        return re.search("open[_-]r1", program) is not None
    if "GRPO" in code.trainer:
        return True
    text = head_of(Path(code.file), LONGEST_PROGRAM)
    return re.search(r"\bGRPO(?:Config|\w*Trainer)\b", text) is not None


def _second(fields: CommandLine, at: int) -> str:
    if at + 1 < len(fields):
        return fields[at + 1].text
    return ""


def _with_python(launcher: str, rest: CommandLine, cut: int | None) -> LaunchCommand | None:
    """Return the launch of a python command: a module that is a launcher, another module, or a
    file.
    """
    for n, argument in enumerate(rest):
        module = _second(rest, n)
        if argument.text == "-m" and module in MODULES:
            return _launched(MODULES[module], rest[n + 2 :], cut)
        if argument.text == "-c":
            return None
        if not argument.text.startswith("-"):
            break
    return _launched(launcher, rest, cut)


def _names_launcher(fields: CommandLine) -> bool:
    names = [PurePosixPath(field.text).name for field in fields]
    return any(name in LAUNCHERS or _is_python(name) for name in names)


def _is_python(name: str) -> bool:
    return name in ("python", "python3") or name.startswith("python3.")


def _launched(launcher: str, arguments: CommandLine, cut: int | None) -> LaunchCommand | None:
    named = []
    # known only to a running shell
    hidden = []
    previous = ""
    for n, argument in enumerate(arguments):
        text = argument.text
        if text.endswith(".py") or previous in ("-m", "--module"):
            named.append(n)
        elif argument.unknown and not text.startswith("-") and not previous.startswith("-"):
            hidden.append(n)
        previous = text
    for at in named or hidden:
        context = LaunchContext(launcher, arguments[at].text, cut)
        return LaunchCommand(context, arguments[:at], arguments[at + 1 :])
    return None


def _option(text: str) -> tuple[str, list[str]]:
    """Return the name of an option, and its value if it is written behind an equals sign."""
    name, *values = text.removeprefix("--").split("=", 1)
    return name.replace("-", "_"), values


def _read_options(start: LaunchCommand) -> None:
    """Read ``--key value ...`` after the program's name. An option's values end at the next
    option.
    """
    name = ""
    takes_file = start.own is not None and start.own.takes_file
    for argument in start.after[:1]:
        if takes_file and argument.text.endswith(RECIPES):
            # the file takes the place of --config
            start.options["config"] = [argument.text]
            if argument.unknown:
                start.unresolved["config"] = argument.text
    for argument in start.after:
        text = argument.text
        if text.startswith("--"):
            name, start.options[name] = _option(text)
            start.lines[name] = argument.line
            start.unresolved.pop(name, None)
            text = text.partition("=")[2]
        elif argument.unknown and (not name or start.options[name]):
            # "$@" and the like may hold options
            start.unresolved[text] = text
            start.may_have_more |= not re.fullmatch(ARGUMENTS, text)
            continue
        elif name:
            start.options[name].append(text)
        if argument.unknown and name:
            start.unresolved[name] = text


def build_config(start: LaunchCommand, takes: Mapping[str, KeySpec]) -> Json:
    """Return the options as a recipe's keys, with the types that argparse gives them."""
    config: Json = {}
    passes_on = start.own is not None and start.own.passes_on
    for name, values in start.options.items():
        if name in ("config", "local_rank") or (passes_on and name in LAUNCHER_OPTIONS):
            continue
        positive = name.removeprefix("no_")
        if name in takes:
            config[name] = _value(values, takes[name].type)
        elif positive in takes:
            config[positive] = False
        else:
            config[name] = _value(values, "any")
    return config


def spell_out(start: LaunchCommand, tables: Sequence[Collection[str]], has_dashes: bool) -> None:
    """Replace options that are a prefix of one key by that key, as argparse does. A prefix of
    several options stays.

    ``tables`` hold the keys of the releases; the first one with such a key decides. With
    ``has_dashes`` each key is also an option with dashes (HfArgumentParser), so ``--learning`` is a
    prefix of two options and ``--learning_r`` of one.
    """
    for name in list(start.options):
        if name == "config" or any(name in table for table in tables):
            continue
        meant: list[str] = []
        for table in tables:
            meant = meant or [key for key in table if key.startswith(name)]
        is_one = len(meant) == 1 and not (has_dashes and "_" in meant[0] and "_" not in name)
        if is_one and meant[0] not in start.options:
            of_option: tuple[Json, ...] = (start.options, start.lines, start.unresolved)
            for values in of_option:
                if name in values:
                    values[meant[0]] = values.pop(name)


def _value(values: list[str], kind: str) -> Any:
    if kind.startswith("list"):
        return values
    if not values:
        # a flag
        return True
    text = " ".join(values)
    converted = convert(text, kind)
    if converted.trouble == "type":
        return text
    return converted.value


def count_processes(start: LaunchCommand) -> tuple[int | None, str]:
    """Return the training processes that the launcher's options state, or None and the reason."""
    if start.launch.launcher == "python":
        return 1, ""
    if not start.launch.launcher:
        return None, "the launcher"
    if start.own is not None and start.own.counts == "environment":
        return _from_environment(start.environment)
    launcher = start.launch.launcher
    if start.own is not None:
        launcher = start.own.counts
    option, times = PROCESSES[launcher]
    given = _launcher_options(start)
    # accelerate commands/launch.py: simple_launcher
    if "cpu" in given and "mpirun_hostfile" not in given:
        return 1, ""
    if option not in given and given.get("include"):
        return _included(given["include"])
    # torchrun's default
    if option not in given and start.launch.launcher == "torchrun":
        return 1, ""
    count = given.get(option, "")
    factor = given.get(times, "1")
    if not count.isdigit():
        return None, count
    if not factor.isdigit():
        return None, f"{times} {factor}"
    return int(count) * int(factor), ""


def _launcher_options(start: LaunchCommand) -> dict[str, str]:
    """Return the options before the program's name with their values, which flags do not have."""
    given: dict[str, list[str]] = {}
    name = ""
    for argument in start.before:
        if argument.text.startswith("--"):
            name, given[name] = _option(argument.text)
        elif name and not given[name]:
            given[name].append(argument.text)
        else:
            name = ""
    return {name: "".join(values) for name, values in given.items()}


def _included(hosts: str) -> tuple[int | None, str]:
    """Return the GPUs of ``--include host:0,1@other:0`` (deepspeed launcher/runner.py)."""
    slots = [host.partition(":")[2] for host in hosts.split("@")]
    if not all(re.fullmatch(r"\d+(?:,\d+)*", each) for each in slots):
        return None, f"--include {hosts}"
    return sum(each.count(",") + 1 for each in slots), ""


def _from_environment(environment: Values) -> tuple[int | None, str]:
    """Return NPROC_PER_NODE times NNODES. Without either, there is one process, which takes all
    GPUs.
    """
    product = 1
    for name in NODES:
        value = environment.get(name, "1")
        if not isinstance(value, str) or not value.isdigit():
            return None, plain(f"{name}={value}")
        product *= int(value)
    return product, ""


def count_visible_gpus(environment: Values) -> int | None:
    """Return the number of GPUs in CUDA_VISIBLE_DEVICES; None if it is not set, or known only to a
    running shell.
    """
    shown = environment.get("CUDA_VISIBLE_DEVICES")
    if not isinstance(shown, str):
        return None
    names = [name.strip() for name in shown.split(",") if name.strip()]
    if not all(name.isdigit() or name.startswith(("GPU-", "MIG-")) for name in names):
        return None
    return len(names)


def python_path(start: LaunchCommand) -> list[str]:
    """Return the folders of PYTHONPATH, relative to the working directory. What only a running
    shell knows is left out.
    """
    value = start.environment.get("PYTHONPATH")
    if not isinstance(value, str):
        return []
    names = re.sub(_UNKNOWN, "", value).split(":")
    return [str(PurePosixPath(start.folder, name)) for name in names if name]


def accelerate_file(start: LaunchCommand) -> str | None:
    """Return the accelerate configuration that a launch names."""
    given = _launcher_options(start)
    return given.get("config_file") or given.get("accelerate_config")


# Hydra's own options: what they name
FILE_OPTIONS = {
    "--config-name": "name",
    "-cn": "name",
    "--config-path": "path",
    "-cp": "path",
    "--config-dir": "folder",
    "-cd": "folder",
}


@dataclass
class Overrides:
    """The overrides of a command line: keys with their signs, lines, and the base configuration
    (empty: none).
    """

    config: Json = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    raw: dict[str, str] = field(default_factory=dict)
    duplicates: tuple[Duplicate, ...] = ()
    unresolved: dict[str, str] = field(default_factory=dict)
    base: str = ""
    may_have_more: bool = False


def read_overrides(start: LaunchCommand) -> Overrides:
    """Return the overrides after the program's name, in order."""
    given = Overrides()
    options: dict[str, str] = {}
    # a file option whose value is the next argument
    option = ""
    for argument in start.after:
        name, equals, value = argument.text.partition("=")
        if option:
            options[option] = argument.text
            option = ""
        elif name in FILE_OPTIONS and equals:
            options[FILE_OPTIONS[name]] = value
        elif name in FILE_OPTIONS:
            option = FILE_OPTIONS[name]
            options[option] = ""
        elif name == "config":
            given.base = value
        else:
            _take(given, argument)
    given.base = re.sub(_WORKING, "", given.base or _named(options))
    return given


def _take(given: Overrides, argument: Word) -> None:
    text = argument.text
    override = parse_override(text)
    if override is None:
        if argument.unknown:
            # "$@" and the like may hold overrides
            given.unresolved[text] = text
            given.may_have_more |= not re.fullmatch(ARGUMENTS, text)
        return
    key = override.sign + override.key
    for before in [known for known in given.config if known.lstrip("+") == override.key]:
        value = given.config.pop(before)
        line = given.lines.pop(before)
        if value != override.value:
            given.duplicates += (Duplicate(override.key, line, argument.line, value),)
    given.config[key], given.lines[key] = override.value, argument.line
    given.raw[key] = text.partition("=")[2]
    given.unresolved.pop(key, None)
    if argument.unknown and "${oc." not in text:
        given.unresolved[key] = given.raw[key]


def _named(options: Mapping[str, str]) -> str:
    """Return the file that Hydra's own options name. With neither path nor name it is verl's
    own.
    """
    name = options.get("name", "")
    folder = options.get("path") or options.get("folder", "")
    if not name:
        return ""
    if not name.endswith((".yaml", ".yml")):
        name += ".yaml"
    if folder:
        name = f"{folder.rstrip('/')}/{name}"
    return name
