"""Find the argument values of a training's calls in a Python file, as far as its text alone determines them.

Statements are followed in order: names that are assigned literals, arithmetic on them, dictionaries, fields of classes,
``dataclasses.replace``. Values that depend on a condition, a loop, a parameter or any other call are unknown. Nothing is run.
"""

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from grporecipe.errors import UserError
from grporecipe.frameworks.parsing.python.modules import name_of
from grporecipe.frameworks.parsing.python.operators import (
    CASTS,
    LONGEST,
    PLAIN,
    UNKNOWN,
    binary,
    boolean,
    cast,
    join,
    unary,
)

MOST_WORK = 500_000  # statements, and names copied for branches
DEEPEST = 60  # of an expression


class Slot(NamedTuple):
    """A key's value and the expression that sets it. ``keyword`` is its argument, if it is one."""

    value: Any
    node: ast.expr
    keyword: ast.keyword | None = None


@dataclass(eq=False)
class Entries:
    """The named values of a mapping, an object or a call. ``unknown`` holds ``**words`` that could not be resolved."""

    kind: str  # "dict", "class", or the dotted name that is called
    slots: dict[str, Slot] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    call: ast.Call | None = None
    origin: "Entries | None" = None  # of a copy for a branch

    def copy(self, kind: str = "") -> "Entries":
        """Return an object with the same values."""
        return Entries(kind or self.kind, {**self.slots}, [*self.unknown], self.call)


Names = dict[str, Any]
COPIES = ("replace", "dataclasses.replace", "copy.deepcopy", "deepcopy", "copy.copy")


class Walker:
    """Follows a file's statements and collects, in order, each call for which ``is_wanted`` holds."""

    def __init__(self, is_wanted: Callable[[ast.Call], bool]) -> None:
        self.is_wanted = is_wanted
        self.calls: dict[int, Entries] = {}  # by the identity of the node
        self._later: list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, Names]] = []
        self._work = 0

    def run(self, tree: ast.Module) -> list[Entries]:
        """Return the wanted calls of a file in order. Bodies of functions also know the names that are defined after them.

        Raises UserError for a file that is too large to follow.
        """
        try:
            names: Names = {}
            self.follow(tree.body, names)
            while self._later:
                function, outer = self._later.pop(0)
                given = function.args
                parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
                inner = {**outer, **{node.arg: UNKNOWN for node in parameters if node}}
                self._spend(len(inner))
                self.follow(function.body, inner)
        except RecursionError:
            raise UserError("it is nested too deeply to be followed.") from None
        return sorted(
            self.calls.values(), key=lambda found: (found.call.lineno, found.call.col_offset) if found.call else (0, 0)
        )

    def _spend(self, work: int) -> None:
        self._work += work
        if self._work > MOST_WORK:
            raise UserError("it is too large to be followed.")

    def follow(self, body: Iterable[ast.stmt], names: Names) -> None:
        """Follow statements and update ``names``, the known values."""
        for node in body:
            self._spend(1)
            self._statement(node, names)

    def _statement(self, node: ast.stmt, names: Names) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                names[node.name] = UNKNOWN
                self._later.append((node, names))
            case ast.ClassDef():
                names[node.name] = self._class(node, names)
            case ast.If():
                self._branch(node, names)
            case ast.For() | ast.AsyncFor() | ast.While():
                forget = {name for inner in ast.walk(node) for name in _targets(inner)}
                names.update(dict.fromkeys(forget, UNKNOWN))
                self._look(node.test if isinstance(node, ast.While) else node.iter, names)
                self._merge(names, [node.body, node.orelse])
            case ast.Try():
                self.follow(node.body, names)
                self._merge(names, [[], *(handler.body for handler in node.handlers)])
                self.follow([*node.orelse, *node.finalbody], names)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._look(item.context_expr, names)
                    names.update(dict.fromkeys(_targets(item), UNKNOWN))
                self.follow(node.body, names)
            case ast.Match():
                self._merge(names, [case.body for case in node.cases])
            case _:
                self._simple(node, names)

    def _simple(self, node: ast.stmt, names: Names) -> None:
        self._look(node, names)
        match node:
            case ast.Assign(targets=targets, value=value):
                found = self.evaluate(value, names)
                for target in targets:
                    self._assign(target, found, value, names)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, self.evaluate(value, names), value, names)
            case ast.AugAssign(target=target, op=op, value=value):
                sum_of = ast.BinOp(left=target, op=op, right=value)
                self._assign(target, self.evaluate(sum_of, names), value, names)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr="update")) as call):
                mapping = self.evaluate(owner, names)
                if isinstance(mapping, Entries):
                    self._collect(call, mapping, names, call.args)
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="pop")) as call):
                self.evaluate(call, names)
            case ast.Delete(targets=targets):
                for target in targets:
                    names.pop(name_of(target), None)
                    self._remove(target, names)
            case ast.Import() | ast.ImportFrom():
                names.update({(alias.asname or alias.name).partition(".")[0]: UNKNOWN for alias in node.names})

    def _look(self, node: ast.AST, names: Names) -> None:
        """Evaluate the wanted calls inside a statement."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and self.is_wanted(inner):
                self.evaluate(inner, names)

    def _assign(self, target: ast.expr, value: Any, node: ast.expr, names: Names) -> None:
        match target:
            case ast.Name(id=name):
                names[name] = value
            case (
                ast.Attribute(value=owner, attr=key)
                | ast.Subscript(value=owner, slice=ast.Constant(value=str() as key))
            ):
                holder = self.evaluate(owner, names)
                if isinstance(holder, Entries):
                    holder.slots[key] = Slot(value, node)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                nodes = (
                    node.elts if isinstance(node, (ast.Tuple, ast.List)) and len(node.elts) == len(targets) else None
                )
                for n, inner in enumerate(targets):
                    one = nodes[n] if nodes else node
                    self._assign(inner, self.evaluate(one, names) if nodes else UNKNOWN, one, names)

    def _remove(self, target: ast.expr, names: Names) -> Any:
        """Remove ``mapping["key"]`` and return its value."""
        match target:
            case ast.Subscript(value=owner, slice=ast.Constant(value=str() as key)):
                holder = self.evaluate(owner, names)
                return holder.slots.pop(key, Slot(UNKNOWN, target)).value if isinstance(holder, Entries) else UNKNOWN
        return UNKNOWN

    def _class(self, node: ast.ClassDef, names: Names) -> Entries:
        found = Entries("class")
        for base in reversed(node.bases):
            inherited = self.evaluate(base, names)
            if isinstance(inherited, Entries):
                found.slots |= inherited.slots
        for inner in node.body:
            match inner:
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    stated = _field_default(value)
                    found.slots[name] = Slot(self.evaluate(stated, names), stated)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    found.slots[name] = Slot(self.evaluate(value, names), value)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._later.append((inner, names))
        return found

    def _branch(self, node: ast.If, names: Names) -> None:
        self._look(node.test, names)
        test = True if _is_main(node.test) else self.evaluate(node.test, names)
        if isinstance(test, PLAIN):
            self.follow(node.body if test else node.orelse, names)
        else:
            self._merge(names, [node.body, node.orelse])

    def _merge(self, names: Names, bodies: list[list[ast.stmt]]) -> None:
        """Follow alternative bodies, one of which runs. Names with different values are unknown afterwards."""
        after = []
        for body in bodies:
            self._spend(len(names))
            branch = _copy(names)
            self.follow(body, branch)
            after.append(branch)
        for name in set().union(*after):
            names[name] = _agreed([branch.get(name, UNKNOWN) for branch in after])

    def evaluate(self, node: ast.expr, names: Names, depth: int = 0) -> Any:
        """Return the value of an expression: plain data, `Entries`, or `UNKNOWN`."""
        if depth > DEEPEST:
            return UNKNOWN

        def value(inner: ast.expr) -> Any:
            return self.evaluate(inner, names, depth + 1)

        match node:
            case ast.Constant(value=plain):
                return plain if isinstance(plain, PLAIN) else UNKNOWN
            case ast.Name(id=name):
                return names.get(name, UNKNOWN)
            case (
                ast.Attribute(value=owner, attr=key)
                | ast.Subscript(value=owner, slice=ast.Constant(value=str() as key))
            ):
                holder = value(owner)
                known = isinstance(holder, Entries) and key in holder.slots
                return holder.slots[key].value if known else UNKNOWN
            case ast.UnaryOp(op=op, operand=inner):
                return unary(op, value(inner))
            case ast.BinOp(left=left, op=op, right=right):
                return binary(op, value(left), value(right))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return binary(op, value(left), value(right))
            case ast.BoolOp(op=op, values=values):
                return boolean(op, [value(inner) for inner in values])
            case ast.IfExp(test=test, body=body, orelse=other):
                found = value(test)
                return value(body if found else other) if isinstance(found, PLAIN) else UNKNOWN
            case ast.JoinedStr(values=values):
                return join([value(inner) for inner in values])
            case ast.FormattedValue(value=inner, conversion=-1, format_spec=None):
                return value(inner)
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                items = [value(inner) for inner in elements[:LONGEST]]
                return UNKNOWN if any(item is UNKNOWN or isinstance(item, Entries) for item in items) else items
            case ast.Dict():
                return self._dict(node, names)
            case ast.NamedExpr(target=ast.Name(id=name), value=inner):
                names[name] = value(inner)
                return names[name]
            case ast.Call():
                return self._call(node, names)
        return UNKNOWN

    def _dict(self, node: ast.Dict, names: Names) -> Entries:
        found = Entries("dict")
        for key, inner in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                found.slots[key.value] = Slot(self.evaluate(inner, names), inner)
            elif key is None:
                self._spread(found, inner, names)
            else:
                found.unknown.append(text_of(inner))
        return found

    def _call(self, node: ast.Call, names: Names) -> Any:
        if id(node) in self.calls:
            return self.calls[id(node)]
        name = name_of(node.func)
        holder = self.evaluate(node.func, names) if name else UNKNOWN
        made = holder if isinstance(holder, Entries) and holder.kind == "class" else None
        if self.is_wanted(node) or made is not None:
            found = made.copy(name) if made is not None else Entries(name or getattr(node.func, "attr", ""))
            found.call = node
            if self.is_wanted(node):
                self.calls[id(node)] = found
            for n, inner in enumerate(node.args):
                found.slots[f"*{n}"] = Slot(self.evaluate(inner, names), inner)
            return self._collect(node, found, names)
        if name == "dict" and not node.args:
            return self._collect(node, Entries("dict"), names)
        if name in COPIES and node.args:
            original = self.evaluate(node.args[0], names)
            if not isinstance(original, Entries):
                return original
            copied = original.copy()
            copied.call = node
            if original.call is not None and id(original.call) in self.calls:
                self.calls[id(node)] = copied  # another configuration of the same class
            return self._collect(node, copied, names)
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr="pop"), args=[key, *_]):
                return self._remove(ast.Subscript(owner, key), names)
        if name in CASTS and not node.keywords:
            values = [self.evaluate(inner, names) for inner in node.args]
            return cast(name, values)
        return UNKNOWN

    def _collect(self, node: ast.Call, found: Entries, names: Names, mappings: Iterable[ast.expr] = ()) -> Entries:
        """Add the named arguments of a call to a mapping."""
        for inner in mappings:
            self._spread(found, inner, names)
        for word in node.keywords:
            if word.arg is None:
                self._spread(found, word.value, names)
            else:
                found.slots[word.arg] = Slot(self.evaluate(word.value, names), word.value, word)
        return found

    def _spread(self, found: Entries, node: ast.expr, names: Names) -> None:
        mapping = self.evaluate(node, names)
        if isinstance(mapping, Entries):
            found.slots |= {key: slot._replace(keyword=None) for key, slot in mapping.slots.items() if key[0] != "*"}
            found.unknown += mapping.unknown
        else:
            found.unknown.append(f"**{text_of(node)}")


def _targets(node: ast.AST) -> Iterable[str]:
    """Yield the names that a statement assigns."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.withitem(optional_vars=ast.expr() as target):
            yield from (inner.id for inner in ast.walk(target) if isinstance(inner, ast.Name))


def _copy(names: Names) -> Names:
    """Return a copy of the names for a branch, with copies of mappings and objects."""
    copies: dict[int, Entries] = {}
    for value in names.values():
        if isinstance(value, Entries) and id(value) not in copies:
            copies[id(value)] = value.copy()
            copies[id(value)].origin = value
    return {name: copies.get(id(value), value) for name, value in names.items()}


def _agreed(values: list[Any]) -> Any:
    """Return the value on which all branches agree. For one object in all branches, keep the values that agree."""
    first = values[0]
    origins = {id(value.origin) if isinstance(value, Entries) else None for value in values}
    if isinstance(first, Entries) and len(origins) == 1 and first.origin is not None:
        original = first.origin
        for key in set().union(*(value.slots for value in values)):
            slots = [value.slots.get(key) for value in values]
            known = [slot for slot in slots if slot is not None]
            same = len(known) == len(slots) and _is_same([slot.value for slot in known])
            original.slots[key] = known[0] if same else known[-1]._replace(value=UNKNOWN)
        original.unknown = max((value.unknown for value in values), key=len)
        return original
    return first if _is_same(values) else UNKNOWN


def _is_same(values: list[Any]) -> bool:
    first = values[0]
    return all(value is first or (type(value) is type(first) and not isinstance(value, Entries) and value == first)
               for value in values)  # fmt: skip


def _field_default(node: ast.expr) -> ast.expr:
    """Return the default of ``field(default=...)``, or the expression itself."""
    if isinstance(node, ast.Call) and name_of(node.func).rpartition(".")[2] == "field":
        return next((word.value for word in node.keywords if word.arg == "default"), node)
    return node


def _is_main(test: ast.expr) -> bool:
    """Return whether a condition is ``__name__ == "__main__"``."""
    return isinstance(test, ast.Compare) and name_of(test.left) == "__name__"


def text_of(node: ast.AST) -> str:
    """Return the code of an expression, cut to one line."""
    try:
        return ast.unparse(node)[:80]
    except (RecursionError, ValueError):
        return "..."


def plain(value: Any, seen: set[int] | None = None) -> Any:
    """Return a value as plain data, mappings as dictionaries. `UNKNOWN` if a part is unknown or contains itself."""
    if not isinstance(value, Entries):
        return value
    seen = set() if seen is None else seen
    if id(value) in seen:  # a mapping may contain itself
        return UNKNOWN
    seen.add(id(value))
    found = {key: plain(slot.value, seen) for key, slot in value.slots.items()}
    is_known = value.kind == "dict" and not value.unknown and not any(one is UNKNOWN for one in found.values())
    return found if is_known else UNKNOWN


def stated(slots: Mapping[str, Slot], key: str) -> Any:
    """Return the plain value of a key; None if it is not set, `UNKNOWN` if it is not known."""
    return plain(slots[key].value) if key in slots else None
