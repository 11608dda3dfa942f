"""Find the framework version by which a recipe is judged, and its source.

Sources in this order: an option, the project's settings, the repository's pins, the framework's own
source in the repository, the releases that take all keys of the recipe, and the default.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from grporecipe.errors import BadSettings, UserError
from grporecipe.files import Config, absolute
from grporecipe.model.framework import FRAMEWORKS, Framework, version_of
from grporecipe.model.recipe import KeySpec, Recipe, VersionSource
from grporecipe.model.releases import closest_keys, is_taken, text
from grporecipe.model.setting import Version
from grporecipe.model.values import convert
from grporecipe.project._pins import Pin, allows, find_pins
from grporecipe.project.repository import (
    Repository,
    find_repository,
    is_elsewhere,
    scripts_of,
    walk,
)
from grporecipe.project.settings import settings_for
from grporecipe.terminal import count

NOT_A_FILE = VersionSource("asked", "default", "the default release, because no version is given")


BY_DEFAULT = VersionSource("keys", "default", "it accepts all keys")


class Judged(NamedTuple):
    """The version to judge by, its source, and what the framework's own source says if that is used
    (`Vendored`).
    """

    version: Version
    source: VersionSource
    vendored: Mapping[str, KeySpec] | None = None
    assumed: Mapping[str, str] = MappingProxyType({})
    unchecked: Mapping[str, str] = MappingProxyType({})


def find_version(
    name: str,
    config: Config,
    stated: str | None,
    release: Version | None,
    file: Path | None,
    folder: str = "",
    **more: Any,
) -> Judged:
    """Return the version to judge a recipe by. ``folder`` is the launch's working directory.

    The caller may request a version as text (``stated``) or one that was parsed before
    (``release``). ``more`` holds the recipe's other fields.

    Raises UserError for a version that cannot be judged.
    """
    framework = FRAMEWORKS[name]
    if release is not None:
        return Judged(release, VersionSource("asked", "the caller", text(release)))
    if stated is not None:
        source = VersionSource("asked", "--framework-version", stated)
        return _stated(framework, version_of(framework.name, stated), source)
    # a caller without a file and a version gets the default
    if file is None:
        return Judged(framework.version, NOT_A_FILE)
    # what is installed there, only that machine knows
    if folder and is_elsewhere(file, folder):
        return _of_project(framework, file) or Judged(framework.version, VersionSource())
    probe = Recipe(name, framework.version, config, file=str(file), **more)
    return (
        _of_project(framework, file)
        or _of_pin(framework, probe, file)
        or _of_source(framework, probe, file)
        or _by_keys(framework, probe, framework.known_releases)
    )


def find_replacement(name: str, file: Path) -> str:
    """Return why the trainer that runs is no release of a framework; empty if nothing says so.

    A requirement may name a fork, and a script may copy files over the installed package.
    """
    repository = find_repository(file)
    if repository is None:
        return ""
    for package in FRAMEWORKS[name].packages:
        for pin in next(_nearest_pins(repository, (package,), file), []):
            if pin.is_fork:
                return f"{pin.file.name} installs {pin.text}"
        for path, script in scripts_of(repository.root):
            if _copies_over(script, package.removeprefix("ms-")):
                return f"{path.name} copies files over the installed {package}"
    return ""


def _copies_over(script: str, module: str) -> bool:
    """Return whether a script copies files to where a module is installed."""
    values = dict(re.findall(r"(?m)^\s*(?:export\s+)?(\w+)=(.*)$", script))
    targets = re.findall(r"(?m)^\s*(?:cp|mv|rsync)\s.*\s(\S+)[ \t]*$", script)
    places = re.sub(r"\$\{?(\w+)\}?", lambda name: values.get(name[1], ""), "\n".join(targets))
    return re.search(rf"site-packages\S*/{module}\b|\b{module}\.__file__", places) is not None


def _of_project(framework: Framework, file: Path) -> Judged | None:
    settings = settings_for(file)
    version = settings.version_of(framework.name)
    if version is None or settings.file is None:
        return None
    try:
        release = version_of(framework.name, version)
    except UserError as error:
        raise BadSettings(f"{settings.file}: {error}") from None
    return _stated(
        framework,
        release,
        VersionSource("project", settings.file.name, f'framework-version = "{version}"'),
    )


def _stated(framework: Framework, version: Version, source: VersionSource) -> Judged:
    """Return a stated version. One that is newer than all known releases is judged as the newest of
    them.
    """
    newest = framework.known_releases[-1]
    if version > newest:
        source = source._replace(
            kind="newer", text=f"{source.text}, judged as {text(newest)}, the newest release known"
        )
    return Judged(version, source)


def _of_pin(framework: Framework, probe: Recipe, file: Path) -> Judged | None:
    """Return the version of the nearest requirement. In a range, the recipe's keys decide."""
    if not framework.packages:
        return None
    repository = find_repository(file)
    if repository is None:
        return None
    root = repository.root
    own: Path | None = None
    for folder in _vendored_in(root, framework):
        if own is None and absolute(file).is_relative_to(folder):
            own = folder
    for pins in _nearest_pins(repository, framework.packages, file):
        if own is not None and all(pin.file.is_relative_to(own) for pin in pins):
            # the framework's own repository, where requirements have other purposes
            return None
        verdicts = [_judge_pin(framework, probe, pin, root) for pin in pins]
        judged = [verdict for verdict in verdicts if verdict is not None]
        if judged:
            return min(judged, key=lambda verdict: len(verdict.source.conflict))
        if any(pin.is_open for pin in pins):
            # the version of a commit is unknown
            return None
    return None


def _of_source(framework: Framework, probe: Recipe, file: Path) -> Judged | None:
    """Return the keys of the framework's own source in the repository, of the nearest one if there
    are several.
    """
    if framework.vendor is None:
        return None
    repository = find_repository(file)
    if repository is None:
        return None
    folder = absolute(file).parent
    roots = _vendored_in(repository.root, framework)
    stated: Judged | None = None
    for root in sorted(roots, key=lambda root: -_shared_parts(folder, root)):
        vendored = framework.vendor.read(root, probe)
        name = Path(framework.vendor.marker).parts[0]
        where = (root / name).relative_to(repository.root).as_posix() + "/"
        source = VersionSource("vendored", where, "its own source")
        judged = Judged(
            vendored.version or framework.version,
            source,
            vendored.keys,
            vendored.assumed,
            vendored.unchecked,
        )
        if vendored.keys is not None:
            if folder.is_relative_to(root) or _runs(framework, probe, judged):
                return judged
            return None
        if (
            stated is None
            and vendored.version is not None
            and not misfits(replace(probe, version=vendored.version))
        ):
            # its configuration is missing, but its version is known
            stated = judged
    return stated


def _runs(framework: Framework, probe: Recipe, judged: Judged) -> bool:
    """Return whether a source next to the recipe may be what runs: not if it refuses keys that a
    release takes.
    """
    if not misfits(replace(probe, version=judged.version, vendored=judged.vendored)):
        return True
    return all(_misfits_by_release(probe, framework.known_releases).values())


@lru_cache(maxsize=128)
def _vendored_in(root: Path, framework: Framework) -> tuple[Path, ...]:
    """Return the folders of a repository that contain a framework's own source."""
    if framework.vendor is None:
        return ()
    marker = framework.vendor.marker
    name = Path(marker).parts[0]
    parents = [folder.parent for folder in walk(root).folders if folder.name == name]
    return tuple(parent for parent in parents if any(parent.glob(marker)))


def _nearest_pins(
    repository: Repository, packages: tuple[str, ...], file: Path
) -> Iterator[list[Pin]]:
    """Yield the requirements of a repository by distance from a file: folders above it first, then
    others.
    """
    folder = absolute(file).parent
    by_distance: dict[tuple[int, int], list[Path]] = {}
    for path in repository.requirements:
        shared = _shared_parts(folder, path.parent)
        distance = len(folder.parts) - shared, len(path.parent.parts) - shared
        by_distance.setdefault(distance, []).append(path)
    for _, files in sorted(by_distance.items()):
        pins: list[Pin] = []
        for path, package in product(files, packages):
            pins += find_pins(path, package)
        if pins:
            yield pins


def _shared_parts(one: Path, other: Path) -> int:
    shared = 0
    for a, b in zip(one.parts, other.parts, strict=False):
        if a != b:
            break
        shared += 1
    return shared


def _judge_pin(framework: Framework, probe: Recipe, pin: Pin, root: Path) -> Judged | None:
    """Return the release that a requirement names, or the newest of its range if the whole range
    takes the same keys.
    """
    releases = framework.known_releases
    where = pin.file.relative_to(root).as_posix()
    source = VersionSource("pinned", where, pin.text)
    exact = pin.exact
    if exact is not None:
        if exact < releases[0]:
            # the release has no GRPO, so the requirement has another purpose
            return None
        if exact > releases[-1]:
            return _stated(framework, exact, source)
        return _judge_by_pin(framework, probe, exact, source)
    allowed = list(filter(pin.allows, releases))
    if not pin.specifier or not allowed:
        return None
    if len(allowed) > 1:
        source = source._replace(kind="range")
    if len({misfits(replace(probe, version=release)) for release in allowed}) == 1:
        return Judged(allowed[-1], source)
    judged = _by_keys(framework, probe, allowed)
    stated = f"{pin.text}; {judged.source.text}".strip("; ")
    return judged._replace(source=judged.source._replace(where=where, text=stated))


def allowed_releases(recipe: Recipe) -> list[Version]:
    """Return the releases that may train a recipe whose repository requires a range."""
    releases = FRAMEWORKS[recipe.framework].known_releases
    return [release for release in releases if allows(recipe.version_source.text, release)]


def misfits(recipe: Recipe) -> frozenset[str]:
    """Return the keys of a recipe that its release does not take, or whose value it does not
    take.
    """
    framework = FRAMEWORKS[recipe.framework]
    if framework.misfits is not None:
        return frozenset(framework.misfits(recipe))
    takes = framework.known_keys(recipe)
    if recipe.code:
        takes = {**takes, **recipe.code.declares}
    if not framework.is_dotted:
        own = framework.passed_on | {framework.environment_key}
        bad = []
        for key, value in recipe.config.items():
            spec = takes.get(key)
            # a list may be the words in a script
            if spec is None or (
                not isinstance(value, list) and convert(value, spec.type).trouble == "type"
            ):
                bad.append(key)
        return frozenset(bad) - own
    return frozenset(key for key in recipe.config if not is_taken(key, takes))


def _misfits_by_release(
    recipe: Recipe, releases: Iterable[Version]
) -> dict[Version, frozenset[str]]:
    framework = FRAMEWORKS[recipe.framework]
    by_release: dict[Version, frozenset[str]] = {}
    # most releases have the same types of a recipe's keys
    by_types: dict[object, frozenset[str]] = {}
    for release in releases:
        types: object = release
        if not (framework.is_dotted or framework.key_table):
            takes = framework.takes(release)
            types = tuple((key, takes[key].type) for key in recipe.config if key in takes)
        if types not in by_types:
            by_types[types] = misfits(replace(recipe, version=release))
        by_release[release] = by_types[types]
    return by_release


def fitting_releases(recipe: Recipe) -> list[Version]:
    """Return the releases that take all keys of a recipe. Keys that no release takes are
    ignored.
    """
    return _fit(recipe)[1]


def _fit(recipe: Recipe) -> tuple[frozenset[str], list[Version]]:
    """Return the keys of a recipe that no release takes, and the releases that take all others."""
    by_release = _misfits_by_release(recipe, FRAMEWORKS[recipe.framework].known_releases)
    never = frozenset.intersection(*by_release.values())
    return never, [release for release, unknown in by_release.items() if unknown == never]


def _judge_by_pin(
    framework: Framework, probe: Recipe, pinned: Version, source: VersionSource
) -> Judged:
    """Return the pinned release. If it refuses keys of other releases, return the newest release
    that takes all keys.
    """
    recipe = replace(probe, version=pinned)
    own = misfits(recipe)
    if not own:
        return Judged(pinned, source)
    never, fits = _fit(recipe)
    elsewhere = tuple(key for key in recipe.config if key in own - never)
    if not elsewhere:
        return Judged(pinned, source)
    if not fits:
        return Judged(pinned, source._replace(conflict=elsewhere))
    version = _preferred(framework, fits)
    return Judged(version, source._replace(kind="keys", conflict=elsewhere))


def _preferred(framework: Framework, releases: Sequence[Version]) -> Version:
    """Return the default release if it is among these, else the newest."""
    if framework.version in releases:
        return framework.version
    return releases[-1]


def _by_keys(framework: Framework, probe: Recipe, releases: Sequence[Version]) -> Judged:
    """Return the default if it accepts all keys, else the newest release that does. Without one,
    the version is unknown.
    """
    if framework.version in releases and not misfits(probe):
        return Judged(framework.version, BY_DEFAULT)
    by_release = _misfits_by_release(probe, releases)
    fewest = min(map(len, by_release.values()))
    best = [release for release, unknown in by_release.items() if len(unknown) == fewest]
    version = _preferred(framework, best)
    # A value that no release takes, of a key that this release has, is wrong in any case and says
    # nothing about the version.
    wrong = frozenset.intersection(*by_release.values()) & framework.takes(version).keys()
    rest = by_release[version] - wrong
    if all(is_typo(key, framework, replace(probe, version=version)) for key in rest):
        span = f"{text(best[0])} to {text(best[-1])} accept"
        if len(best) == 1:
            span = f"only {text(best[0])} accepts"
        which = "all keys"
        if rest:
            which = f"all but {count(len(rest), 'key')}"
        return Judged(version, VersionSource("keys", "the keys", f"{span} {which}"))
    return Judged(version, VersionSource())


def is_typo(key: str, framework: Framework, recipe: Recipe) -> bool:
    """Return whether a key that no release takes has a spelling similar to an existing key."""
    if framework.is_dotted:
        return False
    ever = any(key in framework.takes(release) for release in framework.known_releases)
    return not ever and bool(closest_keys(key, framework.known_keys(recipe)))


# places of a version that nothing states
ASSUMED = ("", "default", "the keys")


def describe_version(recipe: Recipe) -> str:
    """Return the version that a recipe is judged by, and its source: ``TRL 0.18.0 (setup.py:
    trl==0.18.0)``.

    Without a source: that it is assumed, why it is this one, and how to state it.
    """
    source = recipe.version_source
    why = ": ".join(filter(None, (source.where, source.text)))
    if source.where in ASSUMED and source.kind != "asked":
        taken = source.text or "no release accepts all keys"
        why = f"assumed, because the recipe states no version, and {taken}; set --framework-version"
    if source.conflict:
        why += ", which does not accept all keys"
    return f"{FRAMEWORKS[recipe.framework].traits.name_of(text(recipe.version))} ({why})"
