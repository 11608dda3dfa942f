"""Recipes as JSON lines: one answer a line, in order, as soon as it is there.

Recipes in files: each is judged, fixed where asked, and answered, whatever happens to the others.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from grposweep.errors import ExitCode, UserError
from grposweep.files import as_number
from grposweep.frameworks import FRAMEWORKS
from grposweep.frameworks.parsing.load import Options, build_recipe, load_recipe, load_text
from grposweep.frameworks.trl.keys import parse_version
from grposweep.lint.apply_fixes import Repaired, repair_file
from grposweep.lint.linter import Chosen, Verdict, judge
from grposweep.lint.output import Screen, printable, render_error, render_verdict, show_total, show_verdict, writable
from grposweep.memory.catalog import memory_of
from grposweep.recipe import Recipe


def lint_lines(source: BinaryIO | Iterable[bytes], out: TextIO, options: Options, chosen: Chosen) -> int:
    """Answer every line; the exit code says the worst of them."""
    worst: int = ExitCode.FINISHED
    for line in source:
        if line.strip():
            text, code = _answer(line, options, chosen)
            out.write(text + "\n")
            out.flush()  # a caller may wait for this answer before it asks again
            worst = max(worst, code)
    return worst


def _answer(line: bytes, options: Options, chosen: Chosen) -> tuple[str, int]:
    name: Any = None
    try:
        record = _parse(line)
        name = _printable(record.get("id"))
        verdict = judge(_recipe(record, options), chosen)
    except UserError as error:
        return render_error(str(error), name), ExitCode.BAD_INPUT
    return render_verdict(verdict, name), ExitCode.FINISHED if verdict.ok else ExitCode.FAILED


def _parse(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"this line is not JSON: {str(error)[:120]}.") from None
    if not isinstance(record, dict):
        raise UserError("this line is JSON, but not an object.")
    return record


def _recipe(record: dict[str, Any], options: Options) -> Recipe:
    """The recipe of a line; what it leaves out is as the command line says."""
    config = record.get("config")
    if not isinstance(config, dict):
        raise UserError('"config" is missing, or not an object of keys and values.')
    framework = record.get("framework") or options.framework
    if framework not in ("auto", *FRAMEWORKS):
        raise UserError(f"framework {str(framework)[:40]!r}: grposweep reads {', '.join(sorted(FRAMEWORKS))}.")
    version = record.get("trl_version")
    told = Options(
        framework,
        parse_version(version) if version is not None else options.version,
        _count(record, "processes", options.processes),
        _count(record, "dataset_size", options.train_prompts),
        str(own) if (own := record.get("framework_version")) is not None else options.own_version,
        _gpu(record, options.gpu_gib),
    )
    return build_recipe(config, told)


def _count(record: dict[str, Any], key: str, default: int | None) -> int | None:
    """A count of a line, which must be a whole number from 1."""
    value = record.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**12:
        raise UserError(f'"{key}" is {str(value)[:40]}, and must be a whole number of at least 1.')
    return value


def _gpu(record: dict[str, Any], default: float | None) -> float | None:
    """The memory of a line's GPU in GiB: by its name, or as a number."""
    gpu = record.get("gpu")
    if gpu is None:
        return default
    if isinstance(gpu, str):
        return memory_of(gpu, '"gpu"')
    gib = as_number(gpu)
    if gib is None or not 0 < gib < 1e6:
        raise UserError(f'"gpu" is {str(gpu)[:40]}, and must be a name (A100) or its memory in GiB.')
    return gib


def _printable(name: Any) -> Any:
    """An id is repeated as it came; as text where NaN or an infinity is in it, which JSON has not."""
    try:
        json.dumps(name, allow_nan=False)
    except (ValueError, RecursionError):
        return str(name)[:200]
    return name


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
        except UserError as error:
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
    if unusable:
        return ExitCode.BAD_INPUT
    return ExitCode.FINISHED if all(verdict.ok for verdict in verdicts) else ExitCode.FAILED


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
