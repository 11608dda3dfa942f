"""The command ``grposweep diagnose``: print a diagnosis as text or JSON, once or while the log
grows.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from grporecipe.diagnose._checks import Level
from grporecipe.diagnose._findings import (
    Diagnosis,
    Finding,
    diagnose,
    load_checks,
    names_to_fail,
)
from grporecipe.diagnose._releases import convert
from grporecipe.diagnose.readers import NoMetricsYet, find_log, read_log
from grporecipe.errors import ExitCode, UserError
from grporecipe.fields.recipes import read_recipe, spell_keys
from grporecipe.files import Json
from grporecipe.model.recipe import Recipe
from grporecipe.reading.load import Options, load_recipe
from grporecipe.terminal import label_text, redraws

STYLES = {Level.PROBLEM: "bold red", Level.WARNING: "bold yellow", Level.NOTE: "bold"}


def parse_fail_on(text: str | None) -> frozenset[str]:
    """Return the names in ``--fail-on``.

    Raises UserError for a name that no finding has.
    """
    names = frozenset(name.strip() for name in (text or "").split(",") if name.strip())
    if unknown := sorted(names - names_to_fail()):
        listed = ", ".join(sorted(names_to_fail()))
        raise UserError(
            f"--fail-on {','.join(unknown)}: no finding has that name. Set some of {listed}."
        )
    return names


def diagnose_once(
    path: Path, console: Console, as_json: bool, fail_on: frozenset[str], recipe: Path | None
) -> ExitCode:
    """Print the diagnosis of a log, with the settings of its recipe that the advice changes, and
    return the exit code.
    """
    settings: Mapping[str, str] = {}
    log = read_log(path)
    if recipe is not None:
        read = _read_recipe(recipe)
        settings = settings_of(recipe, read)
        convert(log, read)
    diagnosis = diagnose(log)
    if as_json:
        print(json.dumps(diagnosis_json(diagnosis, settings)))
    else:
        console.print(show_diagnosis(diagnosis, settings))
    return ExitCode.FAILED if diagnosis.fails(fail_on) else ExitCode.FINISHED


def watch_log(
    path: Path, console: Console, as_json: bool, fail_on: frozenset[str], interval: float
) -> ExitCode:
    """Diagnose a log each time it grows, until Ctrl-C, the training's last step, or a finding in
    ``fail_on``.

    A terminal shows one screen. Without a terminal, a diagnosis is printed each time its findings
    change.
    """
    live = Live(console=console, auto_refresh=False) if redraws(console) and not as_json else None
    shown: list[str] | None = None
    try:
        with live or nullcontext():
            for diagnosis in _diagnoses(path, interval):
                names = [finding.name for finding in diagnosis.findings]
                if live:
                    live.update(show_diagnosis(diagnosis, {}), refresh=True)
                elif as_json and names != shown:
                    print(json.dumps(diagnosis_json(diagnosis, {})), flush=True)
                elif names != shown:
                    console.print(show_diagnosis(diagnosis, {}))
                shown = names
                if diagnosis.fails(fail_on):
                    return ExitCode.FAILED
                if diagnosis.log.total and diagnosis.log.end >= diagnosis.log.total:
                    break
    except KeyboardInterrupt:
        # the usual end
        pass
    return ExitCode.FINISHED


def _diagnoses(path: Path, interval: float) -> Iterator[Diagnosis]:
    """Yield a diagnosis each time the log has changed. Wait if it has no metrics yet; a missing log
    is an error.
    """
    seen: tuple[str, int, int] | None = None
    while True:
        file = find_log(path)
        now = (str(file), file.stat().st_size, file.stat().st_mtime_ns) if file.exists() else None
        if now is None or now != seen:
            # the training has not logged yet
            with suppress(NoMetricsYet):
                yield diagnose(read_log(file))
            seen = now
        time.sleep(interval)


def _read_recipe(path: Path) -> Recipe:
    try:
        return load_recipe(path, Options())
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def settings_of(path: Path, recipe: Recipe) -> dict[str, str]:
    """Return for each finding where a recipe sets what the advice changes, such as ``recipe.yaml:
    beta=0 (line 4)``.
    """
    setting = read_recipe(recipe).setting
    texts = {}
    for check in load_checks():
        keys: Json = {}
        for field in check.changes.split():
            keys |= spell_keys({field: getattr(setting, field)}, recipe, setting) or {}
        words = []
        for key, value in keys.items():
            said = " not set" if value is None else f"={label_text(value)}"
            place = f"line {recipe.lines[key]}" if key in recipe.lines else "default"
            words.append(f"{key}{said} ({place})")
        if words:
            texts[check.name] = f"{path}: {', '.join(words)}"
    return texts


def show_diagnosis(diagnosis: Diagnosis, settings: Mapping[str, str]) -> Group:
    """Return a diagnosis as text for the terminal; ``settings`` are where a recipe sets what a
    finding's advice changes.
    """
    log = diagnosis.log
    head = f"{log.format}, {len(log.steps):,} logged steps to {log.end:,}"
    if log.total:
        head += f" of {log.total:,}"
    if log.counted:
        head += ", lines numbered"
    if log.skipped:
        head += f", {log.skipped} damaged lines skipped"
    if log.converted:
        head += f", {log.converted}"
    parts: list[RenderableType] = [Text(log.path, "bold", overflow="fold"), Text(head)]
    if diagnosis.healthy:
        parts.append(Text("no problem found", "bold green"))
    for finding in diagnosis.findings:
        parts += _paragraph(finding, settings.get(finding.name))
    if diagnosis.not_judged:
        parts.append(Text(f"not judged: {_missing(diagnosis)}", "dim"))
    return Group(*parts)


def _paragraph(finding: Finding, settings: str | None) -> Iterator[RenderableType]:
    first, last = finding.steps
    yield Text.assemble(
        (f"{finding.level}", STYLES[finding.level]), f" {finding.name}: ", (finding.text, "bold")
    )
    below = [Text(f"Steps {first:,}-{last:,}: {finding.evidence}."), Text(finding.advice)]
    if settings:
        below.append(Text(settings, "bold", overflow="fold"))
    yield Padding(Group(*below), (0, 0, 0, 2), expand=False)


def _missing(diagnosis: Diagnosis) -> str:
    """Return the checks that did not run, grouped by what they lack."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in diagnosis.not_judged.items():
        by_reason.setdefault(reason, []).append(name)
    return "; ".join(
        f"{', '.join(names)} (missing: {reason})" for reason, names in by_reason.items()
    )


def diagnosis_json(diagnosis: Diagnosis, settings: Mapping[str, str]) -> Json:
    """Return a diagnosis as JSON for scripts; ``settings`` as for `show_diagnosis`."""
    log = diagnosis.log
    steps = log.range if log.steps else None
    findings = []
    for finding in diagnosis.findings:
        shown = asdict(finding)
        if text := settings.get(finding.name):
            shown["settings"] = text
        findings.append(shown)
    return {
        "log": log.path,
        "format": log.format,
        "steps": steps,
        "total": log.total,
        "healthy": diagnosis.healthy,
        "findings": findings,
        "not_judged": diagnosis.not_judged,
    }
