"""Run the user's own launch command as it is: a trial's values enter where it builds its
configuration.

``trainer.command`` is a whole command line. ``trainer.script``, with a YAML or a shell script in
``trainer.recipe``, is short for one. ``{NAME}`` in a command is replaced by the option
``trainer.args.NAME``, ``{NAME:0.1}`` has a default, and an option without a placeholder is appended
as ``--NAME value``. Sources: accelerate commands/launch.py, torch distributed/run.py; transformers
hf_argparser.py (``--flag true``, lists as several values, mappings as JSON); trl scripts/utils.py
TrlParser (``--config``, the command line wins).
"""

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grporecipe.errors import UserError
from grporecipe.files import read_json
from grposweep.command._contract import (
    ExternalProgram,
    NodeContext,
    TrainerStateTail,
    Trial,
    interpreter,
    meeting,
)
from grposweep.command._environment import ENTERS, RESUME, SHELL
from grposweep.schema import AUTO, Trainer
from grposweep.storage import paths

# not ${NAME}, which is the shell's
_PLACEHOLDER = re.compile(r"(?<!\$)\{([A-Za-z_][\w.]*)(?::([^{}]*))?\}")
NO_COMMAND = (
    "trainer={kind}: neither trainer.command nor trainer.script is set, so nothing would train. "
    "End the command line with your "
    "own launch command: -- bash launch.sh"
)


def build_script(trial: Trial) -> ExternalProgram:
    """Build the user's command with the options of this trial."""
    options = (read_json(trial.folder / paths.CHANGED) or {}).get("options", {})
    environment = {ENTERS: str(trial.folder), **nodes_of_launch(trial.place)} | (
        {RESUME: str(trial.checkpoint)} if trial.checkpoint else {}
    )
    command = (*SHELL, command_line(trial.trainer, options, trial.place))
    return ExternalProgram(command, TrainerStateTail(trial.output), environment, reports=True)


def nodes_of_launch(place: NodeContext) -> dict[str, str]:
    """Return the variables by which a command on one of several nodes finds the others.

    torchrun reads its options from those that begin with PET_. Source: torch
    distributed/argparse_util.py.
    """
    return {
        f"{start}{name}": value for name, value in meeting(place).items() for start in ("", "PET_")
    }


def command_line(trainer: Trainer, options: Mapping[str, Any], place: NodeContext) -> str:
    """Return the command with the values of its own options.

    Raises UserError for a placeholder without a value, and if there is no command.
    """
    command = (
        trainer.command if trainer.command is not None else shlex.join(_short_form(trainer, place))
    )
    placed = dict(_PLACEHOLDER.findall(command))
    for name in placed:
        if name not in options and f"{{{name}:" not in command:
            raise UserError(
                f"trainer.command has {{{name}}}, and trainer.args.{name} is not set. Write its "
                "value in your own command "
                f"behind it, as in {{{name}:0.1}}."
            )
    text = _PLACEHOLDER.sub(
        lambda match: _as_typed(command[: match.start()], str(options.get(match[1], match[2]))),
        command,
    )
    return " ".join([text, *map(shlex.quote, flags(options, placed))])


def _as_typed(before: str, value: str) -> str:
    """Return a value for its place in a command line, which may stand in quotes."""
    quote, escaped = "", False
    for letter in before:
        if escaped or (letter == "\\" and quote != "'"):
            escaped = not escaped
        elif letter in "'\"" and quote in ("", letter):
            quote = "" if quote else letter
    if quote == "'":
        return value.replace("'", "'\"'\"'")
    return re.sub(r'([\\"$`])', r"\\\1", value) if quote else shlex.quote(value)


def placeholders(trainer: Trainer) -> frozenset[str]:
    """Return the options that the command has a place for."""
    return frozenset(name for name, _ in _PLACEHOLDER.findall(trainer.command or ""))


def missing_files(trainer: Trainer) -> Iterator[str]:
    """Say if the program's folder, its script or its recipe does not exist."""
    folder = Path(trainer.workdir or ".")
    if not folder.is_dir():
        yield (
            f"trainer.workdir={folder}: there is no such folder. Name the one that the "
            "program runs in."
        )
        return
    for key, name, start in (
        ("script", trainer.script, folder),
        ("recipe", trainer.recipe, Path()),
    ):
        if name is not None and not (start / name).is_file():
            yield (
                f"trainer.{key}={name}: there is no such file in {start.resolve()}. Name one "
                "that exists."
            )


def _short_form(trainer: Trainer, place: NodeContext) -> list[str]:
    """Return the command of ``trainer.script`` and ``trainer.recipe``: the recipe's, if it is a
    shell script.
    """
    recipe = None if trainer.recipe is None else os.path.abspath(trainer.recipe)  # noqa: PTH100 - links stay
    if recipe is not None and recipe.endswith((".sh", ".bash")):
        return ["bash", recipe, *trainer.arguments]
    if trainer.script is None:
        raise UserError(NO_COMMAND.format(kind=trainer.kind))
    given = [] if recipe is None else ["--config", recipe]
    return [*launch(trainer, place), trainer.script, *given, *trainer.arguments]


def launch(trainer: Trainer, place: NodeContext) -> list[str]:
    """Return the command up to the script's name. If one node has all ranks, a free port is
    chosen.
    """
    python = interpreter(trainer)
    several, launcher = place.nodes > 1, chosen_launcher(trainer, place.processes)
    if launcher == "torchrun":
        meet = (
            [
                "--nnodes",
                str(place.nodes),
                "--node_rank",
                str(place.node),
                "--master_addr",
                place.address,
                "--master_port",
                str(place.port),
            ]
            if several
            else ["--standalone"]
        )
        ranks = ["--nproc_per_node", str(place.ranks)]
        return [python, "-m", "torch.distributed.run", *ranks, *meet, *trainer.launch_arguments]
    if launcher == "python":
        return [python, *trainer.launch_arguments]
    meet = (
        [
            "--num_machines",
            str(place.nodes),
            "--machine_rank",
            str(place.node),
            "--main_process_ip",
            place.address,
            "--main_process_port",
            str(place.port),
        ]
        if several
        else ["--main_process_port", "0"]
    )
    ranks = ["--num_processes", str(place.processes)]
    return [python, "-m", "accelerate.commands.launch", *ranks, *meet, *trainer.launch_arguments]


def chosen_launcher(trainer: Trainer, processes: int) -> str:
    """Return the launcher with ``auto`` resolved: python keeps the exit code, torchrun starts
    several ranks on CPUs too.
    """
    if trainer.launcher != AUTO:
        return trainer.launcher
    return "accelerate" if trainer.launch_arguments else "torchrun" if processes > 1 else "python"


def check_launcher(trainer: Trainer, processes: int) -> None:
    """Raise UserError for several ranks on CPUs under accelerate, which silently starts one because
    it needs MPI.
    """
    if (
        trainer.script
        and trainer.launcher == "accelerate"
        and processes > 1
        and not trainer.launch_arguments
    ):
        raise UserError(
            f"trainer.launcher=accelerate with cluster.processes={processes} and no GPU: "
            "accelerate starts several "
            "processes on CPUs through MPI only, and one otherwise. Set trainer.launcher=torchrun."
        )


def flags(options: Mapping[str, Any], placed: Mapping[str, Any]) -> list[str]:
    """Return options as flags, without those that have a place. Null gets no flag, because it is
    their usual default.
    """
    words: list[str] = []
    for name, value in options.items():
        if name not in placed and value is not None and value != []:
            words += [f"--{name}", *_words(value)]
    return words


def _words(value: Any) -> list[str]:
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    if isinstance(value, Mapping):
        return [json.dumps(value)]
    return [str(value).lower() if isinstance(value, bool) else str(value)]
