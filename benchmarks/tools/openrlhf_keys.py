"""Make frameworks/openrlhf/keys.json: which options each OpenRLHF release takes, their types and defaults.

    git clone --bare https://github.com/OpenRLHF/OpenRLHF openrlhf.git
    python benchmarks/tools/openrlhf_keys.py openrlhf.git      # writes the table; the same tags give the same bytes

The options are those of openrlhf/cli/train_ppo_ray.py at each tag, read from its syntax tree: ``add_argument`` calls, also in
a loop over names. Nothing of OpenRLHF is imported. A tag such as v0.9.1.post1 counts as its release, and wins over it.
"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

TABLE = Path(__file__).resolve().parents[2] / "src" / "grporecipe" / "frameworks" / "openrlhf" / "keys.json"
SOURCE = "openrlhf/cli/train_ppo_ray.py"
Version = tuple[int, ...]
DOTTED: Version = (0, 10, 2)  # it named the options by sections: --rollout.batch_size
SPLIT = {  # one option until then, and one each of actor and critic since
    "max_norm": "actor.max_norm", "l2": "actor.adam.weight_decay", "actor_learning_rate": "actor.adam.lr",
    "critic_learning_rate": "critic.adam.lr", "lr_warmup_ratio": "actor.lr_warmup_ratio",
    "lr_scheduler": "actor.lr_scheduler", "reward_clip_range": "reward.clip_range",
}  # fmt: skip


def show(repository: Path, tag: str) -> str:
    """The source at a tag; empty where the tag has none."""
    command = ["git", "--git-dir", str(repository), "show", f"{tag}:{SOURCE}"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def tags(repository: Path) -> list[tuple[Version, str]]:
    """Every release and its last tag, ascending."""
    listed = subprocess.run(["git", "--git-dir", str(repository), "tag"], capture_output=True, text=True, check=True)
    found: dict[Version, tuple[int, str]] = {}
    for tag in listed.stdout.split():
        match = re.fullmatch(r"v(\d+)\.(\d+)\.(\d+)(?:\.post(\d+))?", tag)
        if match:
            version, post = tuple(map(int, match.groups()[:3])), int(match[4] or 0)
            found[version] = max(found.get(version, (-1, "")), (post, tag))
    return sorted((version, tag) for version, (_, tag) in found.items())


def options(source: str) -> dict[str, tuple[str, Any]]:
    """Every option with a simple type and its default."""
    return dict(_walk(ast.parse(source).body, {}))


def _walk(body: list[ast.stmt], names: dict[str, str]) -> Iterator[tuple[str, tuple[str, Any]]]:
    for statement in body:
        if isinstance(statement, ast.For) and isinstance(statement.target, ast.Name):
            for value in ast.literal_eval(statement.iter):
                yield from _walk(statement.body, {**names, statement.target.id: value})
        elif isinstance(statement, ast.If):
            yield from _walk(statement.body, names)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
                yield from _option(call, names)


def _option(call: ast.Call, names: dict[str, str]) -> Iterator[tuple[str, tuple[str, Any]]]:
    told = {word.arg: word.value for word in call.keywords}
    action = _value(told.get("action"), names)
    default = _value(told.get("default"), names)
    if action in ("store_true", "store_false"):
        kind, default = "bool", bool(default) if action == "store_true" else default
    elif "nargs" in told:
        kind = "list" if default is not None else "list?"
    else:
        kind = told["type"].id if isinstance(told.get("type"), ast.Name) else "str"  # type: ignore[attr-defined]  # checked
        kind = kind if kind in ("int", "float", "bool", "str") else "any"
        kind += "?" if default is None else ""
    for flag in call.args:
        name = str(_value(flag, names)).removeprefix("--").replace("-", "_")
        yield name, (kind, list(default) if isinstance(default, tuple) else default)


def _value(node: ast.expr | None, names: dict[str, str]) -> Any:
    """A literal, an f-string over the loop's names, or either branch's choice by them; None for what only runs."""
    if isinstance(node, ast.JoinedStr):
        parts = [part.value.id if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name) else part
                 for part in node.values]  # fmt: skip
        return "".join(names.get(part, "") if isinstance(part, str) else str(ast.literal_eval(part)) for part in parts)
    if isinstance(node, ast.IfExp) and isinstance(node.test, ast.Compare) and isinstance(node.test.left, ast.Name):
        is_so = names.get(node.test.left.id) == ast.literal_eval(node.test.comparators[0])
        return _value(node.body if is_so else node.orelse, names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "int":
        return int(ast.literal_eval(node.args[0]))
    try:
        found = ast.literal_eval(node) if node is not None else None
    except ValueError:
        return None
    return found if found is None or isinstance(found, (bool, int, float, str, list, tuple)) else None


def renames(before: str, after: str) -> dict[str, str]:
    """The options of one source under their names in the next, which names nearly all otherwise, in the same order."""
    old, new = options(before), options(after)
    gone, come = [name for name in old if name not in new], [name for name in new if name not in old]
    matcher = SequenceMatcher(
        None, [str(old[name]) for name in gone], [str(new[name]) for name in come], autojunk=False
    )
    pairs = [
        (gone[start + n], come[other + n]) for start, other, size in matcher.get_matching_blocks() for n in range(size)
    ]
    return {**dict(pairs), **SPLIT}


def table(repository: Path) -> dict[str, Any]:
    """Each option's history: [release, type, default] where it appears or either changes, [release] where it goes."""
    releases, history, last, renamed = [], {}, {}, {}  # type: ignore[var-annotated]  # filled below
    source = ""
    for version, tag in tags(repository):
        source, before = show(repository, tag), source
        if not source:
            continue
        if version == DOTTED:
            renamed = renames(before, source)
        release, now = ".".join(map(str, version)), options(source)
        releases.append(release)
        for name in sorted(last.keys() - now.keys()):
            history[name].append([release])
        for name, (kind, value) in now.items():
            if last.get(name) != (kind, value):
                history.setdefault(name, []).append([release, kind, value])
        last = now
    return {"releases": releases, "renamed": renamed, "keys": dict(sorted(history.items()))}


def main() -> None:
    """Write the table, one key a line."""
    made = table(Path(sys.argv[1]))
    renamed, keys = (
        ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in made[part].items())
        for part in ("renamed", "keys")
    )
    TABLE.parent.mkdir(exist_ok=True)
    text = f'{{\n "releases": {json.dumps(made["releases"])},\n "renamed": {{\n{renamed}\n }},\n "keys": {{\n{keys}\n }}\n}}\n'
    TABLE.write_text(text, encoding="utf-8")
    print(f"{len(made['keys'])} keys over {len(made['releases'])} releases: {TABLE}")


if __name__ == "__main__":
    main()
