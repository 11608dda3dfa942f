"""Read an OpenRLHF release into frameworks/openrlhf/keys.json: its options, their types, defaults and choices.

The options are those of openrlhf/cli/train_ppo_ray.py, read from its syntax tree: ``add_argument`` calls, also in a loop over
names. Nothing of OpenRLHF is imported. "renamed" has the flat names before 0.10.2, which named the options by sections; it
stays as it is.
"""

import ast
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tables import FRAMEWORKS, History, Table, cut, extend, fetch, in_order, rows

if TYPE_CHECKING:
    from release import Release

PACKAGE, NAME = "openrlhf", "OpenRLHF"
TARGET = FRAMEWORKS / "openrlhf" / "keys.json"
SOURCE = "openrlhf/cli/train_ppo_ray.py"
CHECKS = re.compile(
    r"openrlhf/(cli/train_ppo_ray|models/(loss|utils)|utils/deepspeed/deepspeed|trainer/ray/launcher)\.py"
)
RESTS = (
    (
        "openrlhf/trainer/ppo_utils/experience_maker.py",
        "compute_advantages_and_returns",
        "frameworks/openrlhf/recipes.py: ESTIMATORS",
    ),
    ("openrlhf/models/loss.py", "PolicyLoss", "frameworks/openrlhf/recipes.py: derive_loss"),
    ("openrlhf/models/utils.py", "compute_approx_kl", "frameworks/openrlhf/recipes.py: derive_kl, and GK601"),
    ("openrlhf/utils/deepspeed/deepspeed.py", "get_ds_train_config", "GB601"),
)
TESTS = (
    ("{python}", "benchmarks/tools/openrlhf_verdicts.py"),
    ("{python}", "-m", "pytest", "-q", "-p", "no:xdist", "tests/frameworks/test_openrlhf.py"),
)
BY_HAND = ("tools/openrlhf_verdicts.py: CHANGES, a command line for each new option that is judged",)


def options(source: str) -> dict[str, tuple[str, Any, list[str]]]:
    """Every option with a simple type, its default and its choices."""
    return dict(_walk(ast.parse(source).body, {}))


def _walk(body: list[ast.stmt], names: dict[str, str]) -> Iterator[tuple[str, tuple[str, Any, list[str]]]]:
    for statement in body:
        if isinstance(statement, ast.For) and isinstance(statement.target, ast.Name):
            for value in ast.literal_eval(statement.iter):
                yield from _walk(statement.body, {**names, statement.target.id: value})
        elif isinstance(statement, ast.If):
            yield from _walk(statement.body, names)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
                yield from _option(call, names)


def _option(call: ast.Call, names: dict[str, str]) -> Iterator[tuple[str, tuple[str, Any, list[str]]]]:
    told = {word.arg: word.value for word in call.keywords}
    action = _value(told.get("action"), names)
    default = _value(told.get("default"), names)
    if action in ("store_true", "store_false"):
        kind, default = "bool", bool(default) if action == "store_true" else default
    elif "nargs" in told:
        kind = "list" if default is not None else "list?"
    else:
        kind = told["type"].id if isinstance(told.get("type"), ast.Name) else "str"  # type: ignore[attr-defined]  # checked
        kind = kind if kind in ("int", "float", "bool", "str") else "any"
        kind += "?" if default is None else ""
    for flag in call.args:
        name = str(_value(flag, names)).removeprefix("--").replace("-", "_")
        choices = _value(told.get("choices"), names) or ()
        yield (
            name,
            (kind, list(default) if isinstance(default, tuple) else default, [str(choice) for choice in choices]),
        )


def _value(node: ast.expr | None, names: dict[str, str]) -> Any:
    """A literal, an f-string over the loop's names, or either branch's choice by them; None for what only runs."""
    if isinstance(node, ast.JoinedStr):
        parts = [part.value.id if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name) else part
                 for part in node.values]  # fmt: skip
        return "".join(names.get(part, "") if isinstance(part, str) else str(ast.literal_eval(part)) for part in parts)
    if isinstance(node, ast.IfExp) and isinstance(node.test, ast.Compare) and isinstance(node.test.left, ast.Name):
        is_so = names.get(node.test.left.id) == ast.literal_eval(node.test.comparators[0])
        return _value(node.body if is_so else node.orelse, names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "int":
        return int(ast.literal_eval(node.args[0]))
    try:
        found = ast.literal_eval(node) if node is not None else None
    except ValueError:
        return None
    return found if found is None or isinstance(found, (bool, int, float, str, list, tuple)) else None


def histories(table: Table) -> dict[str, dict[str, History]]:
    """The parts of the table that grow."""
    return {part: table.setdefault(part, {}) for part in ("keys", "choices")}


def releases(table: Table) -> list[str]:
    """The releases that the table knows, ascending."""
    return list(table["releases"])


def drop(table: Table, release: str) -> None:
    """Take a release and all later ones out of the table."""
    for history in histories(table).values():
        cut(history, release)
    known = releases(table)
    table["releases"] = known[: known.index(release)] if release in known else known


def add(table: Table, release: "Release") -> None:
    """Add a release to the table."""
    found, now = histories(table), options(fetch(PACKAGE, release.version).text(SOURCE))
    table["releases"].append(release.version)
    extend(found["keys"], release.version, {name: [kind, default] for name, (kind, default, _) in now.items()})
    words = {name: choices for name, (_, _, choices) in now.items() if choices}
    extend(found["choices"], release.version, in_order(words, found["choices"]))


def text(table: Table) -> str:
    """The file."""
    parts = {
        "renamed": table["renamed"],
        **{part: dict(sorted(found.items())) for part, found in histories(table).items()},
    }
    lines = [
        f' "releases": {json.dumps(table["releases"])}',
        *(f' "{part}": {rows(found)}' for part, found in parts.items()),
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"
