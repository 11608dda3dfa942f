"""Read the Python file that a launch starts, without running it: its options, and the class that trains.

Sources: transformers hf_argparser.py (fields of dataclasses are options); trl scripts/utils.py TrlParser
(``parse_args_and_config``); argparse, click, fire and tyro; trl trainer/grpo_trainer.py (where its batches are made).
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from grporecipe.frameworks.parsing.python.modules import (
    External,
    Module,
    OwnClass,
    SourceTree,
    name_of,
    resolve_expression,
)
from grporecipe.recipe import KeySpec, LaunchedCode

LIBRARY_TRAINERS = ("trl", "unsloth")  # packages whose GRPOTrainer is TRL's
# A class that overrides one of these makes its batches in its own way.
BATCH_METHODS = frozenset({"get_train_dataloader", "_get_train_sampler", "_prepare_inputs"})
REWARDS = frozenset(
    {"reward_funcs", "reward_funcs_registry", "reward_fns", "reward_functions", "reward_processing_classes"}
)
TYPES = {"int": "int", "float": "float", "bool": "bool", "str": "str", "list": "list", "List": "list"}
NEAR = 2  # imports from the launched file to the file that parses options or trains


def read_launched(program: str, script: Path) -> LaunchedCode | None:
    """Return the options and the trainer of a launched program; None if its file is not in the script's repository."""
    repository = SourceTree.around(script)
    path = repository.find_program(program, script)
    module = repository.open(path) if path else None
    if module is None:
        return None

    def near() -> Iterator[Module]:  # files are opened one by one, until one has the answer
        return _with_imported(repository, module)

    declares = next(filter(None, (_declared(repository, inner) for inner in near())), {})
    trainer, own_trainer = next(
        (found for inner in near() if (found := read_trainers(repository, inner))[0]), ("", False)
    )
    return LaunchedCode(
        file=str(module.path),
        declares=declares,
        trainer=trainer,
        own_trainer=own_trainer,
        other_keys=next(filter(None, map(_other_keys, near())), ""),
        own_config=any(_makes_config(inner) for inner in near()),
    )


def _makes_config(module: Module) -> bool:
    """Return whether a file sets values of a GRPOConfig itself, so that unset options need not have TRL's defaults."""
    return any(call.keywords and name_of(call.func).endswith("GRPOConfig") for call in module.calls)


def _with_imported(repository: SourceTree, module: Module) -> Iterator[Module]:
    """Yield a file, then the files of the repository that it imports, the nearest first."""
    yield module
    seen, level = {module.path}, [module]
    for _ in range(NEAR):
        following = []
        for near in level:
            for found in (*near.imports.values(), *near.stars):
                path = repository.file_of(near, found)
                inner = repository.open(path) if path and path not in seen else None
                if inner is not None:
                    seen.add(inner.path)
                    following.append(inner)
        yield from following
        level = following


def _declared(repository: SourceTree, module: Module) -> dict[str, KeySpec]:
    """Return every option of a file's parsers."""
    found: dict[str, KeySpec] = {}
    for call in module.calls:
        name = name_of(call.func).rpartition(".")[2] or getattr(call.func, "attr", "")
        if name in ("add_argument", "option"):
            found |= _option(call)
        elif "Parser" in name or name == "cli":
            types = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "dataclass_types")]
            for known in (known for node in types for known in resolve_expression(repository, module, node)):
                found |= fields_of(repository, known)
        elif name in ("Fire", "run") and call.args and name_of(call.func) in ("fire.Fire", "Fire", "typer.run"):
            function = module.functions.get(name_of(call.args[0]))
            found |= _parameters(function) if function else {}
    return found


def fields_of(repository: SourceTree, known: OwnClass | External, steps: int = 0) -> dict[str, KeySpec]:
    """Return the fields of a dataclass and of the classes of the repository that it inherits from."""
    if isinstance(known, External) or steps > NEAR**3:
        return {}
    found: dict[str, KeySpec] = {}
    for base in reversed(known.node.bases):
        for inherited in resolve_expression(repository, known.module, base):
            if inherited != known:
                found |= fields_of(repository, inherited, steps + 1)
    for node in known.node.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = default_of(node.value)
            kind = _kind(node.annotation)
            if kind and kind != "ClassVar":
                found[node.target.id] = KeySpec(kind if default is not None else kind.rstrip("?") + "?", default)
    return found


def default_of(node: ast.expr | None) -> Any:
    """Return a field's default if it is a literal, or None."""
    if isinstance(node, ast.Call):
        words = {word.arg: word.value for word in node.keywords}
        factory = words.get("default_factory")
        if isinstance(factory, ast.Name) and factory.id in ("list", "dict"):
            return [] if factory.id == "list" else {}
        node = factory.body if isinstance(factory, ast.Lambda) else words.get("default")
    try:
        return None if node is None else ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _kind(annotation: ast.expr | None) -> str:
    """Return the name of a type in `KeySpec`."""
    match annotation:
        case ast.Constant(value=str() as text):
            return TYPES.get(text, "any")
        case ast.Subscript(value=outer, slice=inner):
            name = name_of(outer).rpartition(".")[2]
            if name == "Optional":
                return _kind(inner).rstrip("?") + "?"
            return "ClassVar" if name == "ClassVar" else TYPES.get(name, "any")
        case ast.BinOp(left=left, right=ast.Constant(value=None)):
            return _kind(left).rstrip("?") + "?"
        case ast.Name() | ast.Attribute():
            return TYPES.get(name_of(annotation).rpartition(".")[2], "any")
    return "any"


def _option(call: ast.Call) -> dict[str, KeySpec]:
    """Return the options of ``add_argument("--key", type=int, default=1)``."""
    texts = [node.value for node in call.args if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    words = {word.arg: word.value for word in call.keywords}
    names = [text.removeprefix("--").partition("/")[0].replace("-", "_") for text in texts if text.startswith("--")]
    if "dest" in words and isinstance(words["dest"], ast.Constant):
        names.append(str(words["dest"].value))
    action = words.get("action")
    flag = action.value if isinstance(action, ast.Constant) else "optional" if action is not None else ""
    default = default_of(words.get("default"))
    if flag or "is_flag" in words:
        spec = KeySpec("bool", flag == "store_false" if default is None else default)
    elif isinstance(nargs := words.get("nargs"), ast.Constant) and nargs.value != "?":
        spec = KeySpec("list", default)
    else:
        kind = _kind(words.get("type", ast.Name("str")))
        spec = KeySpec(kind if default is not None else f"{kind}?", default)
    return dict.fromkeys(names, spec)


def _parameters(function: ast.FunctionDef) -> dict[str, KeySpec]:
    """Return the parameters of a function that a command line calls."""
    given = [*function.args.args, *function.args.kwonlyargs]
    defaults: list[ast.expr | None] = [None] * (len(function.args.args) - len(function.args.defaults))
    values = [*defaults, *function.args.defaults, *function.args.kw_defaults]
    return {
        node.arg: KeySpec(_kind(node.annotation) if node.annotation else "any", default_of(value))
        for node, value in zip(given, values, strict=True)
    }


def _other_keys(module: Module) -> Literal["", "stop", "dropped"]:
    """Return what the parsers of a file do with unknown options; empty if they differ."""
    found: set[Literal["stop", "dropped"]] = set()
    for call in module.calls:
        if not isinstance(call.func, ast.Attribute):
            continue
        words = {word.arg: getattr(word.value, "value", None) for word in call.keywords}
        name = call.func.attr
        if name in ("parse_args_and_config", "parse_args_into_dataclasses"):
            keeps = words.get("return_remaining_strings") is True or words.get("fail_with_unknown_args") is False
            found.add("dropped" if keeps else "stop")
        elif name in ("parse_dict", "parse_yaml_file", "parse_json_file"):
            found.add("dropped" if words.get("allow_extra_keys") is True else "stop")
        elif name in ("parse_args", "parse_known_args"):
            found.add("stop" if name == "parse_args" else "dropped")
    return found.pop() if len(found) == 1 else ""


def read_trainers(repository: SourceTree, module: Module) -> tuple[str, bool]:
    """Return a class that a file trains with, and whether it is not TRL's. One that is not TRL's comes first."""
    trainers = list(_trainers(repository, module))
    if trainers and any(found.module.partition(".")[0] == "unsloth" for found in module.imports.values()):
        return "UnslothGRPOTrainer", True  # its import replaces TRL's class
    own = next((name for name, is_own in trainers if is_own), "")
    return own or next((name for name, _ in trainers), ""), bool(own)


def _trainers(repository: SourceTree, module: Module) -> Iterator[tuple[str, bool]]:
    """Yield each class that a file trains with, and whether it makes its batches in its own way."""
    for call in module.calls:
        words = {word.arg for word in call.keywords}
        named = name_of(call.func).rpartition(".")[2]
        if not (words & REWARDS or named.endswith("GRPOTrainer") or {"args", "train_dataset"} <= words):
            continue
        for known in resolve_expression(repository, module, call.func):
            name = known.node.name if isinstance(known, OwnClass) else known.name.rpartition(".")[2]
            if name.endswith("Trainer") or words & REWARDS:
                yield name, _has_own_batches(repository, known)


def _has_own_batches(repository: SourceTree, known: OwnClass | External, steps: int = 0) -> bool:
    """Return whether a class makes its batches in its own way: it is not TRL's, nor derived from it without changing them."""
    if isinstance(known, External):
        return known.root not in LIBRARY_TRAINERS
    methods = {node.name: node for node in known.node.body if isinstance(node, ast.FunctionDef)}
    if methods.keys() & BATCH_METHODS or steps > NEAR**3:
        return True
    if "__init__" in methods and not _calls_super(methods["__init__"]):
        return True  # TRL's checks are in the constructor
    bases = [found for base in known.node.bases for found in resolve_expression(repository, known.module, base)]
    return all(base == known or _has_own_batches(repository, base, steps + 1) for base in bases)


def _calls_super(function: ast.FunctionDef) -> bool:
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "__init__"
        and isinstance(node.func.value, ast.Call) and name_of(node.func.value.func) == "super" and not node.func.value.args
        for node in ast.walk(function)
    )  # fmt: skip
