"""The source tree's structure: which package imports which, where torch may be imported, and how
large the code is.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

from grposweep.schema.registries import EXTERNAL, LAUNCHERS, OWN_TRAINERS, TASKS, TRACKERS
from support import PROJECT

pytestmark = pytest.mark.slow
SOURCE = PROJECT / "src"
RECIPES = "grporecipe"
SWEEPS = "grposweep"
# of the packages themselves
ENTRY_POINTS = ("__init__", "__main__")
# Runs inside another program, which imports it by path; so it is an entry point, and may import
# what that program has.
PLUGIN = "grposweep/command/ms_swift_plugin"
# Nodes of the syntax trees, without expression contexts: no layout changes them. Lower a number,
# and never raise one.
MOST_NODES = {"src": 292_570, "tests": 214_620}
# Rooms of which each file is entered by its name: a rule, a framework, what runs in other programs.
BY_NAME = (
    "grporecipe.frameworks.",
    "grporecipe.rules.",
    "grposweep.command.inside.",
    "grposweep.command.ms_swift_plugin.",
)
HEAVY = {"torch", "transformers", "trl", "wandb", "accelerate", "datasets", "peft"}


def modules() -> list[Path]:
    """Every Python file of both packages."""
    return sorted(
        path for package in (RECIPES, SWEEPS) for path in (SOURCE / package).rglob("*.py")
    )


def relative(path: Path) -> str:
    """A file's path below src."""
    return path.relative_to(SOURCE).as_posix()


def name_of(path: Path) -> str:
    """The module of a file."""
    return relative(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def text_of(path: Path) -> str:
    """The text of a file."""
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    """The parsed file."""
    return ast.parse(text_of(path))


@cache
def module_names() -> frozenset[str]:
    """The modules of both packages."""
    return frozenset(name_of(path) for path in modules())


@cache
def imported(path: Path) -> list[tuple[str, int]]:
    """Every module that a file imports, and the line, imports inside functions among them."""
    return list(imports_of(path))


def imports_of(path: Path) -> Iterator[tuple[str, int]]:
    """The same, one by one."""
    known = module_names()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                # from grposweep import plan
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in known else node.module, node.lineno


def part_of(module: str) -> str:
    """The package or root module that holds a module: ``grporecipe/rules``; empty for modules of
    others.
    """
    package, _, rest = module.partition(".")
    return f"{package}/{rest.partition('.')[0]}" if package in (RECIPES, SWEEPS) and rest else ""


def package_imports() -> dict[str, dict[str, list[str]]]:
    """For every package and root module the ones that it imports, with the places of the
    imports.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for path in modules():
        name = part_of(name_of(path))
        if not name or name.endswith(ENTRY_POINTS) or relative(path).startswith(PLUGIN):
            continue
        found.setdefault(name, {})
        for module, line in imported(path):
            other = part_of(module)
            if other not in ("", name):
                found[name].setdefault(other, []).append(f"{relative(path)}:{line}")
    return found


def levels(imports: dict[str, dict[str, list[str]]]) -> dict[str, int]:
    """The import level of every package: 1 for those that import none, otherwise one above the
    highest imported.
    """
    found: dict[str, int] = {}
    for name in TopologicalSorter(imports).static_order():
        found[name] = 1 + max((found[other] for other in imports.get(name, ())), default=0)
    return found


def test_no_package_imports_in_a_cycle() -> None:
    """Packages have one order; the message names a cycle with the places of its imports."""
    imports = package_imports()
    try:
        print(
            *(
                f"{level:3} {name}"
                for name, level in sorted(levels(imports).items(), key=lambda e: e[::-1])
            ),
            sep="\n",
        )
    except CycleError as error:
        # each imports the next
        cycle = error.args[1][::-1]
        lines = [f"{a} -> {b}: {', '.join(imports[a][b])}" for a, b in pairwise(cycle)]
        pytest.fail("\n".join(["packages import each other in a cycle", *lines]))


def test_a_module_with_an_underscore_is_imported_in_its_room_only() -> None:
    """What no other room may import begins with ``_``."""
    found = [
        f"{relative(path)}:{line} {module}"
        for path in modules()
        for module, line in imported(path)
        if part_of(module) != part_of(name_of(path))
        and re.search(r"\._[a-z]", module)
        and module in module_names()
    ]
    assert found == []


def test_a_module_without_an_underscore_is_entered_from_elsewhere() -> None:
    """Another room, the command line, a registry or the Makefile names it."""
    entered = set()
    ours = set(modules())
    for path in [*SOURCE.rglob("*.py"), PROJECT / "Makefile", PROJECT / "pyproject.toml"]:
        names = re.findall(r"\b(?:grporecipe|grposweep)(?:\.\w+)+", text_of(path))
        if path.suffix == ".py":
            names += [module for module, _ in imported(path)]
        room = part_of(name_of(path)) if path in ours else ""
        entered.update(name for name in names if part_of(name) != room)
    private = [
        name
        for name in map(name_of, modules())
        if name.count(".") > 1
        and (SOURCE / f"{name.replace('.', '/')}.py").exists()
        and not name.rpartition(".")[2].startswith("_")
        and not name.startswith(BY_NAME)
        and name not in entered
    ]
    assert private == []


def test_no_files_import_each_other_in_a_circle() -> None:
    """Also inside functions, and for annotations only."""
    known = module_names()
    imports = {
        name_of(path): {
            module for module, _ in imported(path) if module in known and module != name_of(path)
        }
        for path in modules()
        if not relative(path).startswith(PLUGIN)
    }
    TopologicalSorter(imports).prepare()


def layers_of_the_page() -> dict[str, int]:
    """The layer of every package and root module in docs/explanation/how_it_works.md, in the page's
    order.
    """
    page = (PROJECT / "docs" / "explanation" / "how_it_works.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `(\w+/\w+)(?:/|\.py)` \|", page, re.MULTILINE)
    assert len(rows) == len({name for _, name in rows}), "a package has two rows"
    return {name: int(layer) for layer, name in rows}


def test_recipes_never_import_sweeps() -> None:
    """What reads and judges recipes stands alone, also for those who install nothing else."""
    found = [
        f"{relative(path)}:{line}"
        for path in (SOURCE / RECIPES).rglob("*.py")
        for module, line in imported(path)
        if module.partition(".")[0] in (SWEEPS, "hydra", "omegaconf", "optuna", "plotly", "jinja2")
    ]
    assert found == []


def test_the_page_lists_every_package_in_an_order_that_respects_imports() -> None:
    """A package's layer in docs/explanation/how_it_works.md is above the layers of all that it
    imports.
    """
    imports = package_imports()
    layers = layers_of_the_page()
    assert layers.keys() == imports.keys()
    for package in (RECIPES, SWEEPS):
        levels_of = [level for name, level in layers.items() if name.startswith(f"{package}/")]
        assert levels_of == sorted(levels_of)
    wrong = [
        f"{name} (layer {layers[name]}) imports {other} (layer {layers[other]}): {places[0]}"
        for name, others in imports.items()
        for other, places in others.items()
        if layers[other] >= layers[name]
    ]
    assert wrong == []


def test_only_train_imports_what_is_heavy() -> None:
    """Not even inside a function: commands and the controller never wait for torch."""
    allowed = ("grposweep/train/", "grposweep/command/inside/", PLUGIN)
    found = [
        f"{relative(path)}:{line} {module}"
        for path in modules()
        if not relative(path).startswith(allowed)
        for module, line in imported(path)
        if module.partition(".")[0] in HEAVY
    ]
    assert found == []


@pytest.mark.parametrize("folder", MOST_NODES)
def test_the_code_stays_within_its_number_of_nodes(folder: str) -> None:
    """A feature that comes in takes the place of code that goes out."""
    trees = [tree_of(path) for path in sorted((PROJECT / folder).rglob("*.py"))]
    nodes = sum(not isinstance(node, ast.expr_context) for tree in trees for node in ast.walk(tree))
    assert nodes <= MOST_NODES[folder]


def compares_a_kind(node: ast.Compare, names: frozenset[str]) -> bool:
    """Whether code compares a variable or an attribute ``kind`` with a registered name, or with
    several.
    """
    sides = [node.left, *node.comparators]
    is_kind = any(getattr(side, "attr", getattr(side, "id", "")) == "kind" for side in sides)
    return is_kind and not names.isdisjoint(
        n.value for s in sides for n in ast.walk(s) if isinstance(n, ast.Constant)
    )


def test_a_kind_is_compared_with_a_name_only_in_the_registries() -> None:
    """A trait of the entry says what differs, so a new trainer, launcher, task or tracker is a file
    and a line.
    """
    names = frozenset({*OWN_TRAINERS, *EXTERNAL, *LAUNCHERS, *TASKS, *TRACKERS})
    found = [
        f"{relative(path)}:{node.lineno}"
        for path in modules()
        if relative(path).startswith(SWEEPS)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Compare) and compares_a_kind(node, names)
    ]
    assert found == []


def test_a_bare_verb_names_a_function_in_one_room_only() -> None:
    """So ``render`` in a message or a search is one thing."""
    rooms: dict[str, set[str]] = {}
    for path in modules():
        for node in tree_of(path).body:
            if isinstance(node, ast.FunctionDef) and node.name in {
                "read",
                "write",
                "find",
                "render",
            }:
                rooms.setdefault(node.name, set()).add(part_of(name_of(path)))
    assert {name: places for name, places in rooms.items() if len(places) > 1} == {}


POINTER = re.compile(r"`{1,2}((?:grporecipe|grposweep)\.[\w.]+)`")


def leads_somewhere(name: str) -> bool:
    """Whether a dotted name is a module, or a name at the top of one."""
    *parts, last = name.split(".")
    for folder in (SOURCE.joinpath(*parts, last), SOURCE.joinpath(*parts)):
        file = next(
            (
                path
                for path in (folder.with_suffix(".py"), folder / "__init__.py")
                if path.is_file()
            ),
            None,
        )
        if file is not None:
            pattern = rf"^(?:def |class )?{last}\b"
            return (
                folder.name == last
                or re.search(pattern, file.read_text(encoding="utf-8"), re.MULTILINE) is not None
            )
    return False


def test_a_dotted_name_in_a_docstring_exists() -> None:
    """A pointer that leads nowhere costs its reader a search."""
    names = {
        name: relative(path)
        for path in modules()
        for name in POINTER.findall(path.read_text(encoding="utf-8"))
    }
    assert len(names) > 10
    assert {name: place for name, place in names.items() if not leads_somewhere(name)} == {}


PARSERS = re.compile(
    r"json\.loads?\(|JSONDecoder|yaml\.(?:safe_)?load\(|yaml\.(?:compose"
    r"|parse)\(|OmegaConf\.load|csv\.\w*[rR]eader"
)
OWN_PARSERS = {
    "grporecipe/files.py": "the one place",
    "grposweep/process/__init__.py": (
        "runs as a script without the package, and reads what the warm server says"
    ),
    "grposweep/command/inside/argv.py": "runs in every Python of a command, before more is imported",
    "grposweep/command/inside/harm.py": (
        "runs as a script without the package, and reads what the question wrote"
    ),
    "grposweep/command/inside/sitecustomize.py": "as argv.py; the sweep wrote the file",
    "grporecipe/model/releases.py": "tables of this package",
    "grporecipe/linting/apply_fixes.py": (
        "a recipe that parse_yaml has read, and words of letters and digits"
    ),
    "grporecipe/diagnose/readers.py": "CSV has no depth; the reader bounds its lines",
    "grposweep/search/listed.py": "CSV has no depth; the size of its text is bounded",
    "grposweep/train/tasks/_readers.py": "CSV has no depth; its values are text",
}


def test_every_read_has_the_limits_of_files() -> None:
    """Depth, size and numbers are bounded in files.py; every other parser has a reason."""
    found = {
        relative(path) for path in modules() if PARSERS.search(path.read_text(encoding="utf-8"))
    }
    assert found == OWN_PARSERS.keys()
