"""Make frameworks/ms_swift/keys.json: which keys `swift rlhf` takes, as ms-swift's own parser tells.

    make .venvs/ms-swift/ready
    .venvs/ms-swift/bin/python benchmarks/tools/ms_swift_keys.py     # writes the table; the same release gives the same bytes

A key is its type, its default where that is a plain value, and its choices where the parser names them.
"""

import json
from argparse import Action
from importlib.metadata import version
from pathlib import Path
from typing import Any

from swift.arguments import RLHFArguments
from swift.utils.utils import _patch_get_type_hints
from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool

TABLE = Path(__file__).resolve().parents[2] / "src" / "grposweep" / "frameworks" / "ms_swift" / "keys.json"
PLAIN = {int: "int", float: "float", str: "str", string_to_bool: "bool"}


def entry(action: Action) -> list[Any]:
    """Type (with ? where None is its default), default, choices."""
    kind = PLAIN.get(action.type, "str")  # a choice is a function of its own
    if action.nargs in ("+", "*"):
        kind = "list"
    default = action.default if isinstance(action.default, (int, float, str)) else None
    optional = "?" if action.default is None else ""
    choices = [str(choice) for choice in action.choices] if action.choices else []
    return [kind + optional, getattr(default, "value", default), *([choices] if choices else [])]


def main() -> None:
    """Write the table, one key a line."""
    with _patch_get_type_hints():
        parser = HfArgumentParser([RLHFArguments])
    # A flag that is on by default has a second action, --no_<flag>, for the same key.
    keys = {action.dest: entry(action) for action in reversed(parser._actions) if action.dest != "help"}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(keys[name])}" for name in sorted(keys))
    head = f' "version": "{version("ms-swift")}",\n "transformers": "{version("transformers")}",\n'
    TABLE.write_text(f'{{\n{head} "keys": {{\n{lines}\n }}\n}}\n', encoding="utf-8")
    print(f"{len(keys)} keys: {TABLE}")


if __name__ == "__main__":
    main()
