"""Resolve names in the Python files of a repository by their syntax trees. Nothing is imported or run."""

import ast
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from grporecipe.frameworks.parsing.repository import find_root, walk

LARGEST = 2 * 2**20  # bytes of a file
MOST_MODULES = 40  # read for one launch
MOST_STEPS = 12  # from a name to its definition
MOST_FOLDERS = 6  # above a file, searched for modules
LIBRARIES = frozenset({"trl", "transformers", "torch", "accelerate", "peft", "datasets", "unsloth", "vllm", "typing",
                       "dataclasses", "argparse"})  # fmt: skip  # never those of the repository, even where it has a copy


class External(NamedTuple):
    """The dotted name of something in a package outside the repository."""

    name: str

    @property
    def root(self) -> str:
        """The package."""
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class OwnClass:
    """A class that a file of the repository defines."""

    module: "Module"
    node: ast.ClassDef


class Expression(NamedTuple):
    """A variable: its file, and every expression that is assigned to it, in order."""

    module: "Module"
    values: tuple[ast.expr, ...]


@dataclass(frozen=True)
class Import:
    """``from module import name``, or a whole module (no name); ``level`` counts the dots of a relative one."""

    module: str
    name: str = ""
    level: int = 0


@dataclass(frozen=True, eq=False)
class Module:
    """One Python file."""

    path: Path
    tree: ast.Module

    @cached_property
    def _names(self) -> "_Names":
        return _Names(self.tree)

    @property
    def classes(self) -> dict[str, ast.ClassDef]:
        """The file's classes by name."""
        return self._names.classes

    @property
    def functions(self) -> dict[str, ast.FunctionDef]:
        """The file's functions by name."""
        return self._names.functions

    @property
    def imports(self) -> dict[str, Import]:
        """The imports by the name that they define."""
        return self._names.imports

    @property
    def stars(self) -> list[Import]:
        """``from module import *``."""
        return self._names.stars

    @property
    def assigned(self) -> dict[str, list[ast.expr]]:
        """The expressions that are assigned to each name."""
        return self._names.assigned

    @property
    def calls(self) -> list[ast.Call]:
        """Every call, in any order."""
        return self._names.calls


class _Names(ast.NodeVisitor):
    """Collect classes, functions, imports, assignments and calls of a tree in one pass."""

    def __init__(self, tree: ast.Module) -> None:
        self.classes: dict[str, ast.ClassDef] = {}
        self.functions: dict[str, ast.FunctionDef] = {}
        self.imports: dict[str, Import] = {}
        self.stars: list[Import] = []
        self.assigned: dict[str, list[ast.expr]] = {}
        self.calls: list[ast.Call] = []
        for node in ast.walk(tree):  # not recursive: trees of hostile files are deep
            self._take(node)

    def _take(self, node: ast.AST) -> None:
        match node:
            case ast.Call():
                self.calls.append(node)
            case ast.ClassDef():
                self.classes.setdefault(node.name, node)
            case ast.FunctionDef():
                self.functions.setdefault(node.name, node)
            case ast.Import():
                for alias in node.names:
                    whole = alias.name if alias.asname else alias.name.partition(".")[0]
                    self.imports[alias.asname or whole] = Import(whole)
            case ast.ImportFrom():
                for alias in node.names:
                    found = Import(node.module or "", alias.name, node.level)
                    if alias.name == "*":
                        self.stars.append(found)
                    else:
                        self.imports[alias.asname or alias.name] = found
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                self.assigned.setdefault(name, []).append(value)


def parse_python(text: str) -> ast.Module | None:
    """Return the syntax tree of a text; None if it is no Python or nested too deeply."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes in strings
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def read_module(path: Path) -> Module | None:
    """Return a file as a module; None if it cannot be read as Python."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return _read_module(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=256)
def _read_module(path: Path, _: int, size: int) -> Module | None:
    if size > LARGEST:
        return None
    try:
        tree = parse_python(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return None
    return None if tree is None else Module(path, tree)


@dataclass
class SourceTree:
    """The Python files around a script. Finds the file of a program or a module, and the definition of a name."""

    root: Path
    opened: set[Path] = field(default_factory=set)

    @classmethod
    def around(cls, script: Path) -> "SourceTree":
        """Return the sources around a file: those of its repository, or of its folder."""
        return cls(find_root(script) or script.absolute().parent)

    def open(self, path: Path) -> Module | None:
        """Return a file as a module, or None once `MOST_MODULES` are open."""
        if path not in self.opened and len(self.opened) >= MOST_MODULES:
            return None
        self.opened.add(path)
        return read_module(path)

    def find_program(self, program: str, script: Path) -> Path | None:
        """Return the file of a program that a script names (``src/train.py``, or a dotted module)."""
        if not program.endswith(".py"):
            return self._module_near(program, script) if program.replace(".", "_").isidentifier() else None
        parts = [part for part in Path(program).parts if part not in (".", "..")]
        unknown = [n for n, part in enumerate(parts) if "$" in part]
        parts = parts[unknown[-1] + 1 :] if unknown else parts  # $SCRIPT_DIR/train.py
        if not parts:
            return None
        if not unknown and Path(program).is_absolute():
            if Path(program).is_file():
                return Path(program)
            parts = parts[1:]
        folders = (Path.cwd(), *self.above(script))
        return (
            _first_file(folder / Path(*parts) for folder in folders)
            or self._anywhere(Path(*parts), script)
            # The script is for another working directory, so find the file by the end of its path.
            or _first_file(folder / Path(*parts[n:]) for n in range(1, len(parts)) for folder in folders)
        )

    def above(self, path: Path) -> Iterator[Path]:
        """Yield the folder of a file and those above it, up to the root."""
        for folder in list(path.absolute().parents)[: 2 * MOST_FOLDERS]:
            yield folder
            if folder == self.root:
                return

    def _anywhere(self, wanted: Path, script: Path) -> Path | None:
        """Return the file of the repository whose path ends in this one; the nearest of several."""
        places = (folder / wanted.name for folder in walk(self.root).folders)
        found = [path for path in places if _ends_with(path, wanted) and path.is_file()]
        if len(found) > 1 and len(wanted.parts) == 1:
            return None
        shared = script.absolute().parts
        return max(found, key=lambda path: sum(a == b for a, b in zip(path.parts, shared, strict=False)), default=None)

    def _module_near(self, name: str, path: Path) -> Path | None:
        """Return the file of a module (its ``__init__.py`` for a package), from a file's folder upwards."""
        relative = Path(*name.split("."))
        starts = (start for folder in (*self.above(path), Path.cwd()) for start in (folder, folder / "src"))
        return _first_file(
            path
            for start in starts
            for path in ((start / relative).with_suffix(".py"), start / relative / "__init__.py")
        )

    def resolve(self, module: Module, name: str, steps: int = 0) -> OwnClass | External | Expression | None:
        """Return the definition of a name in a file: a class, an external name, or the expressions assigned to it."""
        if steps > MOST_STEPS:
            return None
        if name in module.classes:
            return OwnClass(module, module.classes[name])
        if name in module.assigned:
            return Expression(module, tuple(module.assigned[name]))
        if name in module.imports:
            return self.follow(module, module.imports[name], steps)
        for star in module.stars:
            target = self._file_of(module, star)
            inner = self.open(target) if target else None
            if inner and (found := self.resolve(inner, name, steps + 1)):
                return found
        return None

    def follow(self, module: Module, found: Import, steps: int = 0) -> OwnClass | External | Expression | None:
        """Return the definition of an imported name."""
        dotted = f"{found.module}.{found.name}".strip(".")
        target = self._file_of(module, found)
        inner = self.open(target) if target else None
        if inner is None:
            return External(dotted)
        return self.resolve(inner, found.name, steps + 1) or External(dotted)

    def file_of(self, module: Module, found: Import) -> Path | None:
        """Return the file that an import reads. The imported name may itself be a module."""
        whole = Import(f"{found.module}.{found.name}".strip("."), "", found.level)
        return (self._file_of(module, whole) if found.name not in ("", "*") else None) or self._file_of(module, found)

    def _file_of(self, module: Module, found: Import) -> Path | None:
        if found.level:
            folder = module.path.parent
            for _ in range(found.level - 1):
                folder = folder.parent
            path = folder.joinpath(*filter(None, found.module.split(".")))
            candidates = (path.with_suffix(".py"), path / "__init__.py") if found.module else (folder / "__init__.py",)
            return _first_file(candidates)
        if not found.module or found.module.partition(".")[0] in LIBRARIES:
            return None
        return self._module_near(found.module, module.path)


def _first_file(paths: Iterable[Path]) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def _ends_with(path: Path, wanted: Path) -> bool:
    return path.parts[-len(wanted.parts) :] == wanted.parts


def name_of(node: ast.expr) -> str:
    """Return the dotted name in an expression (``trl.GRPOConfig``), or an empty text."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def resolve_expression(
    repository: SourceTree, module: Module, node: ast.expr, steps: int = 0
) -> Iterable[OwnClass | External]:
    """Yield the classes that an expression may refer to: each branch of a condition, each value of a mapping."""
    if steps > MOST_STEPS:
        return
    match node:
        case ast.IfExp(body=body, orelse=other):
            inner = [body, other]
        case ast.Subscript(value=ast.Dict(values=values)):
            inner = values
        case ast.Subscript(value=value) | ast.Starred(value=value):
            inner = [value]
        case ast.Dict(values=values) | ast.Tuple(elts=values) | ast.List(elts=values) | ast.BoolOp(values=values):
            inner = values
        case ast.BinOp(left=left, right=right):
            inner = [left, right]
        case ast.Call(func=ast.Attribute(attr="get", value=value), args=arguments):
            inner = [value, *arguments[1:]]
        case ast.Name(id=name):
            found = repository.resolve(module, name)
            if isinstance(found, Expression):
                for value in found.values:
                    if value is not node and name_of(value) != name:
                        yield from resolve_expression(repository, found.module, value, steps + 1)
            elif found is not None:
                yield found
            return
        case ast.Attribute():
            yield from _attribute(repository, module, node)
            return
        case _:
            return
    for value in inner:
        yield from resolve_expression(repository, module, value, steps + 1)


def _attribute(repository: SourceTree, module: Module, node: ast.Attribute) -> Iterable[OwnClass | External]:
    """Yield the class that ``module.Class`` refers to."""
    first, _, rest = name_of(node).partition(".")
    base = module.imports.get(first)
    if not rest or base is None:
        return
    inner, _, last = rest.rpartition(".")
    whole = Import(".".join(filter(None, (base.module, base.name, inner))), last, base.level)
    found = repository.follow(module, whole)
    if found is not None and not isinstance(found, Expression):
        yield found
