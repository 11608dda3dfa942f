"""The command ``check``: ask a launch what its trainer gets, and judge that like a recipe."""

import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from grporecipe.errors import ExitCode, UserError
from grporecipe.files import Config
from grporecipe.linting import output
from grporecipe.linting.apply_fixes import FixedFile
from grporecipe.linting.command import LintOptions, open_report
from grporecipe.linting.linter import JudgedText, lint_recipe, select_rules
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.recipe import NOT_STATED, KeySpec, LaunchedCode, Recipe, VersionSource
from grporecipe.model.setting import TRL
from grporecipe.reading.load import Options, load_text
from grporecipe.terminal import count, say
from grposweep.command.ask import Asked
from grposweep.command.asked import default_values, version_of
from grposweep.command.base import Base
from grposweep.schema import Trainer

UNRESOLVED = "GV106"


def check_command(
    words: Sequence[str],
    processes: int | None,
    style: str,
    select: Iterable[str],
    ignore: Iterable[str],
) -> int:
    """Ask a command, print what its trainer gets and every problem. Return 1 if there is an
    error.
    """
    selection = select_rules(select, ignore)
    command = words[0] if len(words) == 1 else shlex.join(words)
    trainer = Trainer(kind="command", command=command)
    base = Base(trainer, processes or 1)
    # a framework's launch is read as lint reads it
    recipe, hidden = base.launch, ""
    if recipe is None:
        out = sys.stdout if style == "text" else sys.stderr
        for line in _describe(base.asked, default_values(trainer)):
            say(line, out)
        # it says what is unknown
        recipe, hidden = recipe_of(base.asked), UNRESOLVED
    file = Path(os.path.relpath(recipe.file or "."))
    recipe = replace(recipe, file=str(file))
    try:
        text = load_text(file)
    except UserError:
        # a notebook's cells, a file that is gone
        text = ""
    result = lint_recipe(recipe, selection)
    shown = tuple(problem for problem in result.diagnostics if problem.code != hidden)
    judged = FixedFile(
        JudgedText(text, (replace(result, diagnostics=shown),), off=selection.ignore), text
    )
    report = open_report(
        LintOptions(Options(), selection, style, no_color="NO_COLOR" in os.environ), sys.stdout
    )
    report.add(file, judged)
    report.close(output.Total([judged.result], files=1, off={*selection.ignore}))
    return ExitCode.FINISHED if judged.result.ok else ExitCode.FAILED


def recipe_of(asked: Asked) -> Recipe:
    """Return what a trainer gets as a recipe. Values that depend on data are unresolved, so no rule
    judges them.
    """
    record = asked.record
    file, _ = _place(record["line"])
    stated = version_of(record)
    framework = "unsloth" if record["unsloth"] else "trl"
    takes = FRAMEWORKS[framework].takes(stated or TRL)
    # fields of a class that the program derives
    own = {name: KeySpec("any", None) for name in record["given"] if name not in takes}
    own_trainer = record["base"] is None or bool(record["own_batches"])
    trainer = record["trainer"].rpartition(".")[2] if own_trainer else record["base"]
    source = VersionSource("asked", "installed") if stated else NOT_STATED
    no_evaluation = None
    if record["evaluates"] is False:
        _, no_evaluation = _place(record["trainer_line"])
    lines = {name: _place(record["assigned"].get(name, record["line"])) for name in record["given"]}
    return Recipe(
        framework,
        stated or TRL,
        record["given"],
        record["world_size"],
        record["train_rows"],
        file=file,
        lines={name: at for name, (where, at) in lines.items() if where == file and at},
        unresolved=dict.fromkeys(record["unknown"], ""),
        version_source=source,
        code=LaunchedCode(
            file,
            own,
            trainer=trainer,
            own_trainer=own_trainer,
            other_keys="stop",
            no_evaluation=no_evaluation,
        ),
    )


def _place(line: str) -> tuple[str, int | None]:
    file, _, number = line.rpartition(":")
    if not number.isdigit():
        return file, None
    return file, int(number)


def _describe(asked: Asked, filled: Config) -> Iterable[str]:
    """Yield which places of the command are filled, what was asked, how, and what is unknown."""
    for name, value in filled.items():
        yield f"{{{name}}} is filled with {value}, TRL's default. Another one: {{{name}:VALUE}}"
    record: Config = asked.record
    ranks = count(record["world_size"], "process")
    name = record["trainer"].rpartition(".")[2]
    version = FRAMEWORKS["trl"].traits.name_of(
        record["versions"].get("trl", "of an unknown version")
    )
    way = f"for real ({asked.why})" if asked.why else "on stand-ins"
    yield (
        f"{record['trainer_line']} builds {name} with {ranks}, {version}; asked {way} "
        f"in {asked.seconds:.1f} s"
    )
    if asked.assumed:
        yield (
            "nothing states the number of processes, so it is taken to be "
            f"{record['world_size']}; --processes sets it"
        )
    if record["unknown"]:
        yield f"not judged, because only a real run knows it: {', '.join(record['unknown'])}"
