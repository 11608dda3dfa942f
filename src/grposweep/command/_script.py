"""Run the user's own launch command as it is: a trial's values enter where it builds its
configuration.

``trainer.command`` is a whole command line. ``{NAME}`` in it is replaced by the option
``trainer.args.NAME``, ``{NAME:0.1}`` has a default, and an option without a placeholder is appended
as ``--NAME value``. Sources: transformers hf_argparser.py (``--flag true``, lists as several
values, mappings as JSON); trl scripts/utils.py TrlParser (``--config``, the command line wins).
"""

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from grporecipe.errors import UserError
from grporecipe.files import Config, read_json
from grposweep.command._contract import (
    ExternalProgram,
    NodeContext,
    Trial,
    meeting,
)
from grposweep.command._environment import ENTERS, RESUME, SHELL
from grposweep.command._logs import watch_states
from grposweep.schema import Trainer
from grposweep.storage import paths

# not ${NAME}, which is the shell's
_PLACEHOLDER = re.compile(r"(?<!\$)\{([A-Za-z_][\w.]*)(?::([^{}]*))?\}")
NO_COMMAND = (
    "trainer=command: trainer.command is not set, so nothing would train. End the command line "
    "with your own launch command: -- bash launch.sh"
)


def build_script(trial: Trial) -> ExternalProgram:
    """Build the user's command with the options of this trial."""
    options = (read_json(trial.folder / paths.CHANGED) or {}).get("options", {})
    environment = {ENTERS: str(trial.folder), **nodes_of_launch(trial.place)}
    if trial.checkpoint:
        environment[RESUME] = str(trial.checkpoint)
    command = (*SHELL, command_line(trial.trainer, options))
    return ExternalProgram(command, watch_states(trial.output), environment, reports=True)


def nodes_of_launch(context: NodeContext) -> dict[str, str]:
    """Return the variables by which a command on one of several nodes finds the others.

    torchrun reads its options from those that begin with PET_. Source: torch
    distributed/argparse_util.py.
    """
    variables = meeting(context)
    return variables | {f"PET_{name}": value for name, value in variables.items()}


def command_line(trainer: Trainer, options: Config) -> str:
    """Return the command with the values of its own options.

    Raises UserError for a placeholder without a value, and if there is no command.
    """
    command = trainer.command
    if command is None:
        raise UserError(NO_COMMAND)
    for name in open_places(trainer) - options.keys():
        raise UserError(
            f"{without_value(name)} For a program without TRL's trainer set trainer.metrics, the "
            "file of its metrics."
        )
    text = _PLACEHOLDER.sub(
        lambda match: _as_typed(command[: match.start()], str(options.get(match[1], match[2]))),
        command,
    )
    places = placeholders(trainer)
    arguments = list[str]()
    for name, value in options.items():
        # null is the usual default of an option
        if name not in places and value is not None and value != []:
            arguments += [f"--{name}", *words_of(value)]
    return " ".join([text, *map(shlex.quote, arguments)])


def _as_typed(before: str, value: str) -> str:
    """Return a value for its place in a command line, which may stand in quotes."""
    quote = ""
    escaped = False
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


def open_places(trainer: Trainer) -> frozenset[str]:
    """Return the places of the command that have no default there."""
    found = _PLACEHOLDER.finditer(trainer.command or "")
    return frozenset(match[1] for match in found if match[2] is None)


def without_value(name: str) -> str:
    """Say that a place of the command has no value."""
    return (
        f"trainer.command has {{{name}}}, and no value is set for it. Set {name} or "
        f"trainer.args.{name}, or write its value behind it, as in {{{name}:0.1}}."
    )


def words_of(value: Any) -> list[str]:
    """Return a value as the words behind an option."""
    if isinstance(value, list | tuple):
        return list(map(str, value))
    if isinstance(value, Mapping):
        return [json.dumps(value)]
    if isinstance(value, bool):
        value = str(value).lower()
    return [str(value)]
