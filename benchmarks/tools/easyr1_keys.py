"""Read an EasyR1 release into frameworks/easyr1/keys.json, from its git history: EASYR1_SRC names a
checkout.

The configuration classes of a release are imported from a folder that holds nothing else, so that
neither torch nor ray is needed. A release is the tag ``v<version>``, or EASYR1_COMMIT.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from tables import FRAMEWORKS, History, Package, Table, cut, extend

from grporecipe.model.values import flatten

if TYPE_CHECKING:
    from release import Release

PACKAGE, NAME = "easyr1", "EasyR1"
TARGET = FRAMEWORKS / "easyr1" / "keys.json"
# that its scripts build on
EXAMPLE = "examples/config.yaml"
CHECKS = re.compile(
    r"verl/(trainer/(config|main|core_algos|ray_trainer)|workers/(\w+/)?(config|fsdp_workers"
    r"|dp_actor))\.py"
)
RESTS = (
    ("verl/trainer/core_algos.py", "AdvantageEstimator", "frameworks/easyr1/fields.yaml: choices"),
    (
        "verl/trainer/core_algos.py",
        "compute_policy_loss",
        "frameworks/easyr1/fields.yaml: choices; recipes.py: LOSSES",
    ),
    ("verl/trainer/core_algos.py", "compute_kl", "frameworks/easyr1/fields.yaml: choices"),
    ("verl/workers/fsdp_workers.py", "FSDPWorker", "frameworks/easyr1/rules.py: sizes"),
)
TESTS = (("make", "easyr1"),)
BY_HAND = ("frameworks/easyr1/rules.py: SUCCESSORS, for keys that went",)
MODULES = (
    "trainer",
    "workers",
    "workers/actor",
    "workers/critic",
    "workers/reward",
    "workers/rollout",
)
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
KINDS = {
    "<class 'int'>": "int",
    "<class 'float'>": "float",
    "<class 'bool'>": "bool",
    "<class 'str'>": "str",
    "typing.Optional[int]": "int?",
    "typing.Optional[float]": "float?",
    "typing.Optional[str]": "str?",
}


def git(*arguments: str) -> str:
    """One git command's output in the checkout."""
    command = ["git", "-C", os.environ["EASYR1_SRC"], *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Checkout(Package):
    """The files of a commit."""

    def __init__(self, commit: str):
        self.path, self.commit = Path(commit), commit

    @property
    def names(self) -> list[str]:
        """The paths of its files."""
        return git("ls-tree", "-r", "--name-only", self.commit).splitlines()

    def text(self, name: str) -> str:
        """A file; empty if there is none."""
        return git("show", f"{self.commit}:{name}") if name in self.names else ""


def package(version: str) -> Checkout:
    """A release's files: of the commit in the table, of EASYR1_COMMIT, or of its tag."""
    known = json.loads(TARGET.read_text(encoding="utf-8"))["releases"]
    new = os.environ.get("EASYR1_COMMIT", f"v{version}")
    return Checkout(known[version].partition(" ")[0] if version in known else new)


def read_keys(release: Checkout) -> dict[str, list[Any]]:
    """Every key of a commit: its type (``auto`` before it where the class overwrites it) and its
    default.
    """
    listed = set(release.names)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "verl"
        for module in MODULES:
            name = f"verl/{module}/config.py"
            target = root / module / "config.py"
            target.parent.mkdir(parents=True, exist_ok=True)
            if name in listed:
                target.write_text(release.text(name))
                (target.parent / "__init__.py").write_text("from .config import *\n")
        for name, text in STUBS.items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text(text)
        (root / "__init__.py").touch()
        done = subprocess.run(
            [sys.executable, "-c", READ], cwd=folder, check=True, capture_output=True, text=True
        )
    return {
        name: [("" if init else "auto ") + KINDS.get(kind, "any"), default]
        for name, kind, default, init in json.loads(done.stdout)
    }


def histories(table: Table) -> dict[str, dict[str, History]]:
    """The parts of the table that grow."""
    return {"keys": table["keys"]}


def releases(table: Table) -> list[str]:
    """The releases that the table knows, ascending."""
    return list(table["releases"])


def drop(table: Table, release: str) -> None:
    """Take a release and all later ones out of the table."""
    cut(table["keys"], release)
    known = releases(table)
    for name in known[known.index(release) :] if release in known else ():
        del table["releases"][name], table["examples"][name]


def add(table: Table, release: "Release") -> None:
    """Add a release to the table."""
    found = package(release.version)
    table["releases"][release.version] = git("log", "-1", "--format=%h %cs", found.commit).strip()
    extend(table["keys"], release.version, read_keys(found))
    table["examples"][release.version] = flatten(yaml.safe_load(found.text(EXAMPLE)))


def text(table: Table) -> str:
    """The file."""
    return json.dumps(table, indent=1, sort_keys=True) + "\n"
