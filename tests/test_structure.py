"""The source tree's structure: which package imports which, where torch may be imported, and how many files there are."""

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

from support import PROJECT

SOURCE = PROJECT / "src" / "grposweep"
ENTRY_POINTS = ("__init__", "__main__")  # of the package itself
# Runs inside another program, which imports it by path; so it is an entry point, and may import what that program has.
PLUGIN = "frameworks/ms_swift/plugin"
MOST_FILES = 251  # a merge lowers it, the aim is 180
# Lines of each package, root modules as ``.``: a feature that comes in says what goes out.
MOST_LINES = {
    ".": 3450, "cli": 1470, "config": 2460, "diagnose": 1440, "external": 270, "frameworks": 13520, "launchers": 2030,
    "linting": 1530, "memory": 1280, "report": 4300, "rules": 2850, "schema": 590, "screening": 840, "search": 2860,
    "storage": 2390, "sweep": 4800, "train": 5040,
}  # fmt: skip
HEAVY = {"torch", "transformers", "trl", "wandb", "accelerate", "datasets", "peft"}


def modules() -> list[Path]:
    """Every Python file of the package."""
    return sorted(SOURCE.rglob("*.py"))


def relative(path: Path) -> str:
    """A file's path below the package."""
    return path.relative_to(SOURCE).as_posix()


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, and the line, imports inside functions among them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = node.module == "grposweep"  # from grposweep import plan
            yield from ((f"grposweep.{a.name}" if whole else node.module, node.lineno) for a in node.names)


def package_imports() -> dict[str, dict[str, list[str]]]:
    """For every top-level package and root module the ones that it imports, with the places of the imports."""
    nodes = {path.stem if path.suffix == ".py" else path.name for path in SOURCE.iterdir()} - {*ENTRY_POINTS}
    found: dict[str, dict[str, list[str]]] = {}
    for path in modules():
        name = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if name in ENTRY_POINTS or relative(path).startswith(PLUGIN):
            continue
        found.setdefault(name, {})
        for module, line in imported(path):
            root, _, rest = module.partition(".")
            other = rest.partition(".")[0]
            if root == "grposweep" and other in nodes and other != name:
                found[name].setdefault(other, []).append(f"{relative(path)}:{line}")
    return found


def levels(imports: dict[str, dict[str, list[str]]]) -> dict[str, int]:
    """The import level of every package: 1 for those that import none, otherwise one above the highest imported."""
    found: dict[str, int] = {}
    for name in TopologicalSorter(imports).static_order():
        found[name] = 1 + max((found[other] for other in imports.get(name, ())), default=0)
    return found


def test_no_package_imports_in_a_cycle() -> None:
    """Packages have one order; the message names a cycle with the places of its imports."""
    imports = package_imports()
    try:
        print(
            *(f"{level:3} {name}" for name, level in sorted(levels(imports).items(), key=lambda e: e[::-1])), sep="\n"
        )
    except CycleError as error:
        cycle = error.args[1][::-1]  # each imports the next
        lines = [f"{a} -> {b}: {', '.join(imports[a][b])}" for a, b in pairwise(cycle)]
        pytest.fail("\n".join(["packages import each other in a cycle", *lines]))


def layers_of_the_page() -> dict[str, int]:
    """The layer of every package and root module in docs/explanation/how_it_works.md, in the page's order."""
    page = (PROJECT / "docs" / "explanation" / "how_it_works.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `(\w+)(?:/|\.py)` \|", page, re.MULTILINE)
    assert len(rows) == len({name for _, name in rows}), "a package has two rows"
    return {name: int(layer) for layer, name in rows}


def test_the_page_lists_every_package_in_an_order_that_respects_imports() -> None:
    """A package's layer in docs/explanation/how_it_works.md is above the layers of all that it imports."""
    imports, layers = package_imports(), layers_of_the_page()
    assert layers.keys() == imports.keys()
    assert list(layers.values()) == sorted(layers.values())
    wrong = [
        f"{name} (layer {layers[name]}) imports {other} (layer {layers[other]}): {places[0]}"
        for name, others in imports.items()
        for other, places in others.items()
        if layers[other] >= layers[name]
    ]
    assert wrong == []


def test_only_train_imports_what_is_heavy() -> None:
    """Not even inside a function: commands and the controller never wait for torch."""
    allowed = ("train/", PLUGIN)
    found = [
        f"{relative(path)}:{line} {module}"
        for path in modules()
        if not relative(path).startswith(allowed)
        for module, line in imported(path)
        if module.partition(".")[0] in HEAVY
    ]
    assert found == []


def test_the_package_does_not_grow_more_files() -> None:
    """No more than there are; a new file takes the place of one that is merged, or raises the number deliberately."""
    assert len(modules()) <= MOST_FILES


def test_no_package_grows_beyond_its_budget_of_lines() -> None:
    """Lower a budget when a package shrinks. Raise one only together with another that falls."""
    lines: dict[str, int] = {}
    for path in modules():
        package, _, rest = relative(path).partition("/")
        name = package if rest else "."
        lines[name] = lines.get(name, 0) + len(path.read_text(encoding="utf-8").splitlines())
    assert lines.keys() == MOST_LINES.keys()
    assert {name: count for name, count in lines.items() if count > MOST_LINES[name]} == {}


PARSERS = re.compile(
    r"json\.loads?\(|JSONDecoder|yaml\.(?:safe_)?load\(|yaml\.(?:compose|parse)\(|OmegaConf\.load|csv\.\w*[rR]eader"
)
OWN_PARSERS = {
    "files.py": "the one place",
    "process.py": "runs as a script without the package, and reads what the warm server says",
    "frameworks/base.py": "tables of this package",
    "frameworks/parsing/python/text.py": "strings of a notebook that parse_json has read",
    "linting/apply_fixes.py": "a recipe that parse_yaml has read, and words of letters and digits",
    "diagnose/readers.py": "CSV has no depth; the reader bounds its lines",
}


def test_every_read_has_the_limits_of_files() -> None:
    """Depth, size and numbers are bounded in files.py; every other parser has a reason."""
    found = {relative(path) for path in modules() if PARSERS.search(path.read_text(encoding="utf-8"))}
    assert found == OWN_PARSERS.keys()
