"""Recipes in files: each is judged, fixed where asked, and answered, whatever happens to the others."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from grposweep.errors import BadInput
from grposweep.frameworks.load import Options, load_recipe, load_text
from grposweep.lint.answer import render_error, render_verdict
from grposweep.lint.judge import Chosen, Verdict, judge
from grposweep.lint.lines import ERRORS, OK, UNUSABLE
from grposweep.lint.repair import Repaired, repair_file
from grposweep.lint.screen import Screen, printable, show_total, show_verdict, writable


@dataclass(frozen=True)
class Asked:
    """What the command line asks of each file."""

    options: Options
    chosen: Chosen
    as_json: bool = False
    fix: bool = False
    unsafe: bool = False
    no_color: bool = False


def lint_files(paths: Iterable[Path], asked: Asked, out: TextIO, err: TextIO = sys.stderr) -> int:
    """Answer every file; the exit code says the worst of them."""
    screen = Screen(out, asked.no_color)
    verdicts: list[Verdict] = []
    changed = unusable = 0
    for path in paths:
        try:
            repaired = _judge(path, asked)
        except BadInput as error:
            unusable += 1
            if asked.as_json:
                out.write(render_error(str(error), file=str(path)) + "\n")
            err.write(writable(f"error: {printable(str(path))}: {printable(str(error))}\n", err))
            continue
        verdicts.append(repaired.verdict)
        changed += len(repaired.changes)
        _show(screen, path, repaired, asked)
    if not asked.as_json:
        show_total(screen, verdicts, changed, unusable, asked.chosen.ignore)
    out.flush()
    return UNUSABLE if unusable else OK if all(verdict.ok for verdict in verdicts) else ERRORS


def _judge(path: Path, asked: Asked) -> Repaired:
    if asked.fix:
        return repair_file(path, asked.options, asked.chosen, asked.unsafe)
    return Repaired(judge(load_recipe(path, asked.options), asked.chosen))


def _show(screen: Screen, path: Path, repaired: Repaired, asked: Asked) -> None:
    if asked.as_json:
        screen.out.write(render_verdict(repaired.verdict) + "\n")
        return
    lines = load_text(path).removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    show_verdict(screen, repaired.verdict, lines, repaired.changes, repaired.note)
