"""Take in a new release of a framework: python benchmarks/tools/release.py FRAMEWORK VERSION (`make
trl-release VERSION=1.17.0`).

Reads the release's package into the framework's keys.json, makes it the newest one (``NEWEST`` in
registries.py, and where pages and lists of requirements name it), prints what changed and what is
left to judge by hand, and compares the rules with the release's own code. VERSION=all reads all
known releases again: the same packages give the same bytes.
"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from tables import PROJECT, History, Package, Table, checks, current, fetch, parsed

sys.path.insert(0, str(PROJECT / "tests"))
# found through the line above
from versions import build

REGISTRY = PROJECT / "src" / "grporecipe" / "registries.py"
# pages that say from which to which release
SPANS = ("README.md", "README.zh.md", "docs/explanation/limits.md")
# and the one that names the release that is written
WRITTEN = "docs/reference/frameworks.md"


class Release:
    """A release that is taken in. ``known`` is the table as it was."""

    def __init__(self, tool: Any, version: str, known: Table) -> None:
        self.tool, self.version, self.known = tool, version, known

    @cached_property
    def environment(self) -> Path:
        """The interpreter of an environment with this project and the release: this one if it has
        it, or one of its own.
        """
        if installed(self.tool.PACKAGE) == self.version:
            return Path(sys.executable)
        return build(f"{self.tool.PACKAGE}=={self.version}", sys.executable)

    def resolved(self, package: str) -> str:
        """The version of another package in that environment."""
        if self.environment == Path(sys.executable):
            return str(installed(package))
        lines = (self.environment.parents[1] / "versions.txt").read_text()
        match = re.search(rf"^{package}==([\d.]+)", lines, re.MULTILINE)
        assert match is not None, f"{package} is not in the environment"
        return match[1]


def installed(package: str) -> str | None:
    """The version of a package in this environment."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def main(framework: str, wanted: str) -> int:
    """Take in a release; return the exit code of what compares the rules with it."""
    tool = import_module(f"{framework.replace('-', '_')}_keys")
    table = json.loads(tool.TARGET.read_text(encoding="utf-8"))
    before, known = deepcopy(table), tool.releases(table)
    versions = known if wanted == "all" else [f"{wanted}.0" if wanted.count(".") == 1 else wanted]
    later = [version for version in known if parsed(version) > parsed(versions[-1])]
    if not later and hasattr(tool, "PINNED"):
        pin(PROJECT / tool.PINNED, tool.PACKAGE, versions[-1])
    tool.drop(table, versions[0])
    for version in (*versions, *later):
        tool.add(table, Release(tool, version, before))
    text = tool.text(table)
    tool.TARGET.write_text(text, encoding="utf-8")
    table = json.loads(text)
    print(f"{tool.TARGET.relative_to(PROJECT)}: {len(tool.releases(table))} releases")
    newest = tool.releases(table)[-1]
    show(changed_names(tool.histories(before), tool.histories(table)))
    if wanted == "all" or later:
        return 0
    last = next((version for version in reversed(known) if version != newest), newest)
    old, new = (
        tool.package(version) if hasattr(tool, "package") else fetch(tool.PACKAGE, version)
        for version in (last, newest)
    )
    show(changed_checks(tool, old, new))
    show(renumber(framework, tool, known[-1], newest))
    show(by_hand(tool, old, new, tool.histories(before), tool.histories(table)))
    release = Release(tool, newest, before)
    return max(compare(release, command) for command in tool.TESTS)


def show(lines: Iterator[str]) -> None:
    """Print lines."""
    for line in lines:
        print(line)


def pin(file: Path, package: str, version: str) -> None:
    """Pin a release in a list of requirements, if it pins another one."""
    text = file.read_text(encoding="utf-8")
    pinned = re.sub(rf"(?m)^{package}==.*", f"{package}=={version}", text)
    if pinned != text:
        file.write_text(pinned, encoding="utf-8")


def changed_names(
    before: dict[str, dict[str, History]], after: dict[str, dict[str, History]]
) -> Iterator[str]:
    """Yield what is new, gone, probably renamed and changed in each part of a table."""
    for part, histories in after.items():
        old, new = current(before.get(part, {})), current(histories)
        gone, come = (
            [name for name in old if name not in new],
            [name for name in new if name not in old],
        )
        for name in gone:
            near = [
                other for other in get_close_matches(name, come, 1, 0.7) if new[other] == old[name]
            ]
            yield f"{part}: {name} is gone" + (f"; renamed to {near[0]}?" if near else "")
        yield from (f"{part}: {name} is new: {_shown(new[name])}" for name in come)
        for name in old.keys() & new.keys():
            if part == "choices" and old[name] != new[name]:
                (was,), (now,) = old[name], new[name]
                signs = [
                    *(f"-{word}" for word in was if word not in now),
                    *(f"+{word}" for word in now if word not in was),
                ]
                yield f"{part}: {name}: {' '.join(signs)}"
            elif old[name] != new[name]:
                yield f"{part}: {name} was {_shown(old[name])}, is {_shown(new[name])}"


def _shown(facts: list[Any]) -> str:
    return ", ".join(json.dumps(fact) for fact in facts)


def changed_checks(tool: Any, old: Package, new: Package) -> Iterator[str]:
    """Yield the refusals that came and went. The words of the code are compared."""
    before, after = set(checks(old, tool.CHECKS)), set(checks(new, tool.CHECKS))
    yield from (f"check is gone: {check}" for check in sorted(before - after))
    yield from (f"check is new: {check}" for check in sorted(after - before))


def by_hand(
    tool: Any,
    old: Package,
    new: Package,
    before: dict[str, dict[str, History]],
    after: dict[str, dict[str, History]],
) -> Iterator[str]:
    """Yield what is left to judge: code that rules rest on and that changed, and what no table
    holds.
    """
    yield "to judge by hand:"
    for file, name, what in tool.RESTS:
        if code(old, file, name) != code(new, file, name):
            yield f"  {file} {name} changed: {what}"
    parts = [part for part in before if part != "choices"]
    gone = [
        name
        for part in parts
        for name in current(before[part])
        if name not in current(after.get(part, {}))
    ]
    if gone:
        yield (
            f"  {', '.join(gone)}: is there a successor? (names.yaml and the like in "
            "the framework's folder)"
        )
    yield from (f"  {line}" for line in tool.BY_HAND)


def code(package: Package, file: str, name: str) -> str:
    """The code of the functions and classes of a name in a file, of what is assigned to it, or the
    uses of a ``@decorator``.
    """
    if name.startswith("@"):
        decorated = (
            node
            for node in ast.walk(package.tree(file))
            for node in getattr(node, "decorator_list", ())
        )
        return "\n".join(
            sorted(text for node in decorated if (text := ast.unparse(node)).startswith(name[1:]))
        )
    found = (
        node
        for node in ast.walk(package.tree(file))
        if name in (getattr(node, "name", ""), _target(node))
    )
    return "\n".join(ast.unparse(node) for node in found)


def _target(node: ast.AST) -> str:
    target = (
        node.target
        if isinstance(node, ast.AnnAssign)
        else node.targets[0]
        if isinstance(node, ast.Assign)
        else None
    )
    return target.id if isinstance(target, ast.Name) else ""


def renumber(framework: str, tool: Any, last: str, newest: str) -> Iterator[str]:
    """Make a release the newest one in the registry and on the pages that name it; yield these."""
    number = ", ".join(map(str, parsed(newest)))
    text = REGISTRY.read_text(encoding="utf-8")
    REGISTRY.write_text(
        re.sub(rf'("{framework}": )\(\d+, \d+, \d+\)', rf"\1({number})", text), encoding="utf-8"
    )
    for page in (*SPANS, WRITTEN) if last != newest else ():
        path = PROJECT / page
        text = path.read_text(encoding="utf-8")
        changed = _renumbered(text, tool.NAME, last, newest, is_span=page != WRITTEN)
        if changed != text:
            path.write_text(changed, encoding="utf-8")
            yield f"{page}: the newest release is {newest}"


def _renumbered(page: str, name: str, last: str, newest: str, is_span: bool) -> str:
    """A page with another newest release of a framework: ``TRL 0.14 to 1.16``, ``| TRL | 0.14 to
    1.16``, or ``TRL 1.16.0``.
    """
    old, new = (last.removesuffix(".0"), newest.removesuffix(".0")) if is_span else (last, newest)
    before = rf"\b{name}(?: \|)? [\d.]+ (?:to|至) " if is_span else rf"\b{name} "
    return re.sub(rf"({before}){re.escape(old)}(?!\d|\.\d)", rf"\g<1>{new}", page)


def compare(release: Release, command: tuple[str, ...]) -> int:
    """Run what compares the rules with a release; return its exit code."""
    names = {"{environment}": lambda: str(release.environment), "{python}": lambda: sys.executable}
    words = [names[word]() if word in names else word for word in command]
    print("$", *words, flush=True)
    return subprocess.run(words, cwd=PROJECT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
