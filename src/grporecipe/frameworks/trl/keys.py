"""TRL's keys and choices by release, and the successors of removed keys.

`make trl-release` (benchmarks/tools/trl_keys.py) writes ``keys.json`` from TRL's wheels, each with
the transformers release of its time. Sources: the releases themselves, transformers 5
MIGRATION_GUIDE_V5.md, TRL's release notes.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

from grporecipe.errors import UserError
from grporecipe.files import Config, Json, read_own_yaml
from grporecipe.model.recipe import KeySpec, Recipe
from grporecipe.model.releases import (
    KeyTable,
    change_at,
    key_span,
    keys_at_release,
    load_table,
    releases_of,
)
from grporecipe.model.setting import Version
from grporecipe.model.values import Names

table = partial(load_table, __package__)
releases = partial(releases_of, __package__, "transformers")


def parse_version(text: str) -> Version:
    """Return ``1.10`` or ``v0.18.0`` as a version.

    Raises UserError for anything else, and for releases before 0.14.0, the first with GRPO.
    """
    match = re.fullmatch(
        r"v?(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?(?:\.?(?:dev|rc|a|b|post)\d*)?", str(text).strip()
    )
    if not match:
        raise UserError(
            f"TRL version {str(text)[:40]!r}: a version has two or three numbers. Write it like "
            "1.16 or 0.18.0."
        )
    version = (int(match[1]), int(match[2]), int(match[3] or 0))
    if version < releases()[0]:
        raise UserError(
            f"TRL version {text}: GRPO came with TRL 0.14.0, so there is nothing to check "
            "before it."
        )
    return version


def installed() -> Version | None:
    """Return the TRL release of this environment; None without TRL, or if its version is not
    understood.
    """
    # a tenth of the start of a command that does not ask
    from importlib.metadata import PackageNotFoundError, version

    try:
        return parse_version(version("trl"))
    except (PackageNotFoundError, UserError):
        return None


@lru_cache(maxsize=128)
def known(version: Version) -> KeyTable:
    """Return every key that a recipe may set, for the newest release that is not newer than
    ``version``.
    """
    return keys_at_release(
        {name: known["history"] for name, known in table()["keys"].items()}, version
    )


@cache
def choices(key: str) -> Names:
    """Return the words that a key takes in any release, those of the newest one first."""
    words: dict[str, None] = {}
    for change in reversed(table()["choices"][key]):
        if len(change) > 1:
            words |= dict.fromkeys(change[1])
    return tuple(words)


@cache
def losses(version: Version) -> Names:
    """Return the losses of a release; empty before it had the key."""
    change = change_at(table()["choices"]["loss_type"], version)
    if len(change) > 1:
        return tuple(change[1])
    return ()


OF_ASYNC = frozenset(["max_inflight_tasks", "max_staleness", "queue_maxsize", "weight_sync_steps"])


def is_async(recipe: Recipe) -> bool:
    """Return whether a recipe is for TRL's AsyncGRPOTrainer, by its class or by keys that only it
    has.
    """
    is_built = recipe.code.trainer == "AsyncGRPOTrainer"
    return is_built or not OF_ASYNC.isdisjoint(recipe.config)


def span_of_import(name: str) -> tuple[Version, Version | None] | None:
    """Return the releases that added and removed a name or a module of TRL, as `span` does for a
    key.
    """
    imports = table()["imports"]
    return key_span(imports.get(name) or imports.get(f"trl.{name}"))


@lru_cache(maxsize=1024)
def span(name: str) -> tuple[Version, Version | None] | None:
    """Return the releases that added and removed a key (None: still there); None for a key that
    never existed.
    """
    return key_span(table()["keys"].get(name, {}).get("history"))


def is_familiar(key: str) -> bool:
    """Return whether a key is one of any release, or a habit of users."""
    return key in HABITS or key in OF_ASYNC or span(key) is not None


def transformers(version: Version) -> str:
    """Return the transformers release that a TRL release was paired with."""
    names = list(table()["transformers"].values())
    return str(names[max(bisect_right(releases(), version) - 1, 0)])


NAMES = read_own_yaml(__file__, "names.yaml")
PASSED_ON = frozenset(NAMES["passed_on"])
RENAMES: Mapping[str, str] = NAMES["renames"]
HABITS: Mapping[str, str] = NAMES["habits"]
DROPPED: Mapping[str, Config] = NAMES["dropped"]
BACK = {new: old for old, new in RENAMES.items()}


class Replacement(NamedTuple):
    """A remedy for a key: the reason, the change of keys (None removes one), and whether training
    stays the same.
    """

    reason: str = ""
    change: Json | None = None
    safe: bool = False


def instead(key: str, config: Config, takes: Mapping[str, KeySpec]) -> Replacement:
    """Return the remedy for a key that these versions do not take."""
    value = config.get(key)
    if key == "warmup_ratio":
        return _warmup(value, config)
    new = RENAMES.get(key) or BACK.get(key, "")
    if new in takes:
        if new not in config:
            reason = f"its name in this release is {new}"
            return Replacement(reason, {key: None, new: value}, safe=True)
        return Replacement(f"{new} replaced it, and is set", {key: None}, safe=config[new] == value)
    if dropped := DROPPED.get(key):
        # 1 is not true
        is_harmless = any(
            type(value) is type(other) and value == other for other in dropped["harmless"]
        )
        return Replacement(dropped["why"], {key: None}, safe=is_harmless)
    return Replacement("", {key: None}, safe=True) if value is None else Replacement()


def _warmup(ratio: Any, config: Config) -> Replacement:
    """Return the remedy for warmup_ratio. Transformers 5 reads warmup_steps below 1 as a share.

    If both are set, warmup_steps wins in every version.
    """
    steps = config.get("warmup_steps")
    if not ratio or steps:
        return Replacement("warmup_steps replaced it", {"warmup_ratio": None}, safe=True)
    reason = "warmup_steps below 1 is a share of all steps"
    is_share = isinstance(ratio, (int, float)) and 0 < ratio < 1
    if is_share:
        return Replacement(reason, {"warmup_ratio": None, "warmup_steps": ratio}, safe=True)
    return Replacement(reason)
