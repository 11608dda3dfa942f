"""Read the syntax tree of a Python file, or of a notebook's code cells joined in order, and its
constants.

Lines for IPython itself (``%magic``, ``!command``) become ``pass``, so all other lines keep their
number. Sources: nbformat 4; IPython inputtransformer2.py.
"""

import ast
import operator
import posixpath
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from grporecipe.errors import UserError
from grporecipe.files import Json, file_stamp, parse_json
from grporecipe.model.values import listed

NOTEBOOK = ".ipynb"
# Magics whose cell still contains Python.
PYTHON_CELLS = ("%%capture", "%%time", "%%timeit", "%%prun", "%%python", "%%py3")
_MAGIC = r"(\s*)(?:[%!?]|.*\?\s*$)"
_ASSIGNED = r"(\s*[\w., ]+=\s*)[%!]"
# bytes
LARGEST_FILE = 2 * 2**20
# characters of a text
LONGEST = 10_000
LARGEST = 10**18
# of an expression
DEEPEST = 60
# of named dictionaries into others
MOST_SPREADS = 5000


class Cell(NamedTuple):
    """A code cell: its number among all cells from 1, and its first line in the text."""

    number: int
    line: int


class Source(NamedTuple):
    """Python code (``text``), its tree, and the cells of a notebook (empty for a file)."""

    text: str
    tree: ast.Module
    cells: tuple[Cell, ...] = ()


def parse_python(text: str) -> ast.Module | None:
    """Return the syntax tree of a text; None if it is no Python or nested too deeply."""
    try:
        with warnings.catch_warnings():
            # about invalid escapes in strings
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def read_file(path: Path) -> "Names | None":
    """Return the names of a Python file; None if it cannot be read."""
    stamp = file_stamp(path)
    if stamp is None:
        return None
    return _read_names(path, *stamp)


@lru_cache(maxsize=64)
def _read_names(path: Path, _: int, size: int) -> "Names | None":
    text = ""
    try:
        if size <= LARGEST_FILE:
            text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError):
        return None
    tree = parse_python(text)
    if tree is None:
        return None
    return read_names(tree)


def read_source(text: str, is_notebook: bool) -> Source:
    """Return the Python of a file or notebook.

    Raises UserError if it is neither, or nested too deeply.
    """
    if not is_notebook:
        tree = parse_python(text) or parse_python(_without_magics(text))
        if tree is None:
            raise UserError(f"it is no Python that can be read{_where(text)}.")
        return Source(text, tree)
    shown, parsed, cells, line = list[str](), list[str](), list[Cell](), 1
    for number, source in code_cells(text):
        cells.append(Cell(number, line))
        shown.append(source)
        parsed.append(_python_of(source))
        line += source.count("\n") + 1
    tree = parse_python("\n".join(parsed))
    if tree is None:
        raise UserError("its code cells are no Python that can be read together.")
    return Source("\n".join(shown), tree, tuple(cells))


def _where(text: str) -> str:
    try:
        ast.parse(text)
    except SyntaxError as error:
        if error.lineno:
            return f" (line {error.lineno}: {error.msg})"
        return f" ({error.msg})"
    except (ValueError, RecursionError, MemoryError):
        pass
    return ": it is nested too deeply, or has null bytes"


def code_cells(text: str) -> list[tuple[int, str]]:
    """Return the code cells of a notebook: number among all cells, and text.

    Raises UserError if it is no notebook.
    """
    try:
        notebook = parse_json(text.removeprefix("\ufeff"))
    except ValueError as error:
        raise UserError(f"it is no notebook: {str(error)[:120]}.") from None
    cells = None
    if isinstance(notebook, dict):
        cells = notebook.get("cells")
    if not isinstance(cells, list):
        raise UserError(
            "it is no notebook of format 4: it has no cells. Open and save it with Jupyter."
        )
    return [
        (number, _joined(cell.get("source")))
        for number, cell in enumerate(cells, 1)
        if isinstance(cell, dict) and cell.get("cell_type") == "code"
    ]


def _joined(source: Any) -> str:
    return "".join(line for line in listed(source) if isinstance(line, str))


def _python_of(source: str) -> str:
    """Return a cell as Python with the same number of lines. Cells that are no valid Python become
    blank lines.
    """
    first = source.lstrip().partition("\n")[0].strip()
    is_python = first.startswith(PYTHON_CELLS) or (
        first.startswith("%%writefile") and first.endswith(".py")
    )
    if not first.startswith("%%") or is_python:
        for text in (source, _without_magics(source)):
            if parse_python(text) is not None:
                return text
    return "\n" * source.count("\n")


def _without_magics(source: str) -> str:
    """Replace a cell's lines for IPython or a shell by ``pass``."""
    lines = []
    continues = False
    for line in source.split("\n"):
        magic = re.match(_MAGIC, line)
        assigned = re.match(_ASSIGNED, line)
        if continues:
            lines.append("")
        elif assigned:
            lines.append(f"{assigned[1]}None")
        elif magic:
            lines.append(f"{magic[1]}pass")
        else:
            lines.append(line)
        continues = bool(continues or magic or assigned) and line.rstrip().endswith("\\")
    return "\n".join(lines)


class _Unknown:
    """A value that is known only to a running program."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()
NUMBERS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
# functions that join the parts of a path
JOINS = ("os.path.join", "path.join")
CHANGES = frozenset(
    {"update", "pop", "popitem", "setdefault", "clear", "append", "extend", "insert", "remove"}
)


@dataclass(eq=False)
class Scope:
    """The names of a module, function or class, each with the expressions that it is given; None
    for anything else.
    """

    outer: "Scope | None" = None
    names: dict[str, list[ast.expr | None]] = field(default_factory=dict)
    known: Json = field(default_factory=dict)
    is_class: bool = False

    def bind(self, name: str, value: ast.expr | None = None) -> None:
        """Add an expression that a name is given."""
        self.names.setdefault(name, []).append(value)

    def find(self, name: str) -> "Scope | None":
        """Return the scope that has a name."""
        scope: Scope | None = self
        while scope is not None and name not in scope.names:
            scope = scope.outer
        return scope

    def bindings(self, node: ast.expr) -> list[ast.expr | None]:
        """Return the expressions that a name is given, or the expression itself."""
        if isinstance(node, ast.Name):
            scope = self.find(node.id)
            if scope is not None:
                return scope.names[node.id]
        return [node]


@dataclass
class Names:
    """The classes, imports (name to dotted origin), calls with their scopes, and argparse defaults
    of one file.
    """

    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[ast.Call, Scope]] = field(default_factory=list)
    # Names of dictionaries and lists that are changed after they are made; attributes that are set,
    # by their owner's name.
    changed: set[str] = field(default_factory=set)
    attributes: dict[str, dict[str, ast.expr]] = field(default_factory=dict)
    options: dict[str, list[ast.expr | None]] = field(default_factory=dict)
    assigned: list[tuple[str, ast.expr]] = field(default_factory=list)
    module: Scope = field(default_factory=Scope)
    spreads: int = 0
    # values that calls are taken to return, by their id
    returned: dict[int, Any] = field(default_factory=dict)
    # `imports_of_trl`
    of_trl: tuple[tuple[str, int], ...] = ()

    def forget(self, returned: dict[int, Any]) -> None:
        """Take calls to return other values, and forget what was computed without them."""
        self.returned = returned
        for _, scope in self.calls:
            scope.known.clear()

    @property
    def has_unsloth(self) -> bool:
        """Return whether the file imports Unsloth."""
        return any(origin.partition(".")[0] == "unsloth" for origin in self.imports.values())

    def origin(self, node: ast.expr) -> str:
        """Return the dotted name that an expression is imported as (``trl.GRPOConfig``); empty if
        it is not imported.
        """
        first, dot, rest = name_of(node).partition(".")
        if first not in self.imports:
            return ""
        return self.imports[first] + dot + rest

    def value(self, node: ast.expr | None, scope: Scope, depth: int = 0) -> Any:
        """Return the value of an expression of literals, constants and argparse defaults, or
        UNKNOWN.
        """
        if depth > DEEPEST:
            return UNKNOWN

        def inner(node: ast.expr) -> Any:
            return self.value(node, scope, depth + 1)

        match node:
            case ast.Constant(value=int() | float() | str() | None as plain):
                return plain
            case ast.Name(id=name):
                return self._constant(name, scope, depth)
            case ast.Call() if id(node) in self.returned:
                return self.returned[id(node)]
            case ast.Attribute(value=ast.Name(id=owner), attr=key) if self._is_parsed(owner, scope):
                defaults = self.options.get(key, [None])
                if key not in self.attributes.get(owner, {}):
                    return self._agreed(defaults, self.module, depth)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                number = inner(operand)
                if isinstance(number, (int, float)):
                    return -number
            case ast.BinOp(left=left, op=op, right=right) if type(op) in NUMBERS:
                return _compute(op, inner(left), inner(right))
            case ast.JoinedStr(values=parts):
                return _concatenate(list(map(inner, parts)))
            case ast.FormattedValue(value=shown, conversion=-1, format_spec=None):
                return inner(shown)
            case ast.Call(func=function, args=args) if args and name_of(function) in JOINS:
                texts = list(map(inner, args))
                if all(isinstance(text, str) for text in texts):
                    return posixpath.join(*texts)
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                items = list(map(inner, elements[:LONGEST]))
                if UNKNOWN not in items:
                    return items
            case ast.Dict() | ast.Call():
                entries = self.entries(node, scope, depth + 1)
                mapping = {key: self.value(one, at, depth + 1) for key, one, at in entries}
                if None not in mapping and UNKNOWN not in mapping.values():
                    return mapping
        return UNKNOWN

    def _constant(self, name: str, scope: Scope, depth: int) -> Any:
        """Return the one value that every assignment of a name gives it."""
        binding = scope.find(name)
        if binding is None or name in self.changed:
            return UNKNOWN
        if name not in binding.known:
            # while it is computed: it may depend on itself
            binding.known[name] = UNKNOWN
            binding.known[name] = self._agreed(binding.names[name], binding, depth)
        return binding.known[name]

    def _agreed(self, nodes: list[ast.expr | None], scope: Scope, depth: int) -> Any:
        values = [self.value(node, scope, depth + 1) for node in nodes]
        if all(type(one) is type(values[0]) and one == values[0] for one in values):
            return values[0]
        return UNKNOWN

    def _is_parsed(self, name: str, scope: Scope) -> bool:
        """Return whether a name holds the options of argparse: given by ``parse_args()``, or a
        parameter ``args``.
        """
        binding = scope.find(name)
        if binding is None:
            return False
        return all(
            _is_parse(one) or (one is None and name == "args") for one in binding.names[name]
        )

    def entries(
        self, node: ast.expr, scope: Scope, depth: int = 0
    ) -> Iterator[tuple[str | None, ast.expr, Scope]]:
        """Yield key, expression and scope of a mapping's entries; the key is None for what may set
        any key.
        """
        at = scope.find(node.id) if isinstance(node, ast.Name) else None
        match node:
            case _ if depth > DEEPEST or self.spreads > MOST_SPREADS:
                yield None, node, scope
            case ast.Name(id=name) if (
                at and name not in self.changed and len(at.names[name]) == 1 and at.names[name][0]
            ):
                self.spreads += 1
                yield from self.entries(at.names[name][0], at, depth + 1)  # type: ignore[arg-type]
            case ast.Dict(keys=keys, values=values):
                for key, one in zip(keys, values, strict=True):
                    if key is None:
                        yield from self.entries(one, scope, depth + 1)
                    elif isinstance(key, ast.Constant):
                        yield str(key.value), one, scope
                    else:
                        yield None, one, scope
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
                for keyword in keywords:
                    if keyword.arg is None:
                        yield from self.entries(keyword.value, scope, depth + 1)
                    else:
                        yield keyword.arg, keyword.value, scope
            case _:
                yield None, node, scope


def _is_parse(node: ast.expr | None) -> bool:
    """Return whether a call reads the command line (``parse_args()``, not ``parse_args(["--seed",
    "3"])``).
    """
    return (
        isinstance(node, ast.Call)
        and last_name(node.func).endswith("parse_args")
        and not (node.args or node.keywords)
    )


def _compute(op: ast.operator, left: Any, right: Any) -> Any:
    """Return a number, or two joined texts; UNKNOWN if it is an error or too large."""
    if isinstance(left, str) and isinstance(right, str) and isinstance(op, ast.Add):
        return _concatenate([left, right])
    if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        return UNKNOWN
    try:
        result = NUMBERS[type(op)](left, right)
    except ArithmeticError:
        return UNKNOWN
    if abs(result) > LARGEST:
        return UNKNOWN
    return result


def _concatenate(parts: list[Any]) -> Any:
    text = "".join(map(str, parts))
    if len(text) > LONGEST or not all(isinstance(part, (str, int, float)) for part in parts):
        return UNKNOWN
    return text


def imports_of_trl(tree: ast.Module) -> tuple[tuple[str, int], ...]:
    """Return the names (``GRPOConfig``) and modules (``trl.trainer.utils``) of TRL that a file
    always imports, with their lines.

    An import below a condition or in a ``try`` may be meant for another release.
    """
    imports: list[tuple[str, int]] = []
    for node in tree.body:
        match node:
            case ast.Import(names=aliases):
                names = [alias.name for alias in aliases if alias.name.startswith("trl.")]
            case ast.ImportFrom(module="trl", level=0, names=aliases):
                names = [alias.name for alias in aliases if not alias.name.startswith(("*", "__"))]
            case ast.ImportFrom(module=str(module), level=0) if module.startswith("trl."):
                names = [module]
            case _:
                names = []
        imports += [(name, node.lineno) for name in names]
    return tuple(imports)


def read_names(tree: ast.Module) -> Names:
    """Return the names of a file in one pass. It is not recursive, because trees of hostile files
    are deep.
    """
    names = Names(of_trl=imports_of_trl(tree))
    stack: list[tuple[ast.AST, Scope]] = [(tree, names.module)]
    # targets whose value is known
    given: set[int] = set()
    while stack:
        node, scope = stack.pop()
        inner = scope
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() | ast.ClassDef():
                inner = Scope(scope, is_class=isinstance(node, ast.ClassDef))
                # A method does not see the names of its class.
                if scope.is_class:
                    inner.outer = scope.outer
                if not isinstance(node, ast.Lambda):
                    scope.bind(node.name)
                if isinstance(node, ast.ClassDef):
                    names.classes.setdefault(node.name, node)
            case ast.arg(arg=name):
                scope.bind(name)
            case ast.Import(names=aliases):
                for alias in aliases:
                    origin = alias.name
                    if not alias.asname:
                        origin = origin.partition(".")[0]
                    names.imports[alias.asname or origin] = origin
                    scope.bind(alias.asname or origin)
            case ast.ImportFrom(names=aliases):
                for alias in aliases:
                    name = alias.asname or alias.name
                    module = "." * node.level + (node.module or "")
                    names.imports[name] = f"{module}.{alias.name}"
                    scope.bind(name)
            case ast.Global(names=shared) | ast.Nonlocal(names=shared):
                names.changed.update(shared)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    pairs = [(target, value)]
                    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                        pairs = list(zip(target.elts, value.elts, strict=False))
                        elements = (*target.elts, *value.elts)
                        if any(isinstance(one, ast.Starred) for one in elements):
                            pairs = []
                    _bind(names, scope, pairs, given)
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.NamedExpr(target=target, value=value)
            ):
                _bind(names, scope, [(target, value)], given)
            case ast.AugAssign(target=ast.Attribute() as target, value=value):
                names.attributes.setdefault(place_of(target.value), {})[target.attr] = value
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) if id(node) not in given:
                scope.bind(name)
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ):
                scope.bind(name)
            case ast.Subscript(value=owner, ctx=ast.Store() | ast.Del()):
                names.changed.add(_root_of(owner))
            case ast.Call():
                names.calls.append((node, scope))
                if isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
                    names.changed.add(_root_of(node.func.value))
                if isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
                    for option, default in _defaults(node):
                        names.options.setdefault(option, []).append(default)
                if last_name(node.func) == "set_defaults":
                    for keyword in node.keywords:
                        names.options.setdefault(keyword.arg or "", []).append(None)
        stack += [(child, inner) for child in ast.iter_child_nodes(node)]
    names.calls.sort(key=lambda call: (call[0].lineno, call[0].col_offset))
    return names


def _root_of(node: ast.expr) -> str:
    """Return the name of the dictionary or list that holds an item of an item."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return name_of(node)


def _bind(
    names: Names, scope: Scope, pairs: list[tuple[ast.expr, ast.expr]], given: set[int]
) -> None:
    for target, value in pairs:
        names.assigned.append((place_of(target), value))
        if isinstance(target, ast.Name):
            scope.bind(target.id, value)
            given.add(id(target))
        elif isinstance(target, ast.Attribute):
            names.attributes.setdefault(place_of(target.value), {})[target.attr] = value


def keywords_of(call: ast.Call) -> dict[str | None, ast.expr]:
    """Return the arguments of a call by keyword; None for the last ``**keywords``."""
    return {keyword.arg: keyword.value for keyword in call.keywords}


def option_names(call: ast.Call) -> list[str]:
    """Return the names of ``add_argument("--key", dest=...)``, dashes as underscores."""
    names = []
    for node in call.args:
        match node:
            case ast.Constant(value=str(text)) if text.startswith("--"):
                names.append(text.removeprefix("--").partition("/")[0].replace("-", "_"))
    dest = keywords_of(call).get("dest")
    if isinstance(dest, ast.Constant):
        names.append(str(dest.value))
    return names


def _defaults(call: ast.Call) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield each name of an option with the expression of its default; None if there is none, or if
    it is a switch.
    """
    keywords = keywords_of(call)
    default = keywords.get("default")
    is_stated_none = isinstance(default, ast.Constant) and default.value is None
    if is_stated_none or keywords.keys() & {"required", "action", None}:
        default = None
    for name in option_names(call):
        yield name, default


def name_of(node: ast.expr) -> str:
    """Return the dotted name in an expression (``trl.GRPOConfig``), or an empty text."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def last_name(node: ast.expr) -> str:
    """Return the last part of the name in an expression (``GRPOConfig``), or an empty text."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    return ""


def place_of(node: ast.expr) -> str:
    """Return the name of a variable (``config``), or the last part of an attribute with its dot
    (``.config``).
    """
    return "." * isinstance(node, ast.Attribute) + last_name(node)


def text_of(node: ast.AST) -> str:
    """Return the code of an expression, cut to one line."""
    try:
        return ast.unparse(node)[:80]
    except (RecursionError, ValueError):
        return "..."
