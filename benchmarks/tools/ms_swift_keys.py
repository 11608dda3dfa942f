"""Make frameworks/ms_swift/keys.json: which keys `swift rlhf` takes, by release.

    make .venvs/ms-swift/ready
    .venvs/ms-swift/bin/python benchmarks/tools/ms_swift_keys.py              # the newest release, as its own parser tells
    python benchmarks/tools/ms_swift_keys.py --source REPOSITORY --wheels FOLDER      # what earlier releases had otherwise

Of the newest release a key is its type, its default where that is a plain value, and its choices where the parser names them.
Earlier releases are read from the git repository by their tags, from 3.1.1, the first with GRPO, and never imported: the
dataclasses behind RLHFArguments, and transformers' TrainingArguments from the wheels in FOLDER, one of 4.49, 4.57 and 5 at
least. FOLDER also holds ms-swift's newest wheel, which the parser's table is of. The same sources give the same bytes.
"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

TABLE = Path(__file__).resolve().parents[2] / "src" / "grporecipe" / "frameworks" / "ms_swift" / "keys.json"
FIRST = (3, 1, 1)
FILES = re.compile(r"swift/(?!megatron|ui|.*webui).*arg(ument)?s?[^/]*(/[^/]+)*\.py$")
PLAIN = ("int", "float", "bool", "str")
Classes = dict[str, ast.ClassDef]


def parsed() -> dict[str, Any]:
    """The newest release's keys, from its own parser; only here ms-swift is imported."""
    from importlib.metadata import version

    from swift.arguments import RLHFArguments
    from swift.utils.utils import _patch_get_type_hints
    from transformers import HfArgumentParser
    from transformers.hf_argparser import string_to_bool

    kinds = {int: "int", float: "float", str: "str", string_to_bool: "bool"}

    def entry(action: Any) -> list[Any]:
        """Type (with ? where None is its default), default, choices."""
        kind = kinds.get(action.type, "str")  # a choice is a function of its own
        if action.nargs in ("+", "*"):
            kind = "list"
        default = action.default if isinstance(action.default, (int, float, str)) else None
        optional = "?" if action.default is None else ""
        choices = [str(choice) for choice in action.choices] if action.choices else []
        return [kind + optional, getattr(default, "value", default), *([choices] if choices else [])]

    with _patch_get_type_hints():
        parser = HfArgumentParser([RLHFArguments])
    # A flag that is on by default has a second action, --no_<flag>, for the same key.
    keys = {action.dest: entry(action) for action in reversed(parser._actions) if action.dest != "help"}
    return {"version": version("ms-swift"), "transformers": version("transformers"), "keys": keys}


def classes(sources: dict[str, bytes]) -> Classes:
    """The classes in some files."""
    trees = (ast.parse(text) for _, text in sorted(sources.items()))
    return {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


def fields(known: Classes, name: str) -> Iterator[tuple[str, list[Any]]]:
    """The fields of a dataclass, in the order in which later ones replace earlier ones."""
    node = known.get(name)
    if node is None:
        return
    for base in reversed(node.bases):
        yield from fields(known, ast.unparse(base).rsplit(".", 1)[-1])
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            value = ast.unparse(item.value) if item.value else ""
            if "init=False" not in value and not ast.unparse(item.annotation).startswith("ClassVar"):
                yield item.target.id, entry_of(item.annotation, item.value)


def entry_of(annotation: ast.expr, value: ast.expr | None) -> list[Any]:
    """Type, default and choices of a field, as transformers' HfArgumentParser makes an option of it."""
    text = str(annotation.value) if isinstance(annotation, ast.Constant) else ast.unparse(annotation)
    found = default(value)
    chosen = re.search(r"Literal\[(.*?)\]", text)
    choices = [str(choice) for choice in ast.literal_eval(f"[{chosen[1]}]")] if chosen else []
    words = re.findall(r"\w+", text.replace("Optional", "").replace("Union", "").replace("None", ""))
    is_list = bool(words) and words[0].lower() == "list"
    kind = "list" if is_list else words[0] if words and words[0] in PLAIN and len({*words}) == 1 else "str"
    return [kind + ("?" if found is None else ""), found, *([choices] if choices else [])]


def default(value: ast.expr | None) -> Any:
    """The default where it is a literal; None for factories and computed ones."""
    if isinstance(value, ast.Call):
        value = next((word.value for word in value.keywords if word.arg == "default"), None)
    try:
        found = ast.literal_eval(value) if value is not None else None
    except ValueError:
        return None
    return found if isinstance(found, (int, float, str)) else None


def git(source: Path, *words: str) -> bytes:
    """What a git command prints."""
    return subprocess.run(["git", "--git-dir", str(source), *words], capture_output=True, check=True).stdout


def releases(source: Path) -> list[tuple[int, ...]]:
    """Every tagged release with GRPO, ascending; corrections of a package (post) have the same arguments."""
    tags = git(source, "tag").decode().split()
    return sorted(
        version for tag in tags if re.fullmatch(r"v\d+\.\d+\.\d+", tag)
        for version in [tuple(int(part) for part in tag[1:].split("."))] if version >= FIRST
    )  # fmt: skip


def of_wheel(path: Path, pattern: re.Pattern[str]) -> Classes:
    """The classes in a wheel's files whose names match."""
    with ZipFile(path) as archive:
        return classes({name: archive.read(name) for name in archive.namelist() if pattern.search(name)})


def earlier(source: Path, wheels: Path, newest: dict[str, Any]) -> dict[str, Any]:
    """What earlier releases had otherwise: of each such key ``[release, type, default, choices]``, or ``[release]`` without it.

    The last entry is the newest release's where a key was not as it is now until then.
    """
    under = [
        of_wheel(path, re.compile(r"transformers/training_args")) for path in sorted(wheels.glob("transformers-*.whl"))
    ]
    (wheel,) = wheels.glob(f"ms_swift-{newest['version']}-*.whl")
    tables = {}
    for version in releases(source):
        tag = "v" + ".".join(map(str, version))
        names = [
            name for name in git(source, "ls-tree", "-r", "--name-only", tag).decode().split() if FILES.match(name)
        ]
        tables[tag[1:]] = classes({name: git(source, "show", f"{tag}:{name}") for name in names})
    tables[newest["version"]] = of_wheel(wheel, FILES)
    trainers = [dict(fields(found, "Seq2SeqTrainingArguments")) for found in under]
    made = {}
    for version, own in tables.items():
        is_old = int(version.split(".")[0]) < 4  # ms-swift 3 wants a transformers before 5
        shared = {name: entry for found in (trainers[:-1] if is_old else trainers) for name, entry in found.items()}
        made[version] = {**shared, **dict(fields(own, "RLHFArguments"))}
    return {name: spans for name in sorted({*newest["keys"], *(name for found in made.values() for name in found)})
            if (spans := history(name, made, newest))}  # fmt: skip


def history(name: str, made: dict[str, dict[str, list[Any]]], newest: dict[str, Any]) -> list[list[Any]]:
    """The changes of one key over the releases; nothing where it always was what it is now."""
    own, found = made[newest["version"]].get(name), list[list[Any]]()
    now = newest["keys"].get(name)
    if own is None and now is not None:
        return []  # a key of a newer transformers than the installed one
    last: list[Any] = []
    for version, keys in made.items():
        entry = keys.get(name, [])
        is_newest = version == newest["version"]
        entry = (
            (now or []) if is_newest or (entry == own and now) else entry
        )  # the parser's own words where it is as now
        if entry != last:
            found.append([version, *entry])
            last = entry
    return [] if len(found) == 1 and found[0][1:] == now and found[0][0] == next(iter(made)) else found


def write(made: dict[str, Any]) -> None:
    """Write the table, one key a line."""
    parts = [f' "version": "{made["version"]}",\n "transformers": "{made["transformers"]}"']
    for part in ("releases", "keys", "earlier"):
        if isinstance(made.get(part), list):
            parts.append(f' "{part}": {json.dumps(made[part])}')
        elif part in made:
            lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(made[part][name])}" for name in sorted(made[part]))
            parts.append(f' "{part}": {{\n{lines}\n }}')
    TABLE.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    print(f"{len(made['keys'])} keys, {len(made.get('earlier', {}))} of which were others before: {TABLE}")


def main() -> None:
    """Write one of the two halves; the other stays as it is."""
    made = json.loads(TABLE.read_text(encoding="utf-8"))
    if "--source" in sys.argv:
        source, wheels = (Path(sys.argv[sys.argv.index(word) + 1]) for word in ("--source", "--wheels"))
        made["releases"] = [*(".".join(map(str, version)) for version in releases(source)), made["version"]]
        made["earlier"] = earlier(source, wheels, made)
    else:
        made |= parsed()
    write(made)


if __name__ == "__main__":
    main()
