"""Which version of a framework a recipe is judged by, and what says so.

In this order: an option, the project's settings, what the repository pins, the framework's own source in the repository, the
releases that take all keys of the recipe, the default.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from grposweep.errors import UserError
from grposweep.frameworks import FRAMEWORKS, version_of
from grposweep.frameworks.base import Framework, closest_keys, text
from grposweep.frameworks.dotted import is_taken
from grposweep.frameworks.parsing.yaml_text import convert
from grposweep.recipe import KeySpec, Recipe, VersionSource
from grposweep.setting import Version

NOT_A_FILE = VersionSource("asked", "default", "the release that is judged by where no version is given")


BY_DEFAULT = VersionSource("keys", "the keys", "all are of this release, the default")


class Wanted(NamedTuple):
    """The versions that a caller asks for: of any framework (``any``), of TRL, or a release that was parsed before."""

    any: str | None = None
    trl: str | None = None
    release: Version | None = None


class Judged(NamedTuple):
    """The version to judge by, what says so, and the keys of the framework's own source where that counts."""

    version: Version
    source: VersionSource
    vendored: Mapping[str, KeySpec] | None = None


def find_version(name: str, config: Mapping[str, Any], wanted: Wanted, file: Path | None, **more: Any) -> Judged:
    """Return the version to judge a recipe by; ``more`` are its other fields.

    Raises UserError for a version that cannot be judged.
    """
    framework = FRAMEWORKS[name]
    asked = _asked(framework, wanted)
    if asked is not None:
        return asked
    if file is None:  # a caller that gives no version asks for the default
        return Judged(framework.version, NOT_A_FILE)
    probe = Recipe(name, framework.version, config, file=str(file), **more)
    return _by_keys(framework, probe, releases_of(framework))


def _asked(framework: Framework, wanted: Wanted) -> Judged | None:
    if wanted.release is not None:
        return Judged(wanted.release, VersionSource("asked", "the caller", text(wanted.release)))
    if wanted.trl is not None and framework.traits.follows_trl:
        return Judged(version_of(framework.name, wanted.trl), VersionSource("asked", "--trl-version", wanted.trl))
    if wanted.any is not None:
        return Judged(version_of(framework.name, wanted.any), VersionSource("asked", "--framework-version", wanted.any))
    if wanted.trl is not None:
        raise UserError(
            f"--trl-version {wanted.trl}: this is a recipe of {framework.traits.display_name}, which has versions of its "
            "own. Use --framework-version."
        )
    return None


def releases_of(framework: Framework) -> Sequence[Version]:
    """Return the releases that a framework's table knows, ascending."""
    return framework.releases() if framework.releases else (framework.version,)


def misfits(recipe: Recipe) -> frozenset[str]:
    """Return the keys that a recipe's release does not take, or not with their value."""
    framework = FRAMEWORKS[recipe.framework]
    if framework.misfits is not None:
        return frozenset(framework.misfits(recipe))
    takes = framework.known_keys(recipe)
    if recipe.code is not None:
        takes = {**takes, **recipe.code.declares}
    if not framework.is_dotted:
        own = framework.passed_on | {framework.environment_key}
        return frozenset(
            key for key, value in recipe.config.items() if key not in own and not _fits(value, takes.get(key))
        )
    return frozenset(key for key in recipe.config if not is_taken(key, takes))


def _fits(value: Any, spec: KeySpec | None) -> bool:
    """Return whether a release has a key, and its parser reads this value of it; a list may be a script's words."""
    return spec is not None and (isinstance(value, list) or convert(value, spec.type).trouble != "type")


def _misfits_by_release(recipe: Recipe, releases: Iterable[Version]) -> dict[Version, frozenset[str]]:
    return {release: misfits(replace(recipe, version=release)) for release in releases}


def misfits_elsewhere(recipe: Recipe) -> frozenset[str]:
    """Return the keys that a recipe's release does not take, and another one does."""
    own = misfits(recipe)
    if not own:
        return own
    by_release = _misfits_by_release(recipe, releases_of(FRAMEWORKS[recipe.framework]))
    return own - frozenset.intersection(*by_release.values())


def fitting_releases(recipe: Recipe) -> list[Version]:
    """Return the releases that take all keys of a recipe, except those that no release takes."""
    by_release = _misfits_by_release(recipe, releases_of(FRAMEWORKS[recipe.framework]))
    never = frozenset.intersection(*by_release.values())
    return [release for release, found in by_release.items() if found == never]


def _by_keys(framework: Framework, probe: Recipe, releases: Sequence[Version]) -> Judged:
    """Return the default where it takes all keys, otherwise the newest release that does; nothing is known without one."""
    if framework.version in releases and not misfits(probe):
        return Judged(framework.version, BY_DEFAULT)
    by_release = _misfits_by_release(probe, releases)
    fewest = min(map(len, by_release.values()))
    best = [release for release, found in by_release.items() if len(found) == fewest]
    version = framework.version if framework.version in best else best[-1]
    rest = by_release[version]
    if all(is_typo(key, framework, replace(probe, version=version)) for key in rest):
        span = text(best[0]) if len(best) == 1 else f"{text(best[0])} to {text(best[-1])}"
        return Judged(version, VersionSource("keys", "the keys", f"all are in {span}"))
    return Judged(version, VersionSource())


def is_typo(key: str, framework: Framework, recipe: Recipe) -> bool:
    """Return whether a key that no release takes is spelled almost like one that is taken."""
    if framework.is_dotted:
        return False
    ever = any(key in framework.takes(release) for release in releases_of(framework))
    return not ever and bool(closest_keys(key, framework.known_keys(recipe)))
