"""Read a TRL release into frameworks/trl/keys.json: keys, defaults, choices, and what can be
imported from it.

A recipe for TRL's script is read into four dataclasses: GRPOScriptArguments, GRPOConfig (with
transformers' TrainingArguments under it), ModelConfig and DatasetMixtureConfig. Each release is
read with the transformers that its environment resolved to, which the table keeps. Packages are
parsed, never imported.
"""

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tables import FRAMEWORKS, History, Package, Table, cut, extend, fetch, in_order, rows

if TYPE_CHECKING:
    from release import Release

PACKAGE, NAME = "trl", "TRL"
TARGET = FRAMEWORKS / "trl" / "keys.json"
ROOTS = {
    "GRPOConfig": "config",
    "GRPOScriptArguments": "script",
    "ModelConfig": "model",
    "DatasetMixtureConfig": "data",
}
SOURCES = (
    "trl/trainer/grpo_config.py",
    "trl/trainer/base_config.py",
    "trl/trainer/model_config.py",
    "trl/scripts/grpo.py",
    "trl/scripts/utils.py",
    "trl/utils.py",
)
UNDER = (
    "transformers/training_args.py",
    "transformers/trainer_utils.py",
    "transformers/trainer_pt_utils.py",
    "transformers/integrations/integration_utils.py",
)
ENUMS = {
    "eval_strategy": "IntervalStrategy",
    "logging_strategy": "IntervalStrategy",
    "save_strategy": "SaveStrategy",
    "hub_strategy": "HubStrategy",
    "lr_scheduler_type": "SchedulerType",
    "optim": "OptimizerNames",
    "fsdp": "FSDPOption",
}
KEYS = (
    "loss_type",
    "scale_rewards",
    "importance_sampling_level",
    "multi_objective_aggregation",
    "vllm_mode",
    "vllm_importance_sampling_mode",
)
# attributes that code compares with words, and their keys
COMPARED = {
    "trl/trainer/grpo_trainer.py": {key: key for key in KEYS},
    "trl/generation/vllm_generation.py": {"mode": "vllm_mode"},
}
CHECKS = re.compile(
    r"trl/(trainer/(grpo_config|grpo_trainer|model_config)|scripts/(grpo|utils)"
    r"|generation/vllm_generation)\.py"
)
RESTS = (
    (
        "trl/generation/vllm_generation.py",
        "_iter_named_params",
        "GT107: rules/topology.py UNMERGES_EARLY",
    ),
    (
        "trl/trainer/grpo_trainer.py",
        "_compute_loss",
        "rules/loss.py: SCALES, LEVELS, CORRECTIONS, UNBIASED, and each loss",
    ),
    ("trl/trainer/grpo_trainer.py", "get_train_dataloader", "planning.py: batches and steps"),
    ("trl/trainer/grpo_trainer.py", "_get_train_sampler", "planning.py: batches and steps"),
    ("trl/trainer/utils.py", "RepeatSampler", "planning.py: batches and steps"),
    ("trl/trainer/callbacks.py", "SyncRefModelCallback", "rules/kl.py"),
    (
        "trl/scripts/utils.py",
        "parse_args_and_config",
        "frameworks/trl/recipe_rules.py: fate() of an unknown key",
    ),
    (
        "trl/scripts/grpo.py",
        "make_parser",
        "frameworks/trl/recipe_rules.py: fate() of an unknown key",
    ),
)
TESTS = (
    (
        "{environment}",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        "-m",
        "slow",
        "tests/rules/test_rules_against_trl.py",
        "tests/frameworks/test_against_trl_parser.py",
        "tests/linting/test_keys_and_versions.py",
    ),
)
BY_HAND = (
    "constraints.txt: the release that this project trains with, if `make slow` passes with it",
)


def classes_of(*packages: Package) -> dict[str, ast.ClassDef]:
    """The classes in the files that matter; those of later packages replace those of earlier
    ones.
    """
    trees = [package.tree(name) for package in packages for name in (*UNDER, *SOURCES)]
    return {
        node.name: node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


def fields(classes: dict[str, ast.ClassDef], name: str) -> Iterator[tuple[str, str, Any]]:
    """The init fields of a dataclass, those of its bases first, with a simple type and a literal
    default.
    """
    node = classes.get(name)
    if node is None:
        return
    for base in node.bases:
        yield from fields(classes, ast.unparse(base).rsplit(".", 1)[-1])
    for item in declared(node):
        if "init=False" not in (ast.unparse(item.value) if item.value else ""):
            yield ast.unparse(item.target), simple_type(item.annotation), default(item.value)


def declared(node: ast.ClassDef) -> Iterator[ast.AnnAssign]:
    """The fields that a class declares itself."""
    return (
        item
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    )


def simple_type(annotation: ast.expr) -> str:
    """int, float, bool, str or list where the field is nothing else, with ? where it may be None;
    any otherwise.
    """
    text = annotation.value if isinstance(annotation, ast.Constant) else ast.unparse(annotation)
    text = str(text)
    optional = "?" if "Optional[" in text or "None" in text else ""
    text = text.replace("Optional[", "").replace("Union[", "").replace("|", ",").replace("]", "")
    parts = {part.strip() for part in text.split(",")} - {"None"}
    if any(part.lower().startswith("list") for part in parts):
        return f"list{optional}"
    return (
        f"{next(iter(parts))}{optional}"
        if len(parts) == 1 and parts <= {"int", "float", "bool", "str"}
        else "any"
    )


def default(value: ast.expr | None) -> Any:
    """The default where it is a literal; None for factories and computed ones."""
    if isinstance(value, ast.Call):
        value = next((word.value for word in value.keywords if word.arg == "default"), None)
    try:
        found = ast.literal_eval(value) if value is not None else None
    except ValueError:
        return None
    return found if isinstance(found, (int, float, str)) else None


def choices(classes: dict[str, ast.ClassDef], trl: Package, under: Package) -> dict[str, list[str]]:
    """The words that a key takes: of enumerations, of declared choices, and those that the trainer
    compares it with.
    """
    found = {
        key: list(_constants(*classes[name].body)) for key, name in ENUMS.items() if name in classes
    }
    for item in declared(classes["ModelConfig"]) if "ModelConfig" in classes else ():
        given = {
            word.value: value
            for node in ast.walk(item)
            if isinstance(node, ast.Dict)
            for word, value in zip(node.keys, node.values, strict=True)
            if isinstance(word, ast.Constant)
        }
        if "choices" in given and ast.unparse(item.target) in ("dtype", "torch_dtype"):
            found[ast.unparse(item.target)] = ast.literal_eval(given["choices"])
    trackers = (
        node.value
        for node in ast.walk(under.tree(UNDER[3]))
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "INTEGRATION_TO_CALLBACK"
    )
    found["report_to"] = ["none", "all", *(key.value for node in trackers for key in node.keys)]  # type: ignore[attr-defined]
    found["accelerator_config"] = [name for name, _, _ in fields(classes, "AcceleratorConfig")]
    for file, names in COMPARED.items():
        for node in ast.walk(trl.tree(file)):
            if isinstance(node, ast.Compare) and (key := names.get(getattr(node.left, "attr", ""))):
                found.setdefault(key, []).extend(_constants(*node.comparators))
    return {key: list(dict.fromkeys(words)) for key, words in found.items() if words}


def _constants(*nodes: ast.AST) -> Iterator[str]:
    """The strings in some nodes that are one word: not a docstring."""
    every = (
        inner.value for node in nodes for inner in ast.walk(node) if isinstance(inner, ast.Constant)
    )
    return (value for value in every if isinstance(value, str) and re.fullmatch(r"\w+", value))


def imports(trl: Package) -> dict[str, list[Any]]:
    """What a script can import: the names in the package itself, and its modules (with a dot)."""
    modules = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in trl.names
        if name.startswith("trl/") and name.endswith(".py")
    }
    exported = {
        alias.asname or alias.name
        for node in ast.walk(trl.tree("trl/__init__.py"))
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    }
    return {name: [True] for name in sorted(modules - {"trl"} | exported)}


def histories(table: Table) -> dict[str, dict[str, History]]:
    """The parts of the table that grow."""
    keys = {name: entry["history"] for name, entry in table["keys"].items()}
    return {"keys": keys, **{part: table.setdefault(part, {}) for part in ("choices", "imports")}}


def releases(table: Table) -> list[str]:
    """The releases that the table knows, ascending."""
    return list(table["transformers"])


def drop(table: Table, release: str) -> None:
    """Take a release and all later ones out of the table."""
    found = histories(table)
    for history in found.values():
        cut(history, release)
    table["keys"] = {name: entry for name, entry in table["keys"].items() if name in found["keys"]}
    known = releases(table)
    for name in known[known.index(release) :] if release in known else ():
        del table["transformers"][name]


def add(table: Table, release: "Release") -> None:
    """Add a release to the table."""
    trl, version = (
        fetch(PACKAGE, release.version),
        release.known.get("transformers", {}).get(release.version),
    )
    table["transformers"][release.version] = version = version or release.resolved("transformers")
    under = fetch("transformers", version)
    classes = classes_of(under, trl)
    roots = ROOTS if "GRPOScriptArguments" in classes else {**ROOTS, "ScriptArguments": "script"}
    groups = {name: group for root, group in roots.items() for name, _, _ in fields(classes, root)}
    keys: dict[str, list[Any]] = {
        name: [kind, value] for root in roots for name, kind, value in fields(classes, root)
    }
    for name, group in groups.items():
        table["keys"].setdefault(name, {"in": group, "history": []})
    found = histories(table)
    words = in_order(choices(classes, trl, under), found["choices"])
    facts = {"keys": keys, "choices": words, "imports": imports(trl)}
    for part, now in facts.items():
        extend(found[part], release.version, now)


def text(table: Table) -> str:
    """The file."""
    parts = {part: dict(sorted(table[part].items())) for part in ("keys", "choices", "imports")}
    lines = [
        f' "transformers": {rows(table["transformers"])}',
        *(f' "{part}": {rows(found)}' for part, found in parts.items()),
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"
