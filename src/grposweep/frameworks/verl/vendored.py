"""verl's own configuration in a repository that contains verl: its keys and defaults, as Hydra would compose them.

Releases before 0.4 have one flat file. Later ones have lists of defaults, and the composed result in a file that verl generates
and checks (``_generated_ppo_trainer.yaml``). Where that is missing, Hydra composes the files of this folder alone. Nothing of the
repository is imported.
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from grposweep.errors import UserError
from grposweep.frameworks.base import KeyTable, Vendor, Vendored
from grposweep.frameworks.parsing.yaml_text import flatten, parse_nested
from grposweep.frameworks.verl.keys import engine_of, known, releases, spec_of
from grposweep.recipe import Recipe
from grposweep.setting import Version

CONFIG = "verl/trainer/config"
LARGEST = 2**20  # bytes of a configuration


def read(folder: Path, recipe: Recipe) -> Vendored:
    """Return the keys of the verl in a folder, with the engine of a recipe."""
    engine = engine_of(recipe)
    name = "ppo_trainer" if engine == "dp" else f"ppo_{engine}_trainer"
    keys = _keys_in(folder / CONFIG, name)
    if keys is None and engine != "dp":
        keys = _keys_in(folder / CONFIG, "ppo_trainer")  # an engine that this verl does not have
    stated = _stated_version(folder / "verl")
    return Vendored(keys, stated or (None if keys is None else _most_alike(frozenset(keys), engine)))


@lru_cache(maxsize=64)
def _keys_in(folder: Path, name: str) -> KeyTable | None:
    """Return the keys of one configuration; None where it cannot be read."""
    try:
        values = _compose(folder, name)
    except (UserError, OSError, RecursionError):
        return None
    return KeyTable((key, spec_of(value)) for key, value in values.items()) if values else None


def _compose(folder: Path, name: str) -> dict[str, Any]:
    own = parse_nested(_text(folder / f"{name}.yaml")).config
    if not any(key == "defaults" or key.startswith("defaults.") for key in own):
        return own
    del own["defaults"]
    generated = folder / f"_generated_{name}.yaml"
    if generated.is_file():
        return {**own, **parse_nested(_text(generated)).config}
    return _compose_by_hydra(folder, name)


def _text(file: Path) -> str:
    if file.stat().st_size > LARGEST:
        raise UserError(f"{file.name} is larger than any configuration of verl.")
    return file.read_text(encoding="utf-8", errors="replace")


def _compose_by_hydra(folder: Path, name: str) -> dict[str, Any]:
    """Return what Hydra composes of the files of a folder, references unresolved; a search path of the files' own is refused."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.utils import create_config_search_path
    from hydra.errors import HydraException
    from hydra.types import RunMode
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if "searchpath" in _text(folder / f"{name}.yaml"):
        return {}
    loader = ConfigLoaderImpl(create_config_search_path(str(folder)))
    try:
        composed = loader.load_configuration(name, overrides=[], run_mode=RunMode.RUN)
        values = OmegaConf.to_container(composed, resolve=False)
    except (HydraException, OmegaConfBaseException):
        return {}
    return {key: value for key, value in flatten(dict(values)).items() if not key.startswith("hydra.")}  # type: ignore[arg-type]


def _stated_version(package: Path) -> Version | None:
    """Return the version that the package states: in its file ``version/version``, or as a literal of its code."""
    for name, pattern in (
        ("version/version", r"()(\d+\.\d+(?:\.\d+)?)"),
        ("__init__.py", r"__version__ = (['\"])(\d+\.\d+(?:\.\d+)?)"),
    ):
        try:
            found = re.search(pattern, (package / name).read_text(encoding="utf-8", errors="replace")[:LARGEST])
        except OSError:
            continue
        if found:
            major, minor, patch = (*(int(part) for part in found[2].split(".")), 0)[:3]
            return major, minor, patch
    return None


@lru_cache(maxsize=64)
def _most_alike(keys: frozenset[str], engine: str) -> Version:
    """Return the release whose keys are most like these."""

    def likeness(release: Version) -> float:
        other = known(release, engine).keys()
        return len(keys & other) / len(keys | other)

    return max(releases(), key=likeness)


VENDOR = Vendor(f"{CONFIG}/ppo_trainer.yaml", read)
