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
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from grporecipe.errors import UserError
from grporecipe.files import Json
from grporecipe.model.framework import Command as OwnCommand
from grporecipe.model.framework import Framework
from grporecipe.model.recipe import Duplicate, KeySpec, LaunchContext, LaunchedCode
from grporecipe.model.values import CommandLine, Word, convert
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
    words = (word.text for command in commands for word in command.words[:2])
    name = next((text for text in words if text.endswith((".sh", ".slurm", ".sbatch"))), "")
    return f" It runs {name[:120]}: lint that script." if name else ""


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
        known = list(frameworks)
        self.commands = {
            name: command for framework in known for name, command in framework.commands.items()
        }
        self.expanders = [framework.expand for framework in known if framework.expand]
        self.trainings = [framework.trainings for framework in known if framework.trainings]
        sections = dict.fromkeys(name for framework in known for name in framework.sections)
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
                (
                    f"no launch command found (accelerate launch, torchrun, {own}, deepspeed or "
                    "python with a script)."
                )
                + _handed_on(commands)
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
        for command, following in zip(commands, [*commands, Command()][1:], strict=True):
            if re.fullmatch(NOT_STARTING, PurePosixPath(command.words[0].text).name):
                continue
            cut = command.lost
            for word in following.words[:1]:
                # only an option, meant for the command before it
                if word.text.startswith("--") or self.override.match(word.text):
                    cut = word.line
            expanded = (expand(command.words) for expand in self.expanders)
            words, server_gpus = next(filter(None, expanded), (command.words, 0))
            if start := self._start(words, cut):
                start.server_gpus = server_gpus
                start.environment = command.environment
                start.folder = command.folder
                start.aside = command.aside
                start.launch = replace(start.launch, line=min(word.line for word in command.words))
                start.is_dotted = any(
                    self.override.match(word.text) for word in start.after
                ) or any(training.search(start.launch.program) for training in self.trainings)
                launches.append(start)
        return launches

    def _start(self, words: CommandLine, cut: int | None) -> LaunchCommand | None:
        """Return the launch in a command's words. Wrappers such as srun or nohup may come before
        the launcher.
        """
        for n, word in enumerate(words):
            name = PurePosixPath(word.text).name
            rest = words[n + 1 :]
            second = _second(words, n)
            own = self.commands.get(name)
            if own is not None and own.word == second:
                return LaunchCommand(
                    LaunchContext(name, own.program, cut), rest[1:], rest[1:], own=own
                )
            if name in LAUNCHERS and LAUNCHERS[name][1] in ("", second):
                launcher, subcommand = LAUNCHERS[name]
                return _launched(launcher, rest[bool(subcommand) :], cut)
            if _is_python(name):
                return _with_python("python", rest, cut)
            if word.unknown and (second == "-m" or second.endswith(".py")):
                return _with_python("python" if "py" in word.text.lower() else "", rest, cut)
            if name in RUNNERS and second == "run" and not _names_launcher(rest):
                return _launched("python", rest[1:], cut)
        if words[0].text.endswith(".py") and "/" in words[0].text:
            return LaunchCommand(LaunchContext("python", words[0].text, cut), [], words[1:])
        return None

    def _is_rival(self, start: LaunchCommand) -> bool:
        """Return whether the program's name shows that a launch is no GRPO training."""
        program = start.launch.program.lower()
        name = re.split("[./]", program.removesuffix(".py"))[-1]
        for word in start.after[:1]:
            # a command of the program
            if word.text.isalpha():
                name += f" {word.text}"
        if start.own is not None or len(start.options.keys() & GROUP_OPTIONS) > 1:
            return False
        if start.is_dotted:
            return re.search(DOTTED_RIVALS, name) is not None
        return re.search(RIVALS, name) is not None


def has_sign_of_grpo(start: LaunchCommand, code: LaunchedCode) -> bool:
    """Return whether the name or the text of a launch's program shows that it trains with GRPO."""
    program = start.launch.program.lower()
    if start.own is not None or is_named(program, start.options):
        return True
    # open_r1/$TASK.py
    if "$" in program:
        return re.search("open[_-]r1", program) is not None
    return _names_grpo(code)


def _names_grpo(code: LaunchedCode) -> bool:
    """Return whether a Python file trains with TRL's GRPO classes, by its trainer's name or by its
    text.
    """
    if "GRPO" in code.trainer:
        return True
    with suppress(OSError, ValueError), Path(code.file).open(encoding="utf-8") as file:
        return (
            re.search(r"\bGRPO(?:Trainer|Config)\b|\bGRPO\w*Trainer\b", file.read(LONGEST_PROGRAM))
            is not None
        )
    return False


def _second(words: CommandLine, at: int) -> str:
    return words[at + 1].text if at + 1 < len(words) else ""


def _with_python(launcher: str, rest: CommandLine, cut: int | None) -> LaunchCommand | None:
    """Return the launch of a python command: a module that is a launcher, another module, or a
    file.
    """
    for n, word in enumerate(rest):
        module = _second(rest, n)
        if word.text == "-m" and module in MODULES:
            return _launched(MODULES[module], rest[n + 2 :], cut)
        if word.text == "-c":
            return None
        if not word.text.startswith("-"):
            break
    return _launched(launcher, rest, cut)


def _names_launcher(words: CommandLine) -> bool:
    names = [PurePosixPath(word.text).name for word in words]
    return any(name in LAUNCHERS or _is_python(name) for name in names)


def _is_python(name: str) -> bool:
    return name in ("python", "python3") or name.startswith("python3.")


def _launched(launcher: str, words: CommandLine, cut: int | None) -> LaunchCommand | None:
    named = []
    # known only to a running shell
    hidden = []
    previous = ""
    for n, word in enumerate(words):
        if word.text.endswith(".py") or previous in ("-m", "--module"):
            named.append(n)
        elif word.unknown and not word.text.startswith("-") and not previous.startswith("-"):
            hidden.append(n)
        previous = word.text
    for at in [*named, *hidden][:1]:
        context = LaunchContext(launcher, words[at].text, cut)
        return LaunchCommand(context, words[:at], words[at + 1 :])
    return None


def _option(text: str) -> tuple[str, str | None]:
    name, equals, value = text.removeprefix("--").partition("=")
    return name.replace("-", "_"), value if equals else None


def _read_options(start: LaunchCommand) -> None:
    """Read ``--key value ...`` after the program's name. An option's values end at the next
    option.
    """
    name = ""
    if (
        start.own is not None
        and start.own.takes_file
        and start.after
        and start.after[0].text.endswith(RECIPES)
    ):
        # the file takes the place of --config
        start.options["config"] = [start.after[0].text]
        if start.after[0].unknown:
            start.unresolved["config"] = start.after[0].text
    for word in start.after:
        if word.text.startswith("--"):
            name, value = _option(word.text)
            start.options[name] = [] if value is None else [value]
            start.lines[name] = word.line
            start.unresolved.pop(name, None)
        elif word.unknown and (not name or start.options[name]):
            # "$@" and the like may hold options
            start.unresolved[word.text] = word.text
            start.may_have_more |= not re.fullmatch(ARGUMENTS, word.text)
            continue
        elif name:
            start.options[name].append(word.text)
        if word.unknown and name:
            start.unresolved[name] = (
                word.text.partition("=")[2] if word.text.startswith("--") else word.text
            )


def build_config(start: LaunchCommand, takes: Mapping[str, KeySpec]) -> Json:
    """Return the options as a recipe's keys, with the types that argparse gives them."""
    config: Json = {}
    passes_on = start.own is not None and start.own.passes_on
    for name, values in start.options.items():
        if name in ("config", "local_rank") or (passes_on and name in LAUNCHER_OPTIONS):
            continue
        positive = name.removeprefix("no_")
        if name not in takes and positive in takes:
            config[positive] = False
        else:
            config[name] = _value(values, takes[name].type if name in takes else "any")
    return config


def spell_out(start: LaunchCommand, tables: Sequence[Collection[str]], has_dashes: bool) -> None:
    """Replace options that are a prefix of one key by that key, as argparse does. A prefix of
    several options stays.

    ``tables`` hold the keys of the releases; the first one with such a key decides. With
    ``has_dashes`` each key is also an option with dashes (HfArgumentParser), so ``--learning`` is a
    prefix of two options and ``--learning_r`` of one.
    """
    for name in [
        name
        for name in start.options
        if name != "config" and not any(name in table for table in tables)
    ]:
        matches = ([key for key in table if key.startswith(name)] for table in tables)
        meant = next((keys for keys in matches if keys), [])
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
    return converted.value if converted.trouble != "type" else text


def count_processes(start: LaunchCommand) -> tuple[int | None, str]:
    """Return the training processes that the launcher's options state, or None and the reason."""
    if start.launch.launcher == "python":
        return 1, ""
    if not start.launch.launcher:
        return None, "the launcher"
    if start.own is not None and start.own.counts == "environment":
        return _from_environment(start.environment)
    option, times = PROCESSES[start.own.counts if start.own else start.launch.launcher]
    given = _launcher_options(start)
    # accelerate commands/launch.py: simple_launcher
    if "cpu" in given and "mpirun_hostfile" not in given:
        return 1, ""
    if option not in given and given.get("include"):
        return _included(given["include"] or "")
    if option not in given:
        # torchrun's default
        return (1, "") if start.launch.launcher == "torchrun" else (None, "")
    count = given[option] or ""
    factor = given.get(times, "1") or ""
    if count.isdigit() and factor.isdigit():
        return int(count) * int(factor), ""
    return None, count if not count.isdigit() else f"{times} {factor}"


def _launcher_options(start: LaunchCommand) -> dict[str, str | None]:
    """Return the options before the program's name with their values, None for a flag."""
    given: dict[str, str | None] = {}
    name = ""
    for word in start.before:
        if word.text.startswith("--"):
            name, given[name] = _option(word.text)
        elif name and given[name] is None:
            given[name] = word.text
        else:
            name = ""
    return given


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
    return (
        len(names)
        if all(name.isdigit() or name.startswith(("GPU-", "MIG-")) for name in names)
        else None
    )


def python_path(start: LaunchCommand) -> list[str]:
    """Return the folders of PYTHONPATH, relative to the working directory. What only a running
    shell knows is left out.
    """
    value = start.environment.get("PYTHONPATH")
    names = re.sub(_UNKNOWN, "", value).split(":") if isinstance(value, str) else []
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
    words = iter(start.after)
    for word in words:
        name, equals, value = word.text.partition("=")
        if name in FILE_OPTIONS:
            named = value if equals else getattr(next(words, None), "text", "")
            options[FILE_OPTIONS[name]] = named
        elif name == "config":
            given.base = value
        else:
            _take(given, word)
    given.base = re.sub(_WORKING, "", given.base or _named(options))
    return given


def _take(given: Overrides, word: Word) -> None:
    override = parse_override(word.text)
    if override is None:
        if word.unknown:
            # "$@" and the like may hold overrides
            given.unresolved[word.text] = word.text
            given.may_have_more |= not re.fullmatch(ARGUMENTS, word.text)
        return
    key = override.sign + override.key
    for before in [known for known in given.config if known.lstrip("+") == override.key]:
        if given.config[before] != override.value:
            given.duplicates += (
                Duplicate(override.key, given.lines[before], word.line, given.config[before]),
            )
        del given.config[before], given.lines[before]
    given.config[key], given.lines[key] = override.value, word.line
    given.raw[key] = word.text.partition("=")[2]
    given.unresolved.pop(key, None)
    if word.unknown and "${" + "oc." not in word.text:
        given.unresolved[key] = word.text.partition("=")[2]


def _named(options: Mapping[str, str]) -> str:
    """Return the file that Hydra's own options name. With neither path nor name it is verl's
    own.
    """
    name = options.get("name", "")
    folder = options.get("path") or options.get("folder", "")
    if not name:
        return ""
    name = name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"
    return f"{folder.rstrip('/')}/{name}" if folder else name
