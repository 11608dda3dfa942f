"""Read verl's releases into frameworks/verl/keys.json: keys and defaults, by engine.

The configuration in each release's wheel is composed by Hydra, once for each engine. All releases
are read again each time. A key has a history: ``[release, default]`` for each change, ``[release]``
where it left. Keys stand by their section, a section a line. An engine other than FSDP (``dp``) has
the keys whose history is another one.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from tables import FRAMEWORKS, History, extend, fetch

from grporecipe.model.releases import parse_release
from grporecipe.model.values import flatten

if TYPE_CHECKING:
    from release import Release

PACKAGE, NAME = "verl", "verl"
TARGET = FRAMEWORKS / "verl" / "keys.json"
# the environment of `make verl`
PINNED = "benchmarks/frameworks/verl_alone.txt"
CORE = "verl/trainer/ppo/core_algos.py"
CHECKS = re.compile(
    r"verl/(utils/(config|seqlen_balancing)|trainer/(main_ppo|ppo/(core_algos|ray_trainer"
    r"|utils))|trainer/config/\w+"
    r"|workers/config/\w+|workers/engine_workers|workers/(actor|critic|rollout)/\w+)\.py"
)
RESTS = (
    (CORE, "@register_adv_est", "frameworks/verl/choices.yaml: the estimators"),
    (CORE, "@register_policy_loss", "frameworks/verl/choices.yaml: the losses"),
    (CORE, "AdvantageEstimator", "frameworks/verl/choices.yaml: the estimators"),
    (CORE, "agg_loss", "frameworks/verl/recipes.py: AVERAGES"),
    (CORE, "kl_penalty_forward", "frameworks/verl/choices.yaml: kl_loss_type"),
    (
        "verl/workers/rollout/base.py",
        "_ROLLOUT_REGISTRY",
        "frameworks/verl/choices.yaml: the engines of rollouts",
    ),
    ("verl/utils/config.py", "validate_config", "frameworks/verl/rules.py: sizes"),
)
TESTS = (("make", "verl"), ("make", "verl-releases"))
BY_HAND = (
    "frameworks/verl/fields.yaml; recipes.py: OWN, with before= for a renamed key; keys.py: "
    "unread(), for one that nothing reads any more",
    "frameworks/verl/source.py: where its source keeps keys, if the configuration moved",
)
CONFIG = "verl/trainer/config/"
ENGINES = ("dp", "megatron", "veomni", "torchtitan", "mindspeed")
Histories = dict[str, History]


def composed(folder: Path, engine: str) -> dict[str, Any] | None:
    """Return every dotted key of a configuration with its default; None where the release has no
    such engine.
    """
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
        archive.extractall(
            scratch, [name for name in archive.namelist() if name.startswith(CONFIG)]
        )
        for engine in ENGINES:
            if (found := composed(Path(scratch) / CONFIG, engine)) is not None:
                yield engine, found


def overlay(engine: Histories, dp: Histories, since: str) -> Histories:
    """Return what an engine that came with a release has otherwise than FSDP; a key that it lacks
    leaves at once.
    """
    other = {
        name: changes
        for name, changes in engine.items()
        if _from(dp.get(name, []), since) != changes
    }
    return {
        **other,
        **{name: [[since]] for name in dp.keys() - engine.keys() if _from(dp[name], since)},
    }


def _from(changes: History, since: str) -> History:
    """Return a history as one that begins with a release."""
    before = [change for change in changes if parse_release(change[0]) <= parse_release(since)]
    after = [change for change in changes if parse_release(change[0]) > parse_release(since)]
    first = [[since, *before[-1][1:]]] if before and len(before[-1]) > 1 else []
    return [*first, *after]


def lines(table: Histories) -> str:
    """Return a table as JSON with a line for each section."""
    sections: dict[str, Histories] = {}
    for name, changes in sorted(table.items()):
        section, _, key = name.rpartition(".")
        sections.setdefault(section, {})[key] = changes
    rows = (
        f"  {json.dumps(name)}: {json.dumps(keys, separators=(',', ':'))}"
        for name, keys in sorted(sections.items())
    )
    return "{\n" + ",\n".join(rows) + "\n }"


def histories(table: dict[str, Any]) -> dict[str, Histories]:
    """The keys of each engine."""
    return {
        engine: {
            f"{section}.{key}".strip("."): changes
            for section, keys in table[engine].items()
            for key, changes in keys.items()
        }
        for engine in ENGINES
        if engine in table
    }


def releases(table: dict[str, Any]) -> list[str]:
    """The releases that the table knows, ascending."""
    return list(table["releases"])


def drop(table: dict[str, Any], release: str) -> None:
    """Take a release and all later ones out of the table."""
    known = releases(table)
    table["releases"] = known[: known.index(release)] if release in known else known


def add(table: dict[str, Any], release: "Release") -> None:
    """Add a release to the table; `text` reads it."""
    table["releases"].append(release.version)


def text(table: dict[str, Any]) -> str:
    """The file, from all releases."""
    found: dict[str, Histories] = {}
    spans: dict[str, list[str]] = {}
    for release in table["releases"]:
        for engine, config in configurations(fetch(PACKAGE, release).path):
            extend(
                found.setdefault(engine, {}),
                release,
                {name: [default] for name, default in config.items()},
            )
            spans.setdefault(engine, []).append(release)
    dp = found.pop("dp")
    written = {
        "dp": dp,
        **{engine: overlay(own, dp, spans[engine][0]) for engine, own in found.items()},
    }
    sections = [f' "{engine}": {lines(own)}' for engine, own in written.items()]
    head = f' "releases": {json.dumps(table["releases"])},\n "engines": {json.dumps(spans)},\n'
    return "{\n" + head + ",\n".join(sections) + "\n}\n"
