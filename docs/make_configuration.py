"""Write docs/reference/configuration.md from the schema and conf/ (``make docs``).

python docs/make_configuration.py [FILE]
"""

import argparse
import ast
import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from grposweep.config.validate import choices
from grposweep.process import CONF
from grposweep.schema import Experiment

HEAD = """# Configuration

Generated from the schema and `conf/` by `make docs`; do not edit. Every key can be
given on the command line of `run.py` (`batch.num_generations=8`), swept with `-m`
(`batch.num_generations=8,16`), and set in a file of `sweeps/`. A group's option (`batch=small`)
sets several keys at once. An unknown key is an error that names the nearest one. `python src/run.py
--cfg job` prints the configuration of a command line.

A key of TRL's GRPOConfig that is not in this list is set, and swept, under its own name:
`trainer.args.disable_dropout=true`, `trainer.args.neftune_noise_alpha=null,5`. It is checked
against TRL's table of keys and types, judged by the same rules, and part of a trial's identity.

Defaults here are the schema's; an option may set others, and `conf/config.yaml` chooses an option
of each group.
"""


def render_keys() -> str:
    """Return the whole document."""
    return "\n".join([HEAD, *_section("", Experiment)])


def _section(name: str, schema: Any) -> Iterator[str]:
    """Return one section: its docstring, its options, its keys, then its subsections."""
    hints = get_type_hints(schema)
    yield f"{'##' if '.' not in name else '###'} {name or 'At the root'}\n"
    yield inspect.cleandoc(schema.__doc__).replace("``", "`") + "\n"
    options = list(_options(name))
    if options:
        yield "\n".join(["Options:\n", *options]) + "\n"
    keys = [field for field in fields(schema) if not is_dataclass(hints[field.name])]
    about = _descriptions(schema)
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key in keys:
        path = f"{name}.{key.name}" if name else key.name
        words = " \\| ".join(f"`{word}`" for word in choices(path)) or type_text(hints[key.name])
        value = key.default if key.default_factory is MISSING else key.default_factory()
        default = value if isinstance(value, str) else json.dumps(value)
        rows.append(f"| `{path}` | {words} | `{default}` | {about[key.name]} |")
    yield "\n".join([*rows, ""])
    for field in fields(schema):
        if is_dataclass(hints[field.name]):
            yield from _section(f"{name}.{field.name}" if name else field.name, hints[field.name])


def _descriptions(schema: Any) -> dict[str, str]:
    """Return the docstring beneath each key of a section, on one line."""
    sources = [ast.parse(inspect.getsource(part)).body[0] for part in schema.__mro__[:-1]]
    # each is a class
    body = [node for source in sources for node in source.body]  # type: ignore[attr-defined]
    return {
        key.target.id: " ".join(ast.literal_eval(below.value).split())
        .replace("``", "`")
        .replace("|", "\\|")
        for key, below in pairwise(body)
        if isinstance(key, ast.AnnAssign)
        and isinstance(key.target, ast.Name)
        and isinstance(below, ast.Expr)
    }


def _options(group: str) -> Iterator[str]:
    """Return the group's options with the first comment of each."""
    for path in sorted((CONF / group).glob("*.yaml")) if group else ():
        comments = [
            line[1:].strip()
            for line in path.read_text(encoding="utf-8").splitlines()
            if line.startswith("#")
        ]
        about = [line for line in comments if not line.startswith("@package")]
        yield f"- `{group}={path.stem}`" + (f": {about[0]}" if about else "")


def type_text(kind: Any) -> str:
    """Return a type in YAML's terms."""
    if isinstance(kind, UnionType):
        return " or ".join(type_text(part) for part in get_args(kind))
    origin = get_origin(kind)
    parts = get_args(kind)
    if origin is list:
        return f"list of {type_text(parts[0])}"
    if origin is dict:
        return f"mapping of {type_text(parts[1])}"
    names = {
        int: "whole number",
        float: "number",
        bool: "true or false",
        str: "text",
        NoneType: "null",
        Any: "anything",
    }
    return names.get(kind, str(kind))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the document to the file named on the command line."""
    parser = argparse.ArgumentParser(description="Write docs/reference/configuration.md.")
    default = Path("docs/reference/configuration.md")
    parser.add_argument(
        "target", nargs="?", type=Path, default=default, help="the file (default: %(default)s)"
    )
    target: Path = parser.parse_args(arguments).target
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(render_keys(), encoding="utf-8")


if __name__ == "__main__":
    main()
