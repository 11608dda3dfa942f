"""What Hydra and OmegaConf say of a mistake, as one sentence for the person who made it."""

import re

from hydra.errors import (
    ConfigCompositionException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf.errors import OmegaConfBaseException

from grposweep.config.compose import PROJECT, explain
from grposweep.config.schema import GROUPS
from grposweep.config.words import malformed, options, unknown_key, unknown_option
from grposweep.errors import BadInput

_NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)


def message(error: Exception) -> str:
    """One message for a person: what is set, why it cannot work, what to set instead."""
    if isinstance(error, BadInput):
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
            raise BadInput(unknown_option(group, value, options(PROJECT / "conf", group)))
