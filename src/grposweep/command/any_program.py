"""Run any program as a trial: values enter at the places of its command, and its metrics are read
where it writes them.

Nothing is known of the program but its command. ``{lr}`` and other keys of grposweep, ``{NAME}``
for ``trainer.args.NAME``, ``{output}``, ``{seed}`` and ``{resume}`` are its places.
"""

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

from grporecipe.diagnose.readers import find_log, own_lines
from grporecipe.errors import UserError
from grporecipe.files import Config, Json, only, read_bytes, read_json
from grporecipe.model.metrics import to_number
from grposweep.command._contract import Entry, ExternalProgram, Trial
from grposweep.command._environment import SHELL, launch_texts
from grposweep.command._script import (
    command_line,
    open_places,
    placeholders,
    without_value,
)
from grposweep.schema import Command, Experiment, Trainer, keys_of, value_at
from grposweep.storage import paths

# begins a metrics source that is an expression for the program's own output
EXPRESSION = "re:"
# places that grposweep fills
OURS = ("output", "seed", "resume", "checkpoint")
# Sections whose keys the program could only get from its command.
OF_THE_PROGRAM = (
    "lr",
    "seed",
    "batch",
    "optimizer",
    "kl",
    "loss",
    "schedule",
    "generation",
    "model",
    "task",
    "recipe",
)
# What is told to grposweep, not to the program. Only frameworks start Ray, which needs
# trainer.python.
READ = {
    "trainer",
    "schedule.max_steps",
    *(f"trainer.{name}" for name in ("kind", "keep", *Command.__dataclass_fields__)),
} - {"trainer.python"}
# Without the option, `ray job submit` prints the program's output and ends with it (ray
# dashboard/modules/job/cli.py).
_NO_WAIT = r"\bray\s+job\s+submit(?:(?!\s--\s)[^\n;&|])*\s--no-wait\b"
_NUMBER = r"(\d+)\D*$"
# the rest of a number of which an expression has matched the beginning
_REST = re.compile(r"(?:[eE][-+]?|\.)?\d+")


def build_command(trial: Trial) -> ExternalProgram:
    """Build the command with the values of this trial."""
    trainer = trial.trainer
    options = dict((read_json(trial.folder / paths.CHANGED) or {}).get("options", {}))
    if trainer.resume is not None and trial.checkpoint is None:
        print(
            "there is no checkpoint to resume from: the training starts from the beginning",
            flush=True,
        )
    resumed_at = step_of(trial.checkpoint) if trial.checkpoint else None
    source = trainer.metrics or ""
    expression = None
    if source.startswith(EXPRESSION):
        expression = _expression(source)
        folder = trial.folder / paths.LOGS
        name = f"rank-{trial.place.node}.log"
    else:
        folder = Path(trainer.workdir or ".")
        name = source.replace("{output}", str(trial.output))
    find = partial(_files, folder, name)
    tail = MetricsTail(find, expression, trainer.step_key, resumed_at)
    line = launch_line(trainer, options, trial)
    return ExternalProgram((*SHELL, line), tail, resumed_at=resumed_at, finishes=False)


def launch_line(trainer: Trainer, options: Config, trial: Trial) -> str:
    """Return the command line of a trial; options without a place are appended as ``--NAME
    value``.
    """
    again = (trainer.resume or "") if trial.checkpoint else ""
    command = trainer.command or ""
    if "{resume}" in command:
        command = command.replace("{resume}", again)
    else:
        command = f"{command} {again}".strip()
    filled = replace(trainer, command=command)
    ours = {"output": trial.output, "checkpoint": trial.checkpoint or ""}
    filled_in = only(ours, placeholders(filled))
    return command_line(filled, {**options, **filled_in})


def options_of(experiment: Experiment, named: Collection[str], plain: Experiment) -> Json:
    """Return the values of a trial's places, and the further options of its command.

    ``named`` are the keys and groups that command and point set, ``plain`` is the experiment
    without any value of theirs. A key that is not set keeps the default that the command has for
    it.
    """
    trainer = experiment.trainer
    keys = {path for path, _ in keys_of()}
    options = dict(trainer.args)
    for name in placeholders(trainer) & keys:
        value = value_at(experiment, name)
        is_named = name in named or name.partition(".")[0] in named
        if (
            is_named
            or name == "seed"
            or name.startswith("cluster.")
            or value != value_at(plain, name)
        ):
            options[name] = value
    return options


def unplaced(trainer: Trainer, names: Iterable[str]) -> Iterator[str]:
    """Say which of these keys and groups the command has no place for."""
    places = placeholders(trainer)
    for name in names:
        section = name.partition(".")[0]
        if name in READ or name.startswith(("trainer.args", "trainer.environment")):
            continue
        if section == "trainer":
            yield (
                f"{name}: trainer=command does not read it, so it would change nothing. Leave "
                "it out."
            )
        elif (
            section in OF_THE_PROGRAM
            and name not in places
            and not any(one.startswith(f"{name}.") for one in places)
        ):
            yield (
                f"{name}: the command has no place for it, so it would change nothing. Write "
                f"{{{name}}} where it belongs, or search trainer.args.NAME."
            )


def unfilled(trainer: Trainer, names: Collection[str]) -> Iterator[str]:
    """Say which places of the command have no value, if these are the keys and groups that are
    set.
    """
    for name in sorted(open_places(trainer) - {*OURS, *names, *trainer.args}):
        if names and not name.startswith("cluster.") and f"trainer.args.{name}" not in names:
            yield without_value(name)


def check_command(experiment: Experiment) -> Iterator[str]:
    """Say what a program needs that nothing else is known of: a command, its metrics, and how it
    resumes.
    """
    trainer = experiment.trainer
    search = experiment.search
    places = placeholders(trainer)
    source = trainer.metrics or ""
    texts = launch_texts(trainer.command or "", Path(trainer.workdir or "."))
    if any(re.search(_NO_WAIT, text.replace("\\\n", " ")) for _, text in texts):
        yield (
            "trainer.command calls ray job submit --no-wait, which ends while the training runs on "
            "the cluster. A trial ends with its command. Give the command behind the -- (python3 "
            "-m ...), or leave --no-wait out."
        )
    if source.startswith(EXPRESSION):
        _expression(source)
    elif "{output}" not in source and search.parallel != 1:
        yield (
            f"trainer.metrics={source}: trials that run at once would all write this file. Set "
            "trainer.metrics={output}/..., with {output} in the command, or search.parallel=1."
        )
    if ("{output}" in source or trainer.resume is not None) and "output" not in places:
        yield (
            "trainer.command has no {output}, so its files would not be in the trial's folder. "
            "Write {output} where the command names its output folder."
        )
    if trainer.resume is None and "resume" in places:
        yield (
            "trainer.command has {resume}, and trainer.resume is not set. Set it, such as "
            "'--resume {checkpoint}'."
        )
    if search.seeds and "seed" not in places:
        yield (
            f"search.seeds={search.seeds}: the command has no place for a seed. Write "
            "{seed} where it belongs."
        )
    if not stops_early(experiment) and (
        search.stopping not in ("auto", "none") or search.effort not in (None, 1)
    ):
        key = "search.effort" if search.stopping in ("auto", "none") else "search.stopping"
        yield (
            f"{key}={value_at(experiment, key)}: a paused trial has to resume, and the length "
            "of a training has to be known. Set "
            "trainer.resume and schedule.max_steps, or search.stopping=none."
        )


def stops_early(experiment: Experiment) -> bool:
    """Return whether its trials can be compared before their end: they can resume, and their length
    is known.
    """
    return experiment.trainer.resume is not None and experiment.schedule.max_steps is not None


def named_files(trainer: Trainer) -> list[Path]:
    """Return the files that the command names."""
    folder = Path(trainer.workdir or ".")
    try:
        arguments = shlex.split(trainer.command or "")
    except ValueError:
        # the shell may read it
        arguments = (trainer.command or "").split()
    # also of --name=FILE
    words = chain.from_iterable((word, word.rpartition("=")[2]) for word in arguments)
    return [path for path in dict.fromkeys(map(folder.joinpath, words)) if path.is_file()]


def newest_of(trainer: Trainer, output: Path) -> Path | None:
    """Return the checkpoint with the highest number in its name; None if there is none, or if
    nothing can use it.
    """
    if trainer.resume is None:
        return None
    return max(
        (path for path in output.glob(trainer.checkpoints) if re.search(_NUMBER, path.name)),
        key=step_of,
        default=None,
    )


def step_of(checkpoint: Path) -> int:
    """Return the step of a checkpoint: the last number in its name."""
    number = re.search(_NUMBER, checkpoint.name)
    return int(number[1]) if number else 0


def _expression(source: str) -> "re.Pattern[str]":
    """Compile the expression of a metrics source. Raise UserError if it is none, or lacks a step or
    a metric.
    """
    try:
        expression = re.compile(source.removeprefix(EXPRESSION))
    except re.error as error:
        raise UserError(
            f"trainer.metrics={source}: this is no regular expression ({error}). Correct it."
        ) from error
    if "step" not in expression.groupindex or len(expression.groupindex) < 2:
        raise UserError(
            f"trainer.metrics={source}: it needs a group for the step and one for each metric. "
            "Write for example "
            r"re:step (?P<step>\d+) reward (?P<reward>[-+.\deE]+)."
        )
    return expression


def _whole_numbers(match: "re.Match[str]") -> Json:
    """Return the groups of a match. Raise UserError if one holds the beginning of a number only."""
    for name, value in match.groupdict().items():
        if value and (rest := _REST.match(match.string, match.end(name))):
            raise UserError(
                f"trainer.metrics=re:{match.re.pattern}: {name} is {value} where the program wrote "
                f"{value}{rest[0]}, so another number would be read. Write the group as "
                rf"(?P<{name}>[-+.\deE]+)."
            )
    return match.groupdict()


def _files(folder: Path, name: str) -> list[Path]:
    """Return the files that a name or pattern stands for, the oldest first; of a folder its log.
    Links to one file count once.
    """
    path = folder / name
    matches = [path]
    if not path.exists():
        root = Path(path.anchor)
        matches = list(root.glob(str(path.relative_to(root))))
    files: set[Path] = set()
    for match in matches:
        # a folder without a log yet
        with suppress(UserError):
            files.add(find_log(match).resolve())
    return sorted(filter(Path.is_file, files), key=lambda file: file.stat().st_mtime_ns)


@dataclass
class MetricsTail:
    """Reads what a program adds to its metrics, in any of the formats. Lines from before its start
    are skipped.

    Several processes of a program may each write a file, so every file is read. One that is
    replaced is read from its start. After a resume, steps up to the checkpoint's are skipped as
    well.
    """

    find: Callable[[], list[Path]]
    expression: "re.Pattern[str] | None"
    step_key: str
    resumed_at: int | None

    def __post_init__(self) -> None:
        """Note what is there already."""
        # content and lines of each file
        self.known: dict[Path, tuple[bytes, int]] = {}
        self._new()

    def __call__(self) -> list[Entry]:
        """Return the entries since the last call."""
        entries = []
        key = self.step_key if self.expression is None else "step"
        first = -1 if self.resumed_at is None else self.resumed_at
        for line in self._new():
            numbers = {name: to_number(value) for name, value in line.items()}
            values = {name: value for name, value in numbers.items() if value is not None}
            step = values.get(key)
            if step is not None and step > first:
                for name in (self.step_key, "step"):
                    values.pop(name, None)
                entries.append(Entry("", int(step), values))
        return entries

    def _new(self) -> list[Json]:
        """Return the lines since the last call, as they were parsed."""
        return list(chain.from_iterable(map(self._new_of, self.find())))

    def _new_of(self, file: Path) -> list[Json]:
        before, seen = self.known.get(file, (b"", 0))
        try:
            data = read_bytes(file)
        except (OSError, ValueError):
            # it was just moved away, or is too large
            return []
        if data == before:
            return []
        if self.expression is None:
            lines = [*own_lines(file, data)]
        else:
            text = data[: data.rfind(b"\n") + 1].decode("utf-8", errors="replace")
            lines = list(map(_whole_numbers, self.expression.finditer(text)))
        self.known[file] = data, len(lines)
        return lines[seen:] if data.startswith(before) else lines
