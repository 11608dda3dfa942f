"""The base of a sweep over the user's own command: what the command's trainer would get, asked once before anything trains.

Names in ``trainer.args`` that are fields of the trainer's configuration enter where it is built, as all other keys of a point do.
The others are options of the command.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from grporecipe.errors import UserError
from grporecipe.frameworks.trl.keys import parse_version
from grporecipe.recipe import Recipe
from grporecipe.setting import TRL
from grposweep.external import NodeContext
from grposweep.external.ask import Asked, ask
from grposweep.external.command import named_files
from grposweep.external.script import command_line, placeholders
from grposweep.registries import EXTERNAL, is_opaque
from grposweep.schema import Experiment, Trainer
from grposweep.storage import inputs
from grposweep.storage.inputs import Inputs

SHELL_FILES = (".sh", ".bash", ".slurm", ".sbatch")
MOST_ASKED = 8  # commands that differ in their own options only; of further ones is known what all of these have alike
_WORD = re.compile(r"[\w./~+-]+")


class _Answer(NamedTuple):
    """What was asked, and times and sizes of the files on which the answer depends."""

    asked: Asked
    stamps: tuple[tuple[int, int], ...]


_ANSWERS: dict[tuple[Path, str], dict[str, _Answer]] = {}


def asks(trainer: Trainer) -> bool:
    """Return whether a trainer is a command of the user's, whose trainer tells its values when it is asked."""
    external = EXTERNAL.get(trainer.kind)
    return external is not None and external.asks


def ask_base(trainer: Trainer, processes: int | None = None) -> Asked:
    """Return what the command's trainer would get with these options.

    Raises UserError if it does not build one GRPO trainer.
    """
    placed = {name: value for name, value in trainer.args.items() if name in placeholders(trainer)}
    plain = _answer(trainer, processes, placed)
    options = own_options(trainer, plain)
    if options == placed:
        return plain
    found = _answer(trainer, processes, options)
    lost = [name for name in options if name not in placed and f"--{name}" not in (found.record["command"] or ())]
    if lost and options[lost[0]] not in (None, []):
        raise UserError(
            f"trainer.args.{lost[0]}: --{lost[0]} is appended to the command, and does not arrive at the program that trains, so "
            f'it would change nothing. End the launch line of its shell script with "$@", or write {{{lost[0]}}} in the command.'
        )
    return found


def own_options(trainer: Trainer, asked: Asked) -> dict[str, Any]:
    """Return those of ``trainer.args`` that are options of the command, not fields of its trainer's configuration."""
    placed = placeholders(trainer)
    return {name: value for name, value in trainer.args.items() if name in placed or name not in asked.record["values"]}


def _answer(trainer: Trainer, processes: int | None, options: Mapping[str, Any]) -> Asked:
    folder = Path(trainer.workdir or ".").resolve()
    known = _ANSWERS.setdefault((folder, repr(replace(trainer, args={}))), {})  # all trials have as many processes
    command = command_line(trainer, options, NodeContext(processes or 1))
    for asked, answer in [*known.items()]:
        if answer.stamps != _stamps(asked, folder, answer.asked):
            del known[asked]
    if command not in known and len(known) >= MOST_ASKED:
        return _alike(answer.asked for answer in known.values())
    if command not in known:
        found = ask(command, folder, trainer.environment, processes)
        known[command] = _Answer(found, _stamps(command, folder, found))
    return known[command].asked


def file_stamp(path: Path) -> tuple[int, int]:
    """Return time and size of a file; zeros if it is missing, which its reader reports."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def _stamps(command: str, folder: Path, asked: Asked) -> tuple[tuple[int, int], ...]:
    """Return times and sizes of the files on which an answer depends."""
    words = (folder / word for word in _WORD.findall(command))
    paths = (*words, *map(Path, asked.files), *map(Path, asked.modules))
    return tuple(file_stamp(path) for path in paths)


def find_inputs(experiments: Iterable[Experiment]) -> Inputs:
    """Find the files that experiments depend on; of a command those that it read and imported when it was asked."""
    return inputs.find_inputs(experiments, _files)


def _files(trainer: Trainer) -> list[Path]:
    if not asks(trainer):
        return named_files(trainer) if is_opaque(trainer.kind) else []
    asked, folder = ask_base(trainer), Path(trainer.workdir or ".").absolute()
    named = [*named_files(trainer), *(folder / name for name in (trainer.script, trainer.recipe) if name)]
    shell = [path for path in named if path.suffix in SHELL_FILES]  # others that it names may be what it writes
    for script in shell[:]:
        words = _WORD.findall(script.read_text(encoding="utf-8", errors="replace"))
        shell += [folder / word for word in words if word.endswith(SHELL_FILES) and (folder / word).is_file()]
    own = [path for path in shell if path.resolve().is_relative_to(folder.resolve())]
    files = (*map(Path, (*asked.files, *asked.modules)), *(path.absolute() for path in own))
    return [path for path in dict.fromkeys(files) if path.exists()]


def _alike(answers: Iterable[Asked]) -> Asked:
    """Return what several answers have alike. The values in which they differ are unknown."""
    first, *others = answers
    given = [answer.record["given"] for answer in (first, *others)]
    names = {name for one in given for name in one}
    differ = {name for name in names if any(one.get(name) != given[0].get(name) for one in given)}
    kept = {name: value for name, value in given[0].items() if name not in differ}
    unknown = sorted({*first.record["unknown"], *differ})
    return replace(first, record={**first.record, "given": kept, "unknown": unknown})


def asked_recipe(trainer: Trainer, processes: int | None = None) -> Recipe:
    """Return the command's values as a recipe of the TRL that it imports."""
    asked = ask_base(trainer, processes)
    record, options = asked.record, own_options(trainer, asked)
    entered = {name: value for name, value in trainer.args.items() if name not in options}
    unknown = {name: "depends on data" for name in record["unknown"] if name not in entered}
    return Recipe(
        EXTERNAL[trainer.kind].framework,
        parse_version(record["versions"]["trl"]) if "trl" in record["versions"] else TRL,
        {**record["given"], **entered},
        processes if processes is not None else record["world_size"],
        unresolved=unknown,
    )
