"""Writes src/grporecipe/frameworks/easyr1/keys.json from EasyR1's git history: ``EASYR1_SRC=<checkout> python easyr1_keys.py``.

The configuration classes of each release are imported from a folder that holds nothing else, so that neither torch nor ray
is needed.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

TARGET = Path(__file__).parents[2] / "src" / "grporecipe" / "frameworks" / "easyr1" / "keys.json"
RELEASES = {  # version: commit, and the example that its scripts build on
    "0.2.0": ("93abce2^", "examples/config.yaml"),  # the last with worker.actor.kl_loss_coef, 24 March 2025
    "0.3.0": ("v0.3.0", "examples/config.yaml"),
    "0.3.1": ("v0.3.1", "examples/config.yaml"),
    "0.3.2": ("v0.3.2", "examples/config.yaml"),
    "0.3.3": ("b44b311", "examples/config.yaml"),  # 0.3.3.dev0, 30 July 2026
}
MODULES = ("trainer", "workers", "workers/actor", "workers/critic", "workers/reward", "workers/rollout")
STUBS = {
    "utils/__init__.py": "",
    "utils/py_functional.py": "def get_abs_path(path, prompt=''):\n    return path\n",
    "trainer/__init__.py": "",
}
READ = """
import dataclasses, json, sys, typing
from verl.trainer.config import PPOConfig

def walk(obj, prefix=""):
    hints = typing.get_type_hints(type(obj))
    for field in dataclasses.fields(obj):
        value, name = getattr(obj, field.name), prefix + field.name
        if dataclasses.is_dataclass(value):
            yield from walk(value, name + ".")
        else:
            yield name, str(hints[field.name]), value, field.init

print(json.dumps([list(item) for item in walk(PPOConfig())]))
"""
KINDS = {"<class 'int'>": "int", "<class 'float'>": "float", "<class 'bool'>": "bool", "<class 'str'>": "str",
         "typing.Optional[int]": "int?", "typing.Optional[float]": "float?", "typing.Optional[str]": "str?"}  # fmt: skip


def git(source: str, *arguments: str) -> str:
    """One git command's output."""
    return subprocess.run(["git", "-C", source, *arguments], check=True, capture_output=True, text=True).stdout


def read_keys(source: str, commit: str) -> dict[str, list[Any]]:
    """Every key of a commit: its type (``auto`` before it where the class overwrites it) and its default."""
    listed = set(git(source, "ls-tree", "-r", "--name-only", commit).splitlines())
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "verl"
        for module in MODULES:
            name = f"verl/{module}/config.py"
            target = root / module / "config.py"
            target.parent.mkdir(parents=True, exist_ok=True)
            if name in listed:
                target.write_text(git(source, "show", f"{commit}:{name}"))
                (target.parent / "__init__.py").write_text("from .config import *\n")
        for name, text in STUBS.items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text(text)
        (root / "__init__.py").touch()
        done = subprocess.run([sys.executable, "-c", READ], cwd=folder, check=True, capture_output=True, text=True)
    return {
        name: [("" if init else "auto ") + KINDS.get(kind, "any"), default]
        for name, kind, default, init in json.loads(done.stdout)
    }


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys of a nested mapping."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        inner = value if isinstance(value, dict) and value else None
        found |= flatten(inner, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return found


def main() -> None:
    """Write the table."""
    source = os.environ["EASYR1_SRC"]
    table: dict[str, Any] = {"releases": {}, "keys": {}, "examples": {}}
    before: dict[str, list[Any]] = {}
    for version, (commit, example) in RELEASES.items():
        table["releases"][version] = git(source, "log", "-1", "--format=%h %cs", commit).strip()
        now = read_keys(source, commit)
        for name in sorted(now.keys() | before.keys()):
            if now.get(name) != before.get(name):
                table["keys"].setdefault(name, []).append([version, *now.get(name, [])])
        table["examples"][version] = flatten(yaml.safe_load(git(source, "show", f"{commit}:{example}")))
        before = now
    lines = json.dumps(table, indent=1, sort_keys=True)
    TARGET.write_text(lines + "\n")
    print(f"{len(table['keys'])} keys of {len(RELEASES)} releases in {TARGET}")


if __name__ == "__main__":
    main()
