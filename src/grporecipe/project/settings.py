"""Read a project's settings: ``.grposweep.toml``, or ``[tool.grposweep]`` in pyproject.toml, in a
file's folder or above.

    [tool.grposweep]
    framework = "trl"
    framework-version = "0.18.0"        # or a table: { trl = "0.18.0", verl = "0.5.0" }
    processes = 8
    select = ["GB", "GV"]
    ignore = ["GA201"]

    [tool.grposweep.per-file-overrides."recipes/old/*.yaml"]
    framework-version = "0.14.0"

Only the nearest file is used. Later overrides win over earlier ones, and all of them win over the
general settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any

from grporecipe.errors import BadSettings
from grporecipe.files import Config, absolute, file_stamp, whole_or_none
from grporecipe.model.values import Names
from grporecipe.registries import FRAMEWORKS

OWN_FILE = ".grposweep.toml"
SHARED_FILE = "pyproject.toml"
# bytes
LARGEST = 2**20
# upward
MOST_FOLDERS = 40
OVERRIDES = "per-file-overrides"
READ = ", ".join(sorted(FRAMEWORKS))
OVERRIDABLE = ("framework", "framework-version", "processes", "select", "ignore")
KEYS = (*OVERRIDABLE, OVERRIDES)


@dataclass(frozen=True)
class ProjectSettings:
    """A project's settings for its recipes.

    ``versions`` are by framework, ``""`` for any. ``file`` is the file with the settings, None if
    there are none.
    """

    file: Path | None = None
    framework: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    processes: int | None = None
    select: Names = ()
    ignore: Names = ()
    overrides: tuple[tuple[str, "ProjectSettings"], ...] = ()

    def version_of(self, framework: str) -> str | None:
        """Return the version that is set for a framework."""
        return self.versions.get(framework, self.versions.get(""))


NONE = ProjectSettings()


def settings_for(path: Path) -> ProjectSettings:
    """Return the settings for a file with its overrides applied.

    Raises BadSettings for settings that cannot be read.
    """
    whole = absolute(path)
    settings = _nearest(whole.parent)
    if settings.file is None:
        return settings
    name = whole.relative_to(settings.file.parent).as_posix()
    for pattern, changed in settings.overrides:
        if fnmatch(name, pattern) or fnmatch(whole.name, pattern):
            settings = _merged(settings, changed)
    return settings


def _merged(base: ProjectSettings, over: ProjectSettings) -> ProjectSettings:
    versions = over.versions
    if "" not in versions:
        versions = {**base.versions, **versions}
    return replace(
        base,
        framework=over.framework or base.framework,
        versions=versions,
        processes=over.processes or base.processes,
        select=over.select or base.select,
        ignore=(*base.ignore, *over.ignore),
    )


def _nearest(folder: Path) -> ProjectSettings:
    for file in _places(folder):
        stamp = file_stamp(file)
        if stamp is not None:
            settings = _read(file, *stamp)
            if settings is not None:
                return settings
    return NONE


@lru_cache(maxsize=1024)
def _places(folder: Path) -> tuple[Path, ...]:
    above = (folder, *list(folder.parents)[:MOST_FOLDERS])
    places: list[Path] = []
    for each in above:
        places += each / OWN_FILE, each / SHARED_FILE
    return tuple(places)


@lru_cache(maxsize=256)
def _read(file: Path, _: int, size: int) -> ProjectSettings | None:
    """Return the settings in a file, or None if it has none."""
    is_own = file.name == OWN_FILE
    try:
        if size > LARGEST:
            raise ValueError(f"it has more than {LARGEST // 2**20} MiB")
        text = file.read_text(encoding="utf-8")
        if not is_own and "tool.grposweep" not in text:
            return None
        # few projects have settings
        import tomllib

        table: Any = tomllib.loads(text)
        if not is_own:
            table = table.get("tool", {}).get("grposweep")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        if not is_own and not isinstance(error, ValueError):
            return None
        raise BadSettings(f"{file}: it cannot be read as TOML ({str(error)[:120]}).") from None
    if table is None:
        return None
    if not isinstance(table, dict):
        raise BadSettings(
            f"{file}: [tool.grposweep] must be a table of settings. Write them below "
            "[tool.grposweep] as key = value."
        )
    return replace(_parse(table, str(file)), file=file)


def _parse(table: Config, where: str, is_override: bool = False) -> ProjectSettings:
    keys: Names = KEYS
    if is_override:
        keys = OVERRIDABLE
    for key in table:
        if key not in keys:
            raise BadSettings(
                f"{where}: there is no setting {str(key)[:60]!r}. The settings are "
                f"{', '.join(keys)}."
            )
    framework = table.get("framework")
    processes = table.get("processes")
    if framework is not None and framework not in FRAMEWORKS:
        raise BadSettings(f"{where}: framework = {framework!r}: grposweep reads {READ}.")
    if processes is not None and (whole_or_none(processes) or 0) < 1:
        raise BadSettings(
            f"{where}: processes = {processes!r}: it must be a whole number of at least 1. Set "
            "processes = 8, for example."
        )
    select = _codes(table.get("select", []), "select", where)
    ignore = _codes(table.get("ignore", []), "ignore", where)
    entries = table.get(OVERRIDES, {})
    if not _holds_only(entries, dict):
        raise BadSettings(
            f"{where}: {OVERRIDES} must hold a table for each pattern. Write "
            f'[{OVERRIDES}."old/*.yaml"].'
        )
    overrides = [(glob, _parse(entry, f"{where}: {glob}", True)) for glob, entry in entries.items()]
    versions = _versions(table.get("framework-version", {}), where)
    return ProjectSettings(None, framework, versions, processes, select, ignore, tuple(overrides))


def _codes(value: Any, key: str, where: str) -> Names:
    if not isinstance(value, list) or not all(isinstance(code, str) for code in value):
        raise BadSettings(
            f'{where}: {key} must be a list of rules or families. Write {key} = ["GB101", "GA"].'
        )
    return tuple(value)


def _holds_only(table: Any, kind: type) -> bool:
    """Return whether this is a table with values of one type."""
    return isinstance(table, dict) and all(isinstance(value, kind) for value in table.values())


def _versions(value: Any, where: str) -> dict[str, str]:
    versions: dict[str, str] = value
    if isinstance(value, str):
        versions = {"": value}
    if not _holds_only(versions, str):
        raise BadSettings(
            f'{where}: framework-version must be text or a table of texts. Write "0.18.0", or '
            '{ trl = "0.18.0" }.'
        )
    unknown = [name for name in versions if name and name not in FRAMEWORKS]
    if unknown:
        raise BadSettings(
            f"{where}: framework-version of {unknown[0][:40]!r}: grposweep reads {READ}."
        )
    return versions
