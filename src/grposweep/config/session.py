"""Compose configurations outside of run.py, for ``grposweep plan`` and ``space``, and explain errors of Hydra in a sentence."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grposweep.config.compose import explain, malformed, options, register, unknown_key, unknown_option
from grposweep.errors import UserError
from grposweep.files import PROJECT
from grposweep.schema import GROUPS

_NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)


def message(error: Exception) -> str:
    """One message for a person: what is set, why it cannot work, what to set instead."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OmegaConfBaseException):
        return explain(error)
    if isinstance(error, MissingConfigException):
        return _missing(error)
    text = str(error)
    cause = error.__cause__
    if isinstance(error, ConfigCompositionException) and isinstance(cause, OmegaConfBaseException):
        return explain(cause)
    unknown = re.search(r"Could not override '([^']+)'", text)
    if unknown and not text.startswith("In '"):  # "In 'sweeps/x'": a mistake in a file, which Hydra explains well
        return _no_such_key(unknown[1])
    if "Ambiguous value" in text:
        return f"{text.split(chr(39))[1]}: several values are a sweep, and this is a single run. Add -m, or give one value."
    if isinstance(error, OverrideParseException):
        return malformed(error.override, error)
    return " ".join(text.split()) or repr(error)


def _no_such_key(key: str) -> str:
    if key in GROUPS:
        return unknown_option(key, "", options(PROJECT / "conf", key))
    return unknown_key(key)


def _missing(error: MissingConfigException) -> str:
    """A config file that does not exist: nearly always a group's option."""
    path = (error.missing_cfg_file or "").removesuffix(".yaml")
    group, _, value = path.rpartition("/")
    if not group:
        return str(error).strip().splitlines()[0]
    return unknown_option(group, value, list(error.options or []))


def check_groups(overrides: list[str]) -> None:
    """``batch=16``: Hydra raises ValueError for a number where it wants an option's name."""
    for override in overrides:
        group, _, value = override.partition("=")
        if group in GROUPS and _NUMBER.fullmatch(value):
            raise UserError(unknown_option(group, value, options(PROJECT / "conf", group)))


@dataclass(frozen=True)
class Session:
    """An open Hydra over conf/."""

    loader: ConfigLoader

    def compose(self, overrides: list[str]) -> DictConfig:
        """The configuration at these overrides, Hydra's own section included.

        Raises UserError for what Hydra cannot compose.
        """
        check_groups(overrides)
        try:
            return compose("config", overrides, return_hydra_config=True)
        except (HydraException, OmegaConfBaseException) as error:
            raise UserError(message(error)) from error

    def sweep_params(self, overrides: list[str]) -> dict[str, Any]:
        """The parameters of a sweep file, where the overrides name one."""
        shared = [override for override in overrides if override.startswith("sweeps=")]
        params = OmegaConf.to_container(self.compose(shared).hydra.sweeper.params)
        return {str(name): content for name, content in params.items()} if isinstance(params, dict) else {}


@contextmanager
def open_session() -> Iterator[Session]:
    """Hydra over conf/, closed afterwards.

    Raises UserError where there is none: a wheel holds the package alone.
    """
    register()
    conf = PROJECT / "conf"
    if not conf.is_dir():
        raise UserError(
            f"{conf} does not exist: this installation has the package without its configuration groups. Recipes of other "
            "frameworks can be read with it; for sweeps, clone the repository and install that (pip install -e .)."
        )
    with initialize_config_dir(config_dir=str(conf), version_base="1.3"):
        yield Session(GlobalHydra.instance().config_loader())
