"""Read an ms-swift release into frameworks/ms_swift/keys.json: what `swift rlhf` takes, as its own
parser tells.

    .venvs/ms-swift/bin/python benchmarks/tools/ms_swift_keys.py        # prints the keys of the
    installed release

Of the newest release a key is its type, its default where that is a plain value, and its choices
where the parser names them. "earlier" has the history of each key that was not always as it is now,
from 3.1.1, the first release with GRPO.
"""

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

from tables import FRAMEWORKS, PROJECT, History, Table

if TYPE_CHECKING:
    from release import Release

PACKAGE, NAME = "ms-swift", "ms-swift"
TARGET = FRAMEWORKS / "ms_swift" / "keys.json"
# the environment of `make ms-swift`
PINNED = "benchmarks/frameworks/ms-swift.txt"
PYTHON = PROJECT / ".venvs" / "ms-swift" / "bin" / "python"
CHECKS = re.compile(
    r"swift/(arguments/\w+|rlhf_trainers/(arguments|args_mixin|grpo_trainer|rollout_mixin))\.py"
)
RESTS = (
    (
        "swift/rlhf_trainers/grpo_trainer.py",
        "_compute_loss_and_metrics",
        "frameworks/ms_swift/rules.py: LOSSES, LEVELS",
    ),
    (
        "swift/rlhf_trainers/grpo_trainer.py",
        "_compute_advantages",
        "frameworks/ms_swift/rules.py: SCALES",
    ),
    (
        "swift/rlhf_trainers/rollout_mixin.py",
        "_setup_teacher",
        "frameworks/ms_swift/keys.py: TAKES_ALL_FOR_TAUGHT",
    ),
    ("swift/cli/main.py", "parse_yaml_args", "frameworks/ms_swift/keys.py: read_value"),
)
TESTS = (
    ("make", "ms-swift"),
    (
        "{python}",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        "tests/frameworks/test_against_ms_swift.py",
    ),
)
BY_HAND = ("frameworks/ms_swift/recipe_rules.py: SAME_VALUE and the successors of keys that went",)


def parsed() -> dict[str, Any]:
    """The newest release's keys, from its own parser; only here ms-swift is imported."""
    from importlib.metadata import version

    from swift.arguments import RLHFArguments
    from swift.utils.utils import _patch_get_type_hints
    from transformers import HfArgumentParser
    from transformers.hf_argparser import string_to_bool

    kinds = {int: "int", float: "float", str: "str", string_to_bool: "bool"}

    def entry(action: Any) -> list[Any]:
        """Type (with ? where None is its default), default, choices."""
        # a choice is a function of its own
        kind = kinds.get(action.type, "str")
        if action.nargs in ("+", "*"):
            kind = "list"
        default = action.default if isinstance(action.default, (int, float, str)) else None
        optional = "?" if action.default is None else ""
        choices = [str(choice) for choice in action.choices] if action.choices else []
        return [
            kind + optional,
            getattr(default, "value", default),
            *([choices] if choices else []),
        ]

    with _patch_get_type_hints():
        parser = HfArgumentParser([RLHFArguments])
    # A flag that is on by default has a second action, --no_<flag>, for the same key.
    keys = {
        action.dest: entry(action) for action in reversed(parser._actions) if action.dest != "help"
    }
    return {"version": version("ms-swift"), "transformers": version("transformers"), "keys": keys}


def histories(table: Table) -> dict[str, dict[str, History]]:
    """The keys of the newest release."""
    return {"keys": {name: [[table["version"], *entry]] for name, entry in table["keys"].items()}}


def releases(table: Table) -> list[str]:
    """The releases that the table knows, ascending."""
    return list(table["releases"])


def drop(table: Table, release: str) -> None:
    """Take the newest release out of the table; nothing if it is another one."""
    if release != table["version"]:
        return
    table["releases"].pop()
    table["version"] = table["releases"][-1]
    for name, changes in list(table["earlier"].items()):
        if changes[-1][0] == release:
            changes.pop()
            table["keys"].pop(name, None)
            if changes and len(changes[-1]) > 1:
                table["keys"][name] = changes[-1][1:]
            if not changes or (len(changes) == 1 and changes[0][0] == table["releases"][0]):
                # it always was as it is
                del table["earlier"][name]


def add(table: Table, release: "Release") -> None:
    """Add a release to the table, in an environment of its own."""
    subprocess.run(
        ["make", str(PYTHON.parents[1].relative_to(PROJECT) / "ready")], cwd=PROJECT, check=True
    )
    printed = subprocess.run([PYTHON, __file__], capture_output=True, text=True, check=True).stdout
    now, first = json.loads(printed.splitlines()[-1]), table["releases"][0]
    for name in sorted(table["keys"].keys() | now["keys"].keys()):
        before, entry = table["keys"].get(name), now["keys"].get(name)
        if before != entry:
            changes = table["earlier"].setdefault(
                name, [[first, *before]] if before is not None else []
            )
            changes.append([release.version, *(entry or ())])
    table["releases"].append(release.version)
    table |= now


def text(table: Table) -> str:
    """The file, a key a line."""
    parts = [
        f' "{name}": {json.dumps(table[name])}' for name in ("version", "transformers", "releases")
    ]
    for part in ("keys", "earlier"):
        lines = ",\n".join(
            f"  {json.dumps(name)}: {json.dumps(table[part][name])}" for name in sorted(table[part])
        )
        parts.append(f' "{part}": {{\n{lines}\n }}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    print(json.dumps(parsed()))
