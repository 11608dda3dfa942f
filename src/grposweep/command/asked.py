"""The base of a sweep over the user's own command: what the command's trainer would get, asked once
before anything trains.

Names in ``trainer.args`` that are fields of the trainer's configuration enter where it is built, as
all other keys of a point do. The others are options of the command.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from grporecipe.errors import UserError
from grporecipe.fields.recipes import read_recipe
from grporecipe.files import Config, Json, absolute, file_stamp, only, without
from grporecipe.frameworks.trl.keys import parse_version
from grporecipe.model.recipe import NOT_STATED, Recipe, VersionSource
from grporecipe.model.setting import TRL, Setting, Version
from grposweep.command._contract import NodeContext
from grposweep.command._environment import launch_texts
from grposweep.command._launched import find_launch
from grposweep.command._script import (
    command_line,
    nodes_of_launch,
    open_places,
    placeholders,
)
from grposweep.command.any_program import named_files
from grposweep.command.ask import SWEEPS, Asked, ask
from grposweep.config.trl_args import homes, taken
from grposweep.schema import Cluster, Experiment, Trainer
from grposweep.schema.registries import is_external, is_opaque
from grposweep.storage import inputs
from grposweep.storage.inputs import Inputs

# keys of which only the command knows what they change
OPTIONS = ("trainer.args.", "trainer.environment.")
# of torchrun; nothing listens, because only the first process of a launch is asked
FREE_PORT = 29500
# commands that differ in their own options only; of further ones is known what all of these have
# alike
MOST_ASKED = 8
_WORD = r"[\w./~+-]+"


class _Answer(NamedTuple):
    """The answer to a command, or why there is none, and times and sizes of the files on which it
    depends.
    """

    asked: Asked | UserError
    stamps: tuple[tuple[int, int] | None, ...]


_ANSWERS: dict[tuple[Path, str], dict[str, _Answer]] = {}
# options of which only the ends of an interval are asked
_BETWEEN: dict[tuple[Path, str], frozenset[str]] = {}


def ask_base(
    trainer: Trainer, processes: int | None = None, nodes: int = 1, outputs: str = SWEEPS
) -> Asked:
    """Return what the command's trainer would get with these options; ``outputs`` is the folder of
    the sweeps.

    Raises UserError if it does not build one GRPO trainer.
    """
    placed = only(trainer.args, placeholders(trainer))
    context = NodeContext(processes or 1, nodes=nodes, port=FREE_PORT)
    defaults = default_values(trainer)
    plain = _answer(trainer, context, {**defaults, **placed}, outputs)
    options = own_options(trainer, plain)
    if options == placed:
        return plain
    asked = _answer(trainer, context, {**defaults, **options}, outputs)
    lost = [
        name
        for name in options
        if name not in placed and f"--{name}" not in (asked.record["command"] or ())
    ]
    if lost and asked.is_exact and options[lost[0]] not in (None, []):
        raise UserError(
            f"trainer.args.{lost[0]}: --{lost[0]} is appended to the command, and does not "
            "arrive at the program that trains, so "
            'it would change nothing. End the launch line of its shell script with "$@", or '
            f"write {{{lost[0]}}} in the command."
        )
    return asked


def default_values(trainer: Trainer) -> Json:
    """Return TRL's defaults for the places of grposweep's keys: a point sets others."""
    return {
        key: taken()[name].default for name, key in homes().items() if key in open_places(trainer)
    }


def ask_ahead(
    base: Trainer,
    trainers: Iterable[Trainer],
    cluster: Cluster,
    between: Iterable[str],
    outputs: str = SWEEPS,
) -> None:
    """Ask commands at the same time, one on each CPU core. Who asks them again finds the answer, or
    gets the error.

    Of the options in ``between`` these are the ends. What the commands between them get is what all
    answers have alike.
    """
    _BETWEEN.pop(_key(base), None)
    first, *others = trainers
    # an option that the command does not know is asked once
    ask_base(first, cluster.processes, cluster.nodes, outputs)
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        for trainer in others[: MOST_ASKED - 2]:
            workers.submit(ask_base, trainer, cluster.processes, cluster.nodes, outputs)
    _BETWEEN[_key(base)] = frozenset(name.removeprefix(OPTIONS[0]) for name in between)


def find_unseen(name: str, answers: Mapping[str, Asked]) -> str:
    """Say if two values of an option give the trainer exactly the same, as far as that is known;
    empty if not.

    ``answers`` are those to the option's values, by their texts. A field of the configuration is
    not passed to the command, so its values share one answer. What happens inside a reward function
    is not seen.
    """
    seen: dict[str, str] = {}
    for value, asked in answers.items():
        content = {**asked.record, "command": None}
        other = seen.setdefault(json.dumps(content, sort_keys=True, default=str), value)
        if answers[other] is not asked and asked.is_exact:
            data = ", data" if asked.record["train_rows"] else ""
            unknown = "" if data else " The data is not known before it runs."
            return (
                f"{name}: with {other} and with {value} the trainer gets the same configuration, "
                f"model, adapter{data} and rewards.{unknown} If the program uses it nowhere else, "
                "both train the same. Check that it reads the option."
            )
    return ""


def find_rewarding(answers: Mapping[str, Asked]) -> str:
    """Return what the values of an option change of rewards: their names, or a value that one
    reads, with the option's own in it at each. Other values, such as a time, may differ between
    any two answers.
    """
    records = {value: asked.record for value, asked in answers.items() if asked.is_exact}
    names = {", ".join(record["rewards"]) for record in records.values()}
    if len(names) > 1:
        return " or ".join(sorted(names))
    reads: dict[str, set[str]] = {}
    for value, record in records.items():
        word = re.compile(rf"(?<![A-Za-z0-9]){re.escape(value)}(?![A-Za-z0-9])")
        for key, read in record["reward_values"].items():
            if word.search(str(read)):
                reads.setdefault(key, set()).add(str(read))
    return ", ".join(key for key, texts in reads.items() if len(texts) == len(records) > 1)


def own_options(trainer: Trainer, asked: Asked) -> Json:
    """Return those of ``trainer.args`` that are options of the command, not fields of its trainer's
    configuration.
    """
    placed = placeholders(trainer)
    return {
        name: value
        for name, value in trainer.args.items()
        if name in placed or name not in asked.record["values"]
    }


def _answer(trainer: Trainer, context: NodeContext, options: Config, outputs: str) -> Asked:
    folder = Path(trainer.workdir or ".").resolve()
    key = _key(trainer)
    # all trials have as many processes
    cache = _ANSWERS.setdefault(key, {})
    command = command_line(trainer, options)
    for asked, answer in [*cache.items()]:
        if answer.stamps != _stamps(asked, folder, answer.asked):
            cache.pop(asked, None)
    answers = [answer.asked for answer in cache.values() if isinstance(answer.asked, Asked)]
    is_between = answers and not _BETWEEN.get(key, frozenset()).isdisjoint(options)
    if command not in cache and (is_between or len(answers) >= MOST_ASKED):
        return _alike(answers)
    if command not in cache:
        outcome: Asked | UserError
        try:
            variables = {**trainer.environment, **nodes_of_launch(context)}
            outcome = ask(command, folder, variables, context.processes, sweeps=Path(outputs))
        except UserError as error:
            outcome = error
        cache[command] = _Answer(outcome, _stamps(command, folder, outcome))
    outcome = cache[command].asked
    if isinstance(outcome, UserError):
        raise outcome
    return outcome


def _key(trainer: Trainer) -> tuple[Path, str]:
    return Path(trainer.workdir or ".").resolve(), repr(replace(trainer, args={}))


def _stamps(
    command: str, folder: Path, asked: Asked | UserError
) -> tuple[tuple[int, int] | None, ...]:
    """Return times and sizes of the files on which an answer depends."""
    read = () if isinstance(asked, UserError) else asked.files
    # a file that was read has an absolute path
    return tuple(file_stamp(folder / path) for path in (*re.findall(_WORD, command), *read))


def find_inputs(experiments: Iterable[Experiment]) -> Inputs:
    """Find the files that experiments depend on; of a command those that it read and imported when
    it was asked.
    """
    return inputs.find_inputs(experiments, _files)


def _files(trainer: Trainer) -> list[Path]:
    if not is_external(trainer):
        return []
    if is_opaque(trainer):
        return named_files(trainer)
    folder = absolute(trainer.workdir or ".")
    # others that it names may be what it writes
    shell = [folder / name for name, _ in launch_texts(trainer.command or "", folder) if name]
    own = [path for path in shell if path.resolve().is_relative_to(folder.resolve())]
    read = ask_base(trainer).files if find_launch(trainer) is None else ()
    return list(filter(Path.exists, dict.fromkeys((*map(Path, read), *own))))


def _alike(answers: Sequence[Asked]) -> Asked:
    """Return what several answers have alike. The values in which they differ are unknown."""
    first = answers[0]
    given = [answer.record["given"] for answer in answers]
    kept = given[0]
    for values in given:
        kept = {name: value for name, value in kept.items() if values.get(name) == value}
    unknown = sorted({*first.record["unknown"]}.union(*given) - kept.keys())
    record = {**first.record, "given": kept, "unknown": unknown}
    files = tuple(dict.fromkeys(chain.from_iterable(one.files for one in answers)))
    return replace(first, record=record, files=files, is_exact=False)


def version_of(record: Config) -> Version | None:
    """Return the TRL of a record; None if it is not stated, as of a copy of its source."""
    stated = record["versions"].get("trl")
    return parse_version(stated) if stated else None


def trained_setting(record: Config) -> Setting:
    """Return the sizes and the length of a training, and all other numbers, as its trainer had them
    when it began.
    """
    values = {name: value for name, value in record["values"].items() if value is not None}
    if "generation_batch_size" in values:
        # TRL derives each from the other, and takes one of them
        values.pop("steps_per_generation", None)
    recipe = Recipe(
        "trl", version_of(record) or TRL, values, record["world_size"], record["train_rows"]
    )
    steps = {"max_steps": record["steps"]} if record.get("steps") else {}
    return read_recipe(recipe).setting.replace({**steps, "eval_prompts": record["eval_rows"]})


def asked_recipe(trainer: Trainer, asked: Asked, processes: int) -> Recipe:
    """Return the command's values as a recipe of the TRL that it imports."""
    record = asked.record
    version = version_of(record)
    options = own_options(trainer, asked)
    entered = without(trainer.args, options)
    unknown = {name: "depends on data" for name in record["unknown"] if name not in entered}
    source = VersionSource("asked", "installed") if version else NOT_STATED
    return Recipe(
        "trl",
        version or TRL,
        {**record["given"], **entered},
        processes,
        unresolved=unknown,
        version_source=source,
    )
