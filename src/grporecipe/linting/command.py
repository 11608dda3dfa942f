"""Lint recipe files. Each one gets a result, even if others fail.

In a folder, all files that may hold a recipe and that git does not ignore are linted.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

from grporecipe.errors import BadSettings, ExitCode, NotARecipe, UserError
from grporecipe.files import absolute
from grporecipe.linting import output
from grporecipe.linting._git_index import tracked_paths
from grporecipe.linting.apply_fixes import FixedFile, fix_file
from grporecipe.linting.linter import Diagnostic, LintResult, RuleSelection, judge_text
from grporecipe.project.repository import find_root
from grporecipe.reading.build import LARGEST_NOTEBOOK, Options, load_text
from grporecipe.reading.load import SHELLS
from grporecipe.reading.signs import GROUPS
from grporecipe.terminal import Progress, one_line

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

YAML = (".yaml", ".yml")
PYTHON = (".py", ".ipynb")
SUFFIXES = frozenset((*YAML, *SHELLS, *PYTHON))
# in the folder of a sweep's results
SWEEP = "sweep.yaml"
SKIPPED = frozenset({"node_modules", "site-packages", "__pycache__", "unsloth_compiled_cache"})
# The recipes of a project's tests are short and unusual by intention: in folders only their errors
# are shown.
TESTS = frozenset({"tests", "test"})
# Defaults that changed between releases of TRL: of a repository's recipes, only the first one is
# asked what it means.
ONCE = frozenset({"GK203", "GK204"})
# a Python file that trains with GRPO names GRPOConfig or a class of its own
MARK = b"GRPO"
# in the config.yaml of a folder whose subfolders are grposweep's own groups
OWN = b"hydra/sweeper: grposweep"


class Target(NamedTuple):
    """A file to lint. A file found in a folder is skipped silently if it is not a recipe."""

    path: Path
    in_folder: bool = False


def find_targets(paths: Iterable[Path]) -> Iterator[Target]:
    """Yield the named files, and the files of named folders, sorted by name."""
    for path in paths:
        if path.is_dir():
            yield from (Target(file, in_folder=True) for file in _walk(path))
        else:
            yield Target(path)


def _walk(top: Path) -> Iterator[Path]:
    above = _folders_to_root(top)
    specs = dict(chain.from_iterable(map(_ignored_in, above)))
    tracked = tracked_paths(above[-1])
    for folder, folders, files in os.walk(top):
        here = Path(folder)
        specs.update(_ignored_in(here))
        paths = [here / name for name in sorted(folders) if _is_searched(here, name)]
        folders[:] = [path.name for path in paths if not _is_ignored(path, specs, tracked)]
        for path in [here / name for name in sorted(files)]:
            if (
                path.suffix in SUFFIXES
                and path.is_file()
                and (path.suffix not in PYTHON or _has(path, MARK))
                and not _is_ignored(path, specs, tracked)
            ):
                yield path


def _is_searched(here: Path, name: str) -> bool:
    """Return whether a folder may hold recipes: not if hidden, a virtual environment, a cache, the
    results of a sweep, or a group of grposweep's own configuration.
    """
    there = here / name
    is_sweep = (there / "trials").is_dir() and (there / SWEEP).exists()
    return (
        not name.startswith(".")
        and name not in SKIPPED
        and not (there / "pyvenv.cfg").exists()
        and not is_sweep
        and not _has(here / "config.yaml", OWN)
    )


def _has(path: Path, mark: bytes) -> bool:
    """Return whether a file has a mark: a repository has thousands of files, and few to judge."""
    try:
        return path.stat().st_size <= LARGEST_NOTEBOOK and mark in path.read_bytes()
    except OSError:
        return False


def _folders_to_root(top: Path) -> list[Path]:
    """Return a folder and those above it, up to the root of its repository; without one, the folder
    alone.
    """
    folders = [absolute(top), *absolute(top).parents]
    root = next((n for n, folder in enumerate(folders) if (folder / ".git").exists()), 0)
    return folders[: root + 1]


def _ignored_in(folder: Path) -> Iterator[tuple[Path, "GitIgnoreSpec"]]:
    # only a folder needs it
    from pathspec import GitIgnoreSpec

    try:
        lines = (folder / ".gitignore").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    yield absolute(folder), GitIgnoreSpec.from_lines(lines)


def _is_ignored(path: Path, specs: dict[Path, "GitIgnoreSpec"], tracked: frozenset[Path]) -> bool:
    """Return whether git ignores a path: the deepest file with a matching pattern decides. What git
    tracks is never ignored.
    """
    whole = absolute(path)
    if whole in tracked:
        return False
    is_folder = path.is_dir()
    for folder in whole.parents:
        if folder in specs:
            name = whole.relative_to(folder).as_posix()
            if is_folder:
                name += "/"
            verdict = specs[folder].check_file(name).include
            if verdict is not None:
                return verdict
    return False


SIGN = "grpo"


@dataclass(frozen=True)
class LintOptions:
    """The options of the command line for each file."""

    options: Options
    selection: RuleSelection
    format: str = "text"
    fix: bool = False
    unsafe: bool = False
    diff: bool = False
    no_color: bool = False


def lint_files(
    paths: Iterable[Path], lint_options: LintOptions, out: TextIO, err: TextIO | None = None
) -> int:
    """Answer every file, and every recipe in a folder. Return the exit code of the worst answer."""
    err = err or sys.stderr
    report = open_report(lint_options, out)
    total = output.Total(off={*lint_options.selection.ignore})
    refused = set[str]()
    told = set[tuple[Path | None, str, str, str]]()
    progress = Progress(err)
    for path, in_folder in find_targets(paths):
        total.in_folders |= in_folder
        progress.step(path)
        try:
            fixed = _judge(path, lint_options)
        except UserError as error:
            progress.clear()
            if in_folder and not isinstance(error, BadSettings):
                total.skipped[str(path)] = str(error)
                # one that mentions GRPO, or its keys, is named at the end
                if not isinstance(error, NotARecipe) and _speaks_of_grpo(path):
                    total.unjudged.append(str(path))
                continue
            total.unusable += 1
            # settings apply to many files
            if str(error) not in refused:
                report.refuse(path, str(error))
                err.write(
                    output.writable(f"error: {one_line(str(path))}: {one_line(str(error))}\n", err)
                )
            if isinstance(error, BadSettings):
                refused.add(str(error))
            continue
        if in_folder:
            root = find_root(path)
            inner = path
            # a folder above the repository is none of its tests
            if root is not None:
                inner = absolute(path).relative_to(root)
            if not TESTS.isdisjoint(inner.parts):
                fixed = _only(fixed, lambda _, problem: problem.is_error)
            fixed = _told_once(fixed, root, told)
        progress.clear()
        _add(total, path, fixed, err)
        report.add(path, fixed)
    progress.clear()
    report.close(total)
    out.flush()
    if total.unusable:
        return ExitCode.BAD_INPUT
    has_failed = not all(result.ok for result in total.results)
    if lint_options.diff:
        has_failed = total.changed > 0
    if has_failed:
        return ExitCode.FAILED
    return ExitCode.FINISHED


def _only(fixed: FixedFile, keeps: Callable[[LintResult, Diagnostic], bool]) -> FixedFile:
    """Return a judged file with some of its problems."""
    results = []
    for result in fixed.judged.results:
        kept = tuple(problem for problem in result.diagnostics if keeps(result, problem))
        results.append(replace(result, diagnostics=kept))
    return replace(fixed, judged=replace(fixed.judged, results=tuple(results)))


SET_IN = " (It is set in "


def _told_once(
    fixed: FixedFile, root: Path | None, told: set[tuple[Path | None, str, str, str]]
) -> FixedFile:
    """Return a judged file without warnings that were told before, at another launch of the same
    recipe or script.
    """

    def is_new(result: LintResult, problem: Diagnostic) -> bool:
        message, _, place = problem.message.partition(SET_IN)
        named = place.removesuffix(".)")
        if not named and not result.recipe.launch:
            named = result.recipe.file
        shown_by = Path(named).name
        # no line of the script sets it, so each of its launches has it
        if not named and problem.line is None:
            shown_by = result.recipe.file
        if problem.code in ONCE:
            shown_by = message = "a repository"
        if problem.is_error or not shown_by:
            return True
        identity = (root, shown_by, problem.code, message)
        is_known = identity in told
        told.add(identity)
        return not is_known

    return _only(fixed, is_new)


def _speaks_of_grpo(path: Path) -> bool:
    try:
        text = load_text(path).lower()
        return SIGN in path.name.lower() or SIGN in text or any(f"{key}:" in text for key in GROUPS)
    except UserError:
        return False


def _add(total: output.Total, path: Path, fixed: FixedFile, err: TextIO) -> None:
    judged = fixed.judged
    total.files += 1
    total.results += judged.results
    total.changed += len(fixed.changes)
    total.silenced += judged.silenced
    total.off |= {*judged.off}
    for line, code in judged.unknown:
        text = f"{path}:{line}: no rule or family is called {code}, so this comment ignores nothing"
        err.write(output.writable(f"warning: {one_line(text)}\n", err))


def _judge(path: Path, lint_options: LintOptions) -> FixedFile:
    options = lint_options.options
    selection = lint_options.selection
    if lint_options.fix or lint_options.diff:
        return fix_file(path, options, selection, lint_options.unsafe, write=lint_options.fix)
    text = load_text(path)
    return FixedFile(judge_text(path, text, options, selection), text)


def open_report(lint_options: LintOptions, out: TextIO) -> output.Report:
    """Return the report in the requested format."""
    screen = output.Screen(out, lint_options.no_color)
    if lint_options.diff:
        from grporecipe.linting._formats import DiffReport

        return DiffReport(screen)
    if lint_options.format == "github":
        from grporecipe.linting._formats import GithubReport

        return GithubReport(screen)
    if lint_options.format == "sarif":
        from grporecipe.linting._formats import SarifReport

        return SarifReport(screen)
    if lint_options.format == "json":
        return output.JsonReport(screen)
    return output.TextReport(screen)
