"""Make frameworks/trl/keys.json: which keys each TRL release takes, and their defaults, read from the wheels themselves.

    pip download --no-deps -d wheels trl==1.16.0        # and every other release, and some of transformers
    python benchmarks/tools/trl_keys.py wheels          # writes the table; the same wheels give the same bytes

A recipe for TRL's script is read into four dataclasses: GRPOScriptArguments, GRPOConfig (with transformers'
TrainingArguments under it), ModelConfig and DatasetMixtureConfig. "async" has what AsyncGRPOConfig declares itself, and the
keys of GRPOConfig that it does not take. A wheel is parsed, never imported. Each TRL release is
paired with the newest transformers wheel that was built no later than it, and the newest release with the newest.
"""

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

TABLE = Path(__file__).resolve().parents[2] / "src" / "grporecipe" / "frameworks" / "trl" / "keys.json"
ROOTS = {
    "GRPOConfig": "config",
    "GRPOScriptArguments": "script",
    "ModelConfig": "model",
    "DatasetMixtureConfig": "data",
}
ASYNC = "AsyncGRPOConfig"  # of the trainer that generates asynchronously: its keys are not those of GRPOConfig
SOURCES = (
    "trl/trainer/grpo_config.py",
    "trl/trainer/base_config.py",
    "trl/trainer/model_config.py",
    "trl/experimental/async_grpo/async_grpo_config.py",
    "trl/trainer/async_grpo_config.py",  # since 1.18
    "trl/scripts/grpo.py",
    "trl/scripts/utils.py",
    "trl/utils.py",
    "transformers/training_args.py",
)
Version = tuple[int, ...]
KeySpec = tuple[str, str, Any]  # group, type, default


class Wheel:
    """One wheel: its version, its day, and the dataclasses in the files that matter."""

    def __init__(self, path: Path):
        self.version: Version = tuple(int(part) for part in path.name.split("-")[1].split("."))
        self.classes: dict[str, ast.ClassDef] = {}
        with ZipFile(path) as archive:
            entries = {entry.filename: entry for entry in archive.infolist()}
            self.day = max(entry.date_time for entry in entries.values())
            for name in SOURCES:
                if name in entries:
                    tree = ast.parse(archive.read(name))
                    self.classes |= {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def fields(classes: dict[str, ast.ClassDef], name: str) -> Iterator[tuple[str, str, Any]]:
    """The init fields of a dataclass, those of its bases first, with a simple type and a literal default."""
    node = classes.get(name)
    if node is None:
        return
    for base in node.bases:
        yield from fields(classes, ast.unparse(base).rsplit(".", 1)[-1])
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and is_init(item.value):
            yield item.target.id, simple_type(item.annotation), default(item.value)


def is_init(value: ast.expr | None) -> bool:
    """A field that the constructor takes."""
    return "init=False" not in (ast.unparse(value) if value else "")


def simple_type(annotation: ast.expr) -> str:
    """int, float, bool, str or list where the field is nothing else, with ? where it may be None; any otherwise."""
    text = annotation.value if isinstance(annotation, ast.Constant) else ast.unparse(annotation)
    text = str(text)
    optional = "?" if "Optional[" in text or "None" in text else ""
    text = text.replace("Optional[", "").replace("Union[", "").replace("|", ",").replace("]", "")
    parts = {part.strip() for part in text.split(",")} - {"None"}
    if any(part.lower().startswith("list") for part in parts):
        return f"list{optional}"
    return f"{next(iter(parts))}{optional}" if len(parts) == 1 and parts <= {"int", "float", "bool", "str"} else "any"


def default(value: ast.expr | None) -> Any:
    """The default where it is a literal; None for factories and computed ones."""
    if isinstance(value, ast.Call):
        value = next((word.value for word in value.keywords if word.arg == "default"), None)
    try:
        found = ast.literal_eval(value) if value is not None else None
    except ValueError:
        return None
    return found if isinstance(found, (int, float, str)) else None


def keys(trl: Wheel, transformers: Wheel) -> dict[str, KeySpec]:
    """Every key that a recipe for this pair may set."""
    classes = transformers.classes | trl.classes
    roots = dict(ROOTS)
    if "GRPOScriptArguments" not in classes:
        roots["ScriptArguments"] = "script"
    return {name: (group, kind, value) for root, group in roots.items() for name, kind, value in fields(classes, root)}


def asynchronous(trl: Wheel, transformers: Wheel) -> dict[str, KeySpec | None]:
    """The keys that AsyncGRPOConfig declares itself, and None for those of GRPOConfig that it does not take."""
    classes = transformers.classes | trl.classes
    if ASYNC not in classes:
        return {}
    every = {name: ("", kind, value) for name, kind, value in fields(classes, ASYNC)}
    own = {item.target.id for item in classes[ASYNC].body
           if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)}  # fmt: skip
    absent = dict.fromkeys(name for name, _, _ in fields(classes, "GRPOConfig") if name not in every)
    return {**{name: every[name] for name in own & every.keys()}, **absent}


def pair(trl: Wheel, transformers: list[Wheel], newest: bool) -> Wheel:
    """The transformers of the time."""
    return transformers[-1] if newest else [wheel for wheel in transformers if wheel.day <= trl.day][-1]


def text(version: Version) -> str:
    """1.16.0."""
    return ".".join(str(part) for part in version)


def table(folder: Path) -> dict[str, Any]:
    """Each key's history: [release, type, default] where it appears or either changes, [release] where it goes."""
    releases = sorted((Wheel(path) for path in folder.glob("trl-*.whl")), key=lambda wheel: wheel.version)
    transformers = sorted((Wheel(path) for path in folder.glob("transformers-*.whl")), key=lambda wheel: wheel.version)
    pairs, history, last = {}, {}, {}  # type: ignore[var-annotated]  # filled below
    others: dict[str, list[Any]] = {}
    for release in releases:
        under = pair(release, transformers, newest=release is releases[-1])
        pairs[text(release.version)] = text(under.version)
        now = keys(release, under)
        for name in sorted(set(last) - set(now)):
            history[name]["history"].append([text(release.version)])
        for name, (group, kind, value) in now.items():
            entry = history.setdefault(name, {"in": group, "history": []})
            if last.get(name, ())[1:] != (kind, value):
                entry["history"].append([text(release.version), kind, value])
        last = now
        for name, spec in asynchronous(release, under).items():
            said = [text(release.version), *(spec or ())[1:]]
            if name not in others or others[name][-1][1:] != said[1:]:
                others.setdefault(name, []).append(said)
    return {"transformers": pairs, "keys": dict(sorted(history.items())), "async": dict(sorted(others.items()))}


def main() -> None:
    """Write the table, one key a line."""
    made = table(Path(sys.argv[1]))
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in made["keys"].items())
    pairs = ",\n".join(f"  {json.dumps(name)}: {json.dumps(under)}" for name, under in made["transformers"].items())
    others = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in made["async"].items())
    tables = f' "transformers": {{\n{pairs}\n }},\n "keys": {{\n{lines}\n }},\n "async": {{\n{others}\n }}'
    TABLE.write_text(f"{{\n{tables}\n}}\n", encoding="utf-8")
    print(f"{len(made['keys'])} keys over {len(made['transformers'])} releases: {TABLE}")


if __name__ == "__main__":
    main()
