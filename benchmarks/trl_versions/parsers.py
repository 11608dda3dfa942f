"""What the parser of each TRL release does with keys that are not declared.

    python benchmarks/trl_versions/parsers.py REPOSITORY

REPOSITORY is TRL's git directory. Of each tagged release the real ``TrlParser`` is run, cut out of
trl/scripts/utils.py, on a YAML and on a flag with an unknown key: as a script calls it that passes
no options, and as trl/scripts/grpo.py calls it. The answers go to
tests/frameworks/trl_parser_verdicts.jsonl. It runs under any interpreter that has transformers.
"""

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

VERDICTS = (
    Path(__file__).resolve().parents[2] / "tests" / "frameworks" / "trl_parser_verdicts.jsonl"
)


@dataclass
class Arguments:
    """The keys that are declared."""

    beta: float = 0.0


def git(source: str, *words: str) -> str:
    """What a git command prints."""
    return subprocess.run(
        ["git", "--git-dir", source, *words], capture_output=True, check=True, text=True
    ).stdout


def releases(source: str) -> list[tuple[int, ...]]:
    """Every tagged release with GRPO, ascending."""
    tags = (tag for tag in git(source, "tag").split() if re.fullmatch(r"v\d+\.\d+\.\d+", tag))
    versions = sorted(tuple(int(part) for part in tag[1:].split(".")) for tag in tags)
    return [version for version in versions if version >= (0, 14, 0)]


def parser_of(text: str) -> Any:
    """The class TrlParser of a file, with the names that it uses from the standard library and
    transformers.
    """
    import inspect
    import os

    import yaml
    from transformers import HfArgumentParser
    from transformers.hf_argparser import DataClass, DataClassType

    names = {
        "HfArgumentParser": HfArgumentParser,
        "DataClass": DataClass,
        "DataClassType": DataClassType,
        "yaml": yaml,
        "os": os,
        "sys": sys,
        "inspect": inspect,
        "argparse": argparse,
        "Any": Any,
        "Iterable": Iterable,
        "Callable": Callable,
        "dataclass": dataclass,
    }
    node = next(
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and node.name == "TrlParser"
    )
    code = "from __future__ import annotations\n" + ast.unparse(node)
    # the release itself, which its owner checked out
    exec(compile(code, "TrlParser", "exec"), names)
    return names["TrlParser"]


def options_of(text: str) -> dict[str, Any]:
    """The options with which a script calls ``parse_args_and_config``."""
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    call = next(call for call in calls if getattr(call.func, "attr", "") == "parse_args_and_config")
    return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}


def verdict(parser: Any, words: list[str], options: dict[str, Any]) -> str:
    """Return "dropped" where training would continue without the key, "stops" where it would
    not.
    """
    try:
        with redirect_stderr(StringIO()):
            parser(Arguments).parse_args_and_config(words, **options)
    except (ValueError, SystemExit):
        # argparse exits
        return "stops"
    return "dropped"


def main(source: str) -> None:
    """Write a line for each release."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "recipe.yaml"
        recipe.write_text("beta: 0.1\nbetta: 0.1\n", encoding="utf-8")
        asked = {"yaml": ["--config", str(recipe)], "flag": ["--beta", "0.1", "--betta", "0.1"]}
        for version in releases(source):
            tag = "v" + ".".join(map(str, version))
            names = git(source, "ls-tree", "-r", "--name-only", tag).split()
            texts = (
                git(source, "show", f"{tag}:{name}")
                for name in ("trl/scripts/utils.py", "trl/scripts/_hf_argparser.py")
                if name in names
            )
            parser = parser_of(next(text for text in texts if "class TrlParser" in text))
            ways = {
                "own": {},
                "script": options_of(git(source, "show", f"{tag}:trl/scripts/grpo.py")),
            }
            found = {
                f"{way}_{kind}": verdict(parser, words, options)
                for way, options in ways.items()
                for kind, words in asked.items()
            }
            lines.append(json.dumps({"version": tag[1:], **found}))
    VERDICTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} releases: {VERDICTS}")


if __name__ == "__main__":
    main(sys.argv[1])
