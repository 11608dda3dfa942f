"""Fixes written into a file: only where the recipe is no worse after, and nothing but the keys that change is touched."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grposweep.errors import UserError
from grposweep.files import write_text
from grposweep.frameworks.parsing.load import SHELLS, Options, load_text, parse_recipe
from grposweep.lint.edit import edit, edit_nested, render_value
from grposweep.lint.linter import Chosen, Verdict, judge

MOST_ROUNDS = 50  # each ends one problem


@dataclass(frozen=True)
class Repaired:
    """What was written into a file, in words, and the verdict on it now."""

    verdict: Verdict
    changes: tuple[str, ...] = ()
    note: str = ""


def repair_file(path: Path, options: Options, chosen: Chosen, unsafe: bool) -> Repaired:
    """Apply every fix that may be applied, one at a time, each judged before the next; then write the file once."""
    original = text = load_text(path)
    verdict = judge(parse_recipe(path, text, options), chosen)
    if path.suffix in SHELLS or text.startswith("#!"):
        wanted = any(repair for finding in verdict.findings for repair in finding.repairs)
        return Repaired(verdict, note="shell scripts are not rewritten: change these by hand" if wanted else "")
    changes: list[str] = []
    for _ in range(MOST_ROUNDS):
        step = _step(path, text, verdict, options, chosen, unsafe)
        if step is None:
            break
        text, verdict, words = step
        changes.append(words)
    if text != original:
        _write(path, original, text)
    return Repaired(verdict, tuple(changes))


def _step(
    path: Path, text: str, verdict: Verdict, options: Options, chosen: Chosen, unsafe: bool
) -> tuple[str, Verdict, str] | None:
    """The first fix that ends its problem and makes none."""
    for finding in verdict.findings:
        for repair in finding.repairs:
            if "processes" in repair.change or not (repair.safe or unsafe):
                continue
            edit_text = edit_nested if verdict.setting.framework.syntax == "dotted" else edit
            edited = edit_text(text, repair.change)
            if edited is None or edited == text:
                continue
            after = judge(parse_recipe(path, edited, options), chosen)
            if _is_better(verdict, after, finding.code):
                return edited, after, f"{finding.code}: {render_change(repair.change)}"
    return None


def _is_better(before: Verdict, after: Verdict, code: str) -> bool:
    """One problem less of this code, and of no code an error more."""
    old, new = (Counter(finding.code for finding in verdict.findings) for verdict in (before, after))
    errors = {finding.code for finding in after.findings if finding.severity == "error"}
    return new[code] < old[code] and all(new[other] <= old[other] for other in errors)


def render_change(change: Mapping[str, Any]) -> str:
    """A change as one types it: ``old removed, key: value``."""
    return ", ".join(
        f"{key} removed" if value is None else f"{key}: {render_value(value)}" for key, value in change.items()
    )


def _write(path: Path, original: str, text: str) -> None:
    """Whole or not at all, through a link to the file behind it, and only over what was judged."""
    target = path.resolve()
    mode = target.stat().st_mode & 0o7777
    if load_text(path) != original:
        raise UserError("it changed while it was being judged, so it was left alone. Run again.")
    try:
        write_text(target, text)
        target.chmod(mode)
    except OSError as error:
        raise UserError(f"it cannot be written: {error.strerror or error}.") from None
