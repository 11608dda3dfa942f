"""What the tools for a release share: a package's files, histories by release, and the checks in
source code.

A table has a history for each name: ``[release, facts ...]`` where the name appears or its facts
change, ``[release]`` where it goes. So a table grows by a release without the packages of earlier
ones.
"""

import ast
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

PROJECT = Path(__file__).resolve().parents[2]
# what was downloaded
PACKAGES = PROJECT / ".venvs" / "packages"
FRAMEWORKS = PROJECT / "src" / "grporecipe" / "frameworks"
History = list[list[Any]]
Table = dict[str, Any]


class Package:
    """The files of one release: a wheel or an sdist, which is read and never imported."""

    def __init__(self, path: Path):
        self.path = path
        self._texts: dict[str, str] = {}
        if path.suffix == ".whl":
            with ZipFile(path) as archive:
                for name in archive.namelist():
                    # below: a wheel for one platform
                    if name.endswith((".py", ".yaml", ".json")):
                        own = re.sub(r"^[\w.-]+\.data/purelib/", "", name)
                        self._texts[own] = archive.read(name).decode(errors="replace")
        else:
            with tarfile.open(path) as archive:
                for member in archive.getmembers():
                    if (
                        member.name.endswith(".py")
                        and (file := archive.extractfile(member)) is not None
                    ):
                        self._texts[member.name.partition("/")[2]] = file.read().decode(
                            errors="replace"
                        )

    @property
    def names(self) -> list[str]:
        """The paths of its files."""
        return sorted(self._texts)

    def text(self, name: str) -> str:
        """A file; empty if there is none."""
        return self._texts.get(name, "")

    def tree(self, name: str) -> ast.Module:
        """The syntax tree of a file."""
        return ast.parse(self.text(name))


def fetch(name: str, release: str) -> Package:
    """Download a release without what it requires. Of its post releases the last one counts."""
    stem = name.replace("-", "_")
    found = _downloaded(stem, release)
    if not found:
        PACKAGES.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-qq",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        subprocess.run([*command, "-d", str(PACKAGES), f"{name}=={release}.*"], check=True)
        found = _downloaded(stem, release)
    return Package(found[-1])


def _downloaded(stem: str, release: str) -> list[Path]:
    # verl 0.1
    short = release.removesuffix(".0")
    pattern = re.compile(
        rf"{stem}-(?:{re.escape(release)}|{re.escape(short)})(\.post\d+)?(?:-.*\.whl|\.tar\.gz)$"
    )
    return sorted(path for path in PACKAGES.glob(f"{stem}-*") if pattern.match(path.name))


def parsed(release: str) -> tuple[int, ...]:
    """A release as numbers."""
    return tuple(int(part) for part in release.split("."))


def extend(history: dict[str, History], release: str, now: Mapping[str, list[Any]]) -> None:
    """Add what a release has to the histories."""
    for name in sorted(history.keys() - now.keys()):
        if history[name] and len(history[name][-1]) > 1:
            history[name].append([release])
    for name, facts in now.items():
        if not history.get(name) or not is_same(history[name][-1][1:], facts):
            history.setdefault(name, []).append([release, *facts])


def is_same(before: list[Any], now: list[Any]) -> bool:
    """Whether facts are equal; 0 is not False."""
    return before == now and [type(fact) is bool for fact in before] == [
        type(fact) is bool for fact in now
    ]


def cut(history: dict[str, History], release: str) -> None:
    """Take a release and all later ones out of the histories."""
    for name in list(history):
        history[name][:] = [
            change for change in history[name] if parsed(change[0]) < parsed(release)
        ]
        if not history[name]:
            del history[name]


def current(history: Mapping[str, History]) -> dict[str, list[Any]]:
    """What the newest release has."""
    return {name: changes[-1][1:] for name, changes in history.items() if len(changes[-1]) > 1}


def in_order(now: Mapping[str, list[str]], history: Mapping[str, History]) -> dict[str, list[Any]]:
    """Facts of choices: the words in the order of the release before, and new ones after them."""
    found = {}
    for key, words in sorted(now.items()):
        (before,) = current(history).get(key, [[]])
        found[key] = [
            [
                *(word for word in before if word in words),
                *(word for word in words if word not in before),
            ]
        ]
    return found


def rows(table: Mapping[str, Any]) -> str:
    """A mapping as JSON, an entry a line."""
    return (
        "{\n"
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in table.items())
        + "\n }"
    )


def checks(package: Package, files: re.Pattern[str]) -> Iterator[str]:
    """Yield each refusal in some files: where it is, its conditions and what it says, in the words
    of the code.
    """
    for name in package.names:
        if files.fullmatch(name):
            yield from _refusals(package.tree(name), (name.rpartition("/")[2],), ())


def _refusals(node: ast.AST, where: tuple[str, ...], conditions: tuple[str, ...]) -> Iterator[str]:
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        where = (*where, node.name)
    if isinstance(node, (ast.Raise, ast.Assert)):
        yield " ".join(
            f"{'.'.join(where)}: {' and '.join((*conditions, ast.unparse(node)))}".split()
        )
    for name, value in ast.iter_fields(node):
        inside = conditions
        if isinstance(node, ast.If) and name in ("body", "orelse"):
            test = ast.unparse(node.test)
            inside = (*conditions, test if name == "body" else f"not ({test})")
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _refusals(child, where, inside)
