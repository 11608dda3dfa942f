"""Writes src/grporecipe/frameworks/verl/keys.json from verl's wheels, one for each release.

    for v in 0.1 0.2.0.post2 0.3.0.post1 0.4.0 ... 0.9.1; do pip download --no-deps verl==$v; done
    python benchmarks/tools/verl_keys.py FOLDER-OF-WHEELS

The configuration in each wheel is composed by Hydra, once for each engine. Of several post releases the last one counts.
A key has a history: ``[release, default]`` for each change, ``[release]`` where it left. Keys stand by their section, a
section a line. An engine other than FSDP (``dp``) has the keys whose history is another one.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from grporecipe.model.releases import parse_release
from grporecipe.model.values import flatten

TARGET = Path(__file__).parents[2] / "src" / "grporecipe" / "frameworks" / "verl" / "keys.json"
CONFIG = "verl/trainer/config/"
ENGINES = ("dp", "megatron", "veomni", "torchtitan", "mindspeed")
Table = dict[str, list[Any]]


def release_of(wheel: Path) -> tuple[str, int]:
    """Return the three numbers of a wheel's release, and its post release."""
    numbers = wheel.name.split("-")[1].split(".")
    post = [int(part.removeprefix("post")) for part in numbers if part.startswith("post")]
    plain = [part for part in numbers if part.isdigit()]
    return ".".join((*plain, "0", "0")[:3]), max(post, default=0)


def newest(folder: Path) -> dict[str, Path]:
    """Return the wheel of each release, releases ascending."""
    wheels = sorted(folder.glob("verl-*.whl"), key=release_of)
    found = {release_of(wheel)[0]: wheel for wheel in wheels}
    return dict(sorted(found.items(), key=lambda item: parse_release(item[0])))


def composed(folder: Path, engine: str) -> dict[str, Any] | None:
    """Return every dotted key of a configuration with its default; None where the release has no such engine."""
    group = (folder / "model_engine" / f"{engine}.yaml").is_file()
    own = folder / f"ppo_{engine}_trainer.yaml"
    if engine != "dp" and not group and not own.is_file():
        return None
    name = own.stem if own.is_file() else "ppo_trainer"
    overrides = [f"model_engine={engine}"] if group and not own.is_file() else []
    with initialize_config_dir(str(folder), version_base=None):
        config = OmegaConf.to_container(compose(name, overrides=overrides), resolve=False)
    assert isinstance(config, dict)
    return flatten({str(key): value for key, value in config.items()})


def configurations(wheel: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the engines of a release with their configurations."""
    with TemporaryDirectory() as scratch, ZipFile(wheel) as archive:
        archive.extractall(scratch, [name for name in archive.namelist() if name.startswith(CONFIG)])
        for engine in ENGINES:
            if (found := composed(Path(scratch) / CONFIG, engine)) is not None:
                yield engine, found


def history(releases: dict[str, dict[str, Any]]) -> Table:
    """Return the changes of each key: where it came, changed its default, and left."""
    found: Table = {}
    last: dict[str, Any] = {}
    for release, now in releases.items():
        for name in last.keys() - now.keys():
            found[name].append([release])
        for name, default in now.items():
            if name not in last or repr(last[name]) != repr(default):  # 0 is not False
                found.setdefault(name, []).append([release, default])
        last = now
    return found


def overlay(engine: Table, dp: Table, since: str) -> Table:
    """Return what an engine that came with a release has otherwise than FSDP; a key that it lacks leaves at once."""
    other = {name: changes for name, changes in engine.items() if _from(dp.get(name, []), since) != changes}
    return {**other, **{name: [[since]] for name in dp.keys() - engine.keys() if _from(dp[name], since)}}


def _from(changes: list[Any], since: str) -> list[Any]:
    """Return a history as one that begins with a release."""
    before = [change for change in changes if parse_release(change[0]) <= parse_release(since)]
    after = [change for change in changes if parse_release(change[0]) > parse_release(since)]
    first = [[since, *before[-1][1:]]] if before and len(before[-1]) > 1 else []
    return [*first, *after]


def lines(table: Table) -> str:
    """Return a table as JSON with a line for each section."""
    sections: dict[str, Table] = {}
    for name, changes in sorted(table.items()):
        section, _, key = name.rpartition(".")
        sections.setdefault(section, {})[key] = changes
    rows = (
        f"  {json.dumps(name)}: {json.dumps(keys, separators=(',', ':'))}" for name, keys in sorted(sections.items())
    )
    return "{\n" + ",\n".join(rows) + "\n }"


def main(folder: Path) -> None:
    """Write the table."""
    by_engine: dict[str, dict[str, dict[str, Any]]] = {}
    wheels = newest(folder)
    for release, wheel in wheels.items():
        for engine, config in configurations(wheel):
            by_engine.setdefault(engine, {})[release] = config
    tables = {engine: history(releases) for engine, releases in by_engine.items()}
    dp = tables.pop("dp")
    written = {"dp": dp, **{name: overlay(table, dp, next(iter(by_engine[name]))) for name, table in tables.items()}}
    sections = [f' "{engine}": {lines(table)}' for engine, table in written.items()]
    spans = {engine: list(releases) for engine, releases in by_engine.items()}
    head = f' "releases": {json.dumps(list(wheels))},\n "engines": {json.dumps(spans)},\n'
    TARGET.write_text("{\n" + head + ",\n".join(sections) + "\n}\n")
    print(f"{len(wheels)} releases, {sum(map(len, written.values()))} histories in {TARGET}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
