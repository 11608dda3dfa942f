"""Lint recipe files, or recipes as JSON lines: each is answered in order, whatever happens to the others."""

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
from grposweep.lint.apply_fixes import FixedFile, fix_file
from grposweep.lint.linter import LintResult, RuleSelection, lint_recipe
from grposweep.lint.output import (
    Screen,
    as_json,
    printable,
    render_error,
    render_result,
    show_result,
    show_total,
    writable,
)
from grposweep.memory.catalog import memory_of
from grposweep.recipe import Recipe


def lint_lines(source: BinaryIO | Iterable[bytes], out: TextIO, options: Options, selection: RuleSelection) -> int:
    """Answer every line; the exit code says the worst of them."""
    worst: int = ExitCode.FINISHED
    for line in source:
        if line.strip():
            text, code = _answer(line, options, selection)
            out.write(text + "\n")
            out.flush()  # a caller may wait for this answer before it asks again
            worst = max(worst, code)
    return worst


def _answer(line: bytes, options: Options, selection: RuleSelection) -> tuple[str, int]:
    name: Any = None
    try:
        record = _parse(line)
        name = as_json(record.get("id"))
        result = lint_recipe(_recipe(record, options), selection)
    except UserError as error:
        return render_error(str(error), name), ExitCode.BAD_INPUT
    return render_result(result, name), ExitCode.FINISHED if result.ok else ExitCode.FAILED


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
        str(record["gpu"]) if record.get("gpu") is not None else options.gpu,
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


@dataclass(frozen=True)
class LintOptions:
    """What the command line asks for each file."""

    options: Options
    selection: RuleSelection
    as_json: bool = False
    fix: bool = False
    unsafe: bool = False
    no_color: bool = False


def lint_files(paths: Iterable[Path], lint_options: LintOptions, out: TextIO, err: TextIO = sys.stderr) -> int:
    """Answer every file; the exit code says the worst of them."""
    screen = Screen(out, lint_options.no_color)
    results: list[LintResult] = []
    changed = unusable = 0
    for path in paths:
        try:
            fixed = _judge(path, lint_options)
        except UserError as error:
            unusable += 1
            if lint_options.as_json:
                out.write(render_error(str(error), file=str(path)) + "\n")
            err.write(writable(f"error: {printable(str(path))}: {printable(str(error))}\n", err))
            continue
        results.append(fixed.result)
        changed += len(fixed.changes)
        _show(screen, path, fixed, lint_options)
    if not lint_options.as_json:
        show_total(screen, results, changed, unusable, lint_options.selection.ignore)
    out.flush()
    if unusable:
        return ExitCode.BAD_INPUT
    return ExitCode.FINISHED if all(result.ok for result in results) else ExitCode.FAILED


def _judge(path: Path, lint_options: LintOptions) -> FixedFile:
    if lint_options.fix:
        return fix_file(path, lint_options.options, lint_options.selection, lint_options.unsafe)
    return FixedFile(lint_recipe(load_recipe(path, lint_options.options), lint_options.selection))


def _show(screen: Screen, path: Path, fixed: FixedFile, lint_options: LintOptions) -> None:
    if lint_options.as_json:
        screen.out.write(render_result(fixed.result) + "\n")
        return
    lines = load_text(path).removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    show_result(screen, fixed.result, lines, fixed.changes, fixed.note)
