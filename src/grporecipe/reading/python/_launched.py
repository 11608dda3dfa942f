"""Read the Python file that a launch starts, without running it: its options, and the class that
trains.

Only this file is read, and imports of the repository's files are followed by name (`uses_trl`). If
its parser or its trainer comes from another file of the repository, any option may be declared.
Sources: transformers hf_argparser.py (fields of dataclasses are options); trl scripts/utils.py
TrlParser (``parse_args_and_config``); argparse and click; trl trainer/grpo_trainer.py (where its
batches are made).
"""

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from grporecipe.files import absolute
from grporecipe.model.recipe import NO_CODE, KeySpec, LaunchedCode
from grporecipe.model.values import listed
from grporecipe.project.repository import (
    find_program,
    find_root,
    head_of,
    project_folder,
    python_files,
)
from grporecipe.reading.python.source import (
    Names,
    keywords_of,
    last_name,
    name_of,
    option_names,
    place_of,
    read_file,
    text_of,
)

PARSERS = frozenset({"TrlParser", "HfArgumentParser", "ArgumentParser"})
MOST_BASES = 8
# packages whose GRPOTrainer is TRL's
LIBRARY_TRAINERS = ("trl", "unsloth")
# A class that overrides one of these makes its batches in its own way.
BATCH_METHODS = frozenset({"get_train_dataloader", "_get_train_sampler", "_prepare_inputs"})
REWARDS = frozenset(
    {
        "reward_funcs",
        "reward_funcs_registry",
        "reward_fns",
        "reward_functions",
        "reward_processing_classes",
    }
)


def read_launched(program: str, script: Path, paths: Sequence[str] = ()) -> LaunchedCode:
    """Return the options and the trainer of a launched program; NO_CODE if its file is not in the
    script's repository.

    ``paths`` are the folders of PYTHONPATH.
    """
    path = find_program(program, script, paths)
    if path is None:
        return NO_CODE
    return read_program(path)


def read_program(path: Path) -> LaunchedCode:
    """Return the options and the trainer of a Python file; NO_CODE if it cannot be read."""
    names = read_file(path)
    if names is None:
        return NO_CODE
    declares, is_whole = read_options(names, path)
    trainer, own_trainer = read_trainer(names)
    parsing = [call for call, _ in names.calls if last_name(call.func) in PARSERS]
    classes = chain.from_iterable(map(_parsed_classes, parsing))
    makes_config = any(
        call.keywords and name_of(call.func).endswith("GRPOConfig") for call, _ in names.calls
    )
    return LaunchedCode(
        str(path),
        declares,
        trainer,
        own_trainer,
        _other_keys(names),
        makes_config,
        declares_more=not is_whole,
        parsers=frozenset(last_name(call.func) for call in parsing),
        classes=frozenset(node.id for node in classes if _is_library(names, node)),
        imports=names.of_trl,
    )


def read_nearest(recipe: Path) -> LaunchedCode:
    """Return what the nearest near above a recipe parse with GRPOConfig: their options, and the
    fate of other keys.

    They are in the folder of the recipe or in one above it, up to the repository's root. NO_CODE if
    there are none.
    """
    root = find_root(recipe)
    if root is None:
        return NO_CODE
    for folder in absolute(recipe).parents:
        near = [file for file in sorted(folder.glob("*.py")) if "GRPOConfig" in head_of(file)]
        read = map(read_program, near)
        codes = [code for code in read if code.parsers & {"TrlParser", "HfArgumentParser"}]
        if codes:
            declares: dict[str, KeySpec] = {}
            other_keys = codes[0].other_keys
            for code in codes:
                declares |= code.declares
                if code.other_keys != other_keys:
                    other_keys = ""
            return LaunchedCode(
                codes[0].file,
                declares,
                other_keys=other_keys,
                declares_more=any(code.declares_more for code in codes),
            )
        if folder == root:
            break
    return NO_CODE


LOADS = r"\b(?:yaml\.\w*load|OmegaConf\.load)\("


def read_opening(recipe: Path) -> LaunchedCode:
    """Return the code of a program of the repository that names a recipe and opens it without TRL's
    parser: only this program knows the keys.
    """
    root = find_root(recipe)
    if root is None:
        return NO_CODE
    name = re.escape(absolute(recipe).relative_to(root).as_posix())
    for path in python_files(root):
        text = head_of(path)
        # a whole literal
        if re.search(rf"[\"'](?:\./)?{name}[\"']", text) and re.search(LOADS, text):
            return LaunchedCode(str(path), declares_more=True)
    return NO_CODE


TRL_BASED = frozenset(
    ["trl", "open_r1", "unsloth", "swift", "llamafactory", "axolotl", "oumi", "verl", "openrlhf"]
)
COMPUTES = frozenset(["torch", "jax", "deepspeed", "accelerate", "transformers"])
# in a program: it may start another one
STARTS = r"\b(?:subprocess|os\.system|os\.exec\w+|runpy)\b"
BY_NAME = r"\b(?:importlib\.import_module|__import__)\b"
# files of a repository
MOST_FOLLOWED = 300


def find_patch(plugins: Any, file: Path) -> str:
    """Return which plug-in of a recipe replaces functions of a trainer; empty if none does."""
    for plugin in listed(plugins):
        path = find_program(str(plugin), file)
        names = None
        if path is not None:
            names = read_file(path)
        if names is None:
            continue
        for owner in names.attributes:
            if names.imports.get(owner, "").partition(".")[0] in TRL_BASED:
                return f"{Path(plugin).name} replaces functions of what it imports"
    return ""


# characters of one
LARGEST = 2**20


def uses_trl(path: Path, places: Sequence[Path]) -> bool | None:
    """Return whether a program that trains, or what it imports from its repository, imports TRL or
    what builds on TRL.

    ``places`` are the folders of PYTHONPATH.

    None if that is unknown: nothing in it computes, it starts other programs, or an import is
    missing or known only when it runs. Files that import by name and do not mention GRPO are taken
    to load something else.
    """
    root = project_folder(path)
    waiting = [path]
    seen = set[Path]()
    computes = is_open = mentions = False
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        try:
            text = file.read_text(encoding="utf-8")[:LARGEST]
            tree = ast.parse(text)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        is_open = is_open or re.search(BY_NAME, text) is not None
        mentions = mentions or "grpo" in text.lower()
        if (file == path and (is_open or re.search(STARTS, text))) or len(seen) > MOST_FOLLOWED:
            return None
        for level, module, inner in imports_of(tree):
            top = module.partition(".")[0]
            if not level and top in TRL_BASED and (top != "trl" or _may_be_grpo(module, inner)):
                return True
            computes = computes or top in COMPUTES
            files = _files_of(file, (root, *places), level, module, inner)
            if files is None:
                return None
            waiting += files
    if not computes or (is_open and mentions):
        return None
    return False


def _may_be_grpo(module: str, names: tuple[str, ...]) -> bool:
    """Return whether an import of TRL may bring its GRPO trainer: others of its classes serve any
    trainer.
    """
    whole = module == "trl" and (not names or "*" in names)
    return whole or any("grpo" in name.lower() for name in (module, *names))


def imports_of(tree: ast.AST) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Yield the imports of a file: dots of a relative one, the module, and the names that are taken
    from it.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield 0, alias.name, ()
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or "", tuple(alias.name for alias in node.names)


def _files_of(
    file: Path, roots: Sequence[Path], level: int, module: str, inner: tuple[str, ...]
) -> list[Path] | None:
    """Return the repository's files behind an import: the module, its packages above, and modules
    named in it.

    Empty for a package from elsewhere, None if the repository has the package and not the module.
    """
    parents = list(file.parents)
    above = parents[:1]
    if roots[0] in parents:
        above = parents[: parents.index(roots[0]) + 1]
    starts = [*roots[1:], *above, *(folder / "src" for folder in above)]
    if level:
        starts = parents[level - 1 : level]
    parts = list(filter(None, module.split(".")))
    for start in starts:
        whole = start.joinpath(*parts)
        if parts and not (whole.with_suffix(".py").is_file() or whole.is_dir()):
            if len(parts) > 1 and (start / parts[0]).is_dir():
                return None
            continue
        paths = [whole.with_suffix(".py")]
        for n in range(1, len(parts) + 1):
            paths.append(start.joinpath(*parts[:n], "__init__.py"))
        paths += [whole / f"{name}.py" for name in inner]
        paths += [whole / name / "__init__.py" for name in inner]
        return list(filter(Path.is_file, paths))
    return []


def read_options(names: Names, path: Path) -> tuple[dict[str, KeySpec], bool]:
    """Return the options of a file's parsers, and whether these are all of them. Classes that it
    imports from its repository are read too.
    """
    options: dict[str, KeySpec] = {}
    is_whole = has_parser = False
    for call, _ in names.calls:
        name = last_name(call.func)
        if name in ("add_argument", "option"):
            options |= _read_option(call)
            is_whole = is_whole or not has_parser
        elif "Parser" in name or name == "cli":
            classes = _parsed_classes(call)
            is_whole = has_parser = bool(classes)
            for node in classes:
                options |= fields_of(names, node.id)
                if node.id not in names.classes and not _is_library(names, node):
                    is_whole = False
                    options |= _imported_fields(names.origin(node), path)
    return options, is_whole


def _parsed_classes(call: ast.Call) -> list[ast.Name]:
    """Return the classes whose fields a parser takes."""
    types = keywords_of(call).get("dataclass_types", ast.Tuple(call.args[:1]))
    return [node for node in ast.walk(types) if isinstance(node, ast.Name)]


def _imported_fields(origin: str, path: Path) -> dict[str, KeySpec]:
    """Return the fields of a class that a file imports from its repository."""
    module, _, name = origin.rpartition(".")
    level = len(module) - len(module.lstrip("."))
    # defined nowhere
    if not module.strip("."):
        return {}
    for file in _files_of(path, (project_folder(path),), level, module.lstrip("."), ()) or ():
        names = read_file(file)
        if names is not None and name in names.classes:
            return fields_of(names, name)
    return {}


def _is_library(names: Names, node: ast.expr) -> bool:
    return names.origin(node).partition(".")[0] in (*LIBRARY_TRAINERS, "transformers")


def fields_of(names: Names, name: str, steps: int = 0) -> dict[str, KeySpec]:
    """Return the fields of a dataclass and of the classes of the same file that it inherits
    from.
    """
    node = names.classes.get(name)
    if node is None or steps > MOST_BASES:
        return {}
    fields: dict[str, KeySpec] = {}
    for base in reversed(node.bases):
        fields |= fields_of(names, name_of(base), steps + 1)
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            default = default_of(one.value)
            kind = _kind(one.annotation)
            if default is None:
                kind = kind.rstrip("?") + "?"
            if "ClassVar" not in text_of(one.annotation):
                fields[one.target.id] = KeySpec(kind, default)
    return fields


def default_of(node: ast.expr | None) -> Any:
    """Return a field's default if it is a literal, or None."""
    if isinstance(node, ast.Call):
        keywords = keywords_of(node)
        node = keywords.get("default")
        match keywords.get("default_factory"):
            case ast.Name(id="list"):
                return []
            case ast.Name(id="dict"):
                return {}
            case ast.Lambda(body=body):
                node = body
    if node is None:
        return None
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _kind(annotation: ast.expr) -> str:
    """Return the name of a type in `KeySpec`."""
    text = text_of(annotation)
    match = re.match(r"(?:\w+\.)?(?:Optional\[)?'?(int|float|bool|str|list|List)\b", text)
    kind = "any"
    if match:
        kind = match[1].lower()
    if "Optional[" in text or "None" in text:
        kind += "?"
    return kind


def _read_option(call: ast.Call) -> dict[str, KeySpec]:
    """Return the options of ``add_argument("--key", type=int, default=1)``."""
    keywords = keywords_of(call)
    action = keywords.get("action")
    nargs = keywords.get("nargs")
    default = default_of(keywords.get("default"))
    kind = _kind(keywords.get("type", ast.Name("str")))
    if action is not None or "is_flag" in keywords:
        kind = "bool"
        if default is None:
            default = isinstance(action, ast.Constant) and action.value == "store_false"
    elif isinstance(nargs, ast.Constant) and nargs.value != "?":
        kind = "list"
    elif default is None:
        kind += "?"
    return dict.fromkeys(option_names(call), KeySpec(kind, default))


def _other_keys(names: Names) -> Literal["", "stop", "dropped"]:
    """Return what the parsers of a file do with unknown options; empty if they differ."""
    # whether each of them drops an option
    drops: set[bool] = set()
    for call, _ in names.calls:
        values = {name: getattr(node, "value", None) for name, node in keywords_of(call).items()}
        match getattr(call.func, "attr", ""):
            case "parse_args_and_config" | "parse_args_into_dataclasses":
                drops.add(
                    values.get("return_remaining_strings") is True
                    or values.get("fail_with_unknown_args") is False
                )
            case "parse_dict" | "parse_yaml_file" | "parse_json_file":
                drops.add(values.get("allow_extra_keys") is True)
            case "parse_args" | "parse_known_args" as name:
                drops.add(name == "parse_known_args")
    if drops == {True}:
        return "dropped"
    if drops == {False}:
        return "stop"
    return ""


def read_trainer(names: Names) -> tuple[str, bool]:
    """Return the class that a file trains with, and whether it is not TRL's. One that is not TRL's
    comes first.
    """
    trainers = sorted(_trainers(names), key=lambda trainer: not trainer[1])
    if not trainers:
        return "", False
    if names.has_unsloth:
        # its import replaces TRL's class
        return "UnslothGRPOTrainer", True
    return trainers[0]


def _trainers(names: Names) -> Iterator[tuple[str, bool]]:
    """Yield each class that a file trains with, and whether it makes its batches in its own way.

    A class whose name does not say that it is a trainer is one if the file calls its ``train()``.
    """
    trained = {
        place_of(call.func.value)
        for call, _ in names.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "train"
    }
    places = {id(value): place for place, value in names.assigned}
    for call, scope in names.calls:
        keys = keywords_of(call).keys()
        name = last_name(call.func)
        if not (
            keys & REWARDS or name.endswith("GRPOTrainer") or {"args", "train_dataset"} <= keys
        ):
            continue
        is_trained = places.get(id(call), "") in trained
        root = call.func
        while isinstance(root, ast.Subscript):
            root = root.value
        # Several classes may be assigned to a variable, or held by a dictionary.
        values = [call.func, *filter(None, scope.bindings(root))]
        has_class = False
        for node in chain.from_iterable(map(ast.walk, values)):
            if (
                isinstance(node, (ast.Name, ast.Attribute))
                and (name_of(node) in names.classes or names.origin(node))
                and (_is_trainer(names, node) or (keys & REWARDS and is_trained))
            ):
                has_class = True
                yield last_name(node), _has_own_batches(names, node)
        if not has_class and is_trained and not isinstance(call.func, ast.Name):
            # options.trainer_class(...)
            yield text_of(call.func), True


def _is_trainer(names: Names, node: ast.expr, steps: int = 0) -> bool:
    """Return whether a class, or one that it derives from, is called a trainer."""
    if last_name(node).endswith("Trainer"):
        return True
    definition = names.classes.get(name_of(node))
    if definition is None or steps >= MOST_BASES:
        return False
    return any(_is_trainer(names, base, steps + 1) for base in definition.bases)


def _has_own_batches(names: Names, node: ast.expr, steps: int = 0) -> bool:
    """Return whether a class makes its batches in its own way: it is not TRL's, nor derived from it
    without changing them.
    """
    definition = names.classes.get(name_of(node))
    if definition is None or steps > MOST_BASES:
        return names.origin(node).partition(".")[0] not in LIBRARY_TRAINERS
    methods = {one.name: one for one in definition.body if isinstance(one, ast.FunctionDef)}
    if methods.keys() & BATCH_METHODS or (
        "__init__" in methods and not _calls_super(methods["__init__"])
    ):
        # TRL's checks are in the constructor
        return True
    return all(_has_own_batches(names, base, steps + 1) for base in definition.bases)


def _calls_super(function: ast.FunctionDef) -> bool:
    for node in ast.walk(function):
        match node:
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Call(func=ast.Name(id="super"), args=[]), attr="__init__"
                )
            ):
                return True
    return False
