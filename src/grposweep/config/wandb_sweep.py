"""Read a sweep file of W&B as overrides: ``run -m @sweep.yaml`` and ``space @sweep.yaml``.

Source: W&B's documentation of sweep configurations, and wandb 0.31 sdk/launch/sweeps.
"""

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grporecipe.errors import UserError
from grporecipe.files import Config, parse_yaml
from grporecipe.model.values import read_mapping
from grporecipe.terminal import say
from grposweep.config.compose import NO_TEXT, key_of_native, override_text

SAMPLERS = {"bayes": "tpe", "random": "random", "grid": "grid"}
# distributions of a range, in Hydra's grammar
RANGES = {
    "uniform": "interval({},{})",
    "int_uniform": "tag(int,interval({},{}))",
    "log_uniform_values": "tag(log,interval({},{}))",
}
# parts of a file that say nothing about the search, or that are read
READ = r"command|description|entity|method|metric|name|parameters|program|project|run_cap"


def read_sweep_file(file: Path) -> tuple[list[str], list[str]]:
    """Return a file's overrides and the words of its launch command. Say what is not taken over.

    Raises UserError for a distribution or a nested space that has no counterpart here.
    """
    try:
        sweep = read_mapping(parse_yaml(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: it cannot be read ({error}). Name a sweep file.") from error
    parameters = read_mapping(sweep.get("parameters"))
    metric = read_mapping(sweep.get("metric"))
    method = str(sweep.get("method"))
    if not parameters or method not in SAMPLERS:
        raise UserError(
            f"{file}: a sweep file of W&B has parameters and a method of {', '.join(SAMPLERS)}, "
            f"and this one has method: {method}. Set both."
        )
    overrides = [_override(file, str(name), entry) for name, entry in parameters.items()]
    overrides.append(f"search.sampler={SAMPLERS[method]}")
    if cap := sweep.get("run_cap"):
        overrides.append(f"search.trials={cap}")
    if name := metric.get("name"):
        overrides.append(f"search.metric={override_text(str(name).replace('/', '_'))}")
        # without a goal W&B minimizes
        if metric.get("goal", "minimize") == "minimize":
            overrides.append("search.direction=minimize")
    for part in sweep:
        if not re.fullmatch(READ, str(part)):
            say(f"{file}: {part} is not taken over; see docs/guides/moving.md", sys.stderr)
    return overrides, _command(file, sweep)


def _override(file: Path, name: str, entry: Any) -> str:
    """Return the override of one parameter."""
    values = read_mapping(entry)
    if "probabilities" in values:
        say(f"{file}: the probabilities of {name} are not taken over", sys.stderr)
    key = key_of_native(name.replace("-", "_")) or f"trainer.args.{name}"
    if "parameters" in values:
        raise UserError(
            f"{file}: {name} has nested parameters, which have no counterpart. Write its keys as "
            "parameters of their own."
        )
    listed = values.get("values", "")
    if listed and isinstance(listed, list):
        return f"{key}={','.join(map(_text, listed))}"
    if "value" in values:
        return f"{key}={_text(values['value'])}"
    ends = [values.get("min"), values.get("max")]
    usual = "int_uniform" if all(isinstance(end, int) for end in ends) else "uniform"
    distribution = str(values.get("distribution", usual))
    if distribution not in RANGES or None in ends:
        raise UserError(
            f"{file}: {name} has the distribution {distribution} and no list of values, which has "
            f"no counterpart. Give a list, or min and max with one of {', '.join(RANGES)}."
        )
    return f"{key}={RANGES[distribution].format(*ends)}"


def _text(value: Any) -> str:
    """Return a value in Hydra's grammar; YAML 1.1 reads 1e-6 as text."""
    is_number = isinstance(value, str) and NO_TEXT.fullmatch(value)
    return str(value) if is_number else override_text(value)


def _command(file: Path, sweep: Config) -> list[str]:
    """Return the words of a file's command; none if it names no program. The parameters enter by
    themselves.
    """
    if not sweep.get("command") and not sweep.get("program"):
        return []
    macros = {
        "${env}": "",
        "${args}": "",
        "${args_no_boolean_flags}": "",
        "${interpreter}": "python",
        "${program}": str(sweep.get("program", "")),
    }
    command = sweep.get("command") or ["${interpreter}", "${program}"]
    if isinstance(command, str):
        command = shlex.split(command)
    arguments = [macros.get(word, word) for word in map(str, command)]
    for word in arguments:
        if word.startswith("${"):
            raise UserError(
                f"{file}: command has {word}, which has no counterpart. Write it after --."
            )
    return list(filter(None, arguments))


def expand(arguments: Sequence[str]) -> list[str]:
    """Replace ``@sweep.yaml`` by the file's overrides, and its command if none is given."""
    own = arguments.index("--") if "--" in arguments else len(arguments)
    at = next((at for at, word in enumerate(arguments[:own]) if word.startswith("@")), None)
    if at is None:
        return [*arguments]
    overrides, command = read_sweep_file(Path(arguments[at][1:]))
    launch = ["--", *command] if command and own == len(arguments) else []
    return [*arguments[:at], *overrides, *arguments[at + 1 :], *launch]
