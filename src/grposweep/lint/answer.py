"""A verdict as JSON: one object a recipe, the same for files and for lines."""

import json
from typing import Any

from grposweep.lint.judge import Verdict

_encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, check_circular=False, default=str).encode


def render_verdict(verdict: Verdict, name: Any = None) -> str:
    """One line: the recipe's id, whether it is ok, its plan, its problems with fixes."""
    recipe = verdict.recipe
    return _encode(
        {
            "id": name,
            "file": recipe.file,
            "framework": recipe.framework,
            "processes": verdict.setting.processes,
            "ok": verdict.ok,
            "plan": verdict.plan,
            "problems": [
                {
                    "code": finding.code,
                    "severity": finding.severity,
                    "message": finding.message,
                    "keys": finding.keys,
                    "line": finding.line,
                    "fixes": [
                        {key: _plain(value) for key, value in repair.change.items()} for repair in finding.repairs
                    ],
                }
                for finding in verdict.findings
            ],
        }
    )


def _plain(value: Any) -> Any:
    """A value as JSON has it; as text where JSON has none (NaN, a mapping that holds itself)."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    try:
        json.dumps(value, allow_nan=False, default=str)
    except (ValueError, TypeError, RecursionError):
        return str(value)[:200]
    return value


def render_error(text: str, name: Any = None, file: str | None = None) -> str:
    """One line for input that could not be judged."""
    return _encode({"id": name, "file": file, "ok": False, "error": text})
