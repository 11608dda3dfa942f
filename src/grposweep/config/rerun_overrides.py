"""A recorded experiment changed by overrides: a group's option replaces the group, a key its value, the rest stays."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from grposweep.config.points import Points
from grposweep.config.compose import Session
from grposweep.errors import UserError
from grposweep.files import PROJECT
from grposweep.schema import GROUPS, Experiment

WHOLE = ("sweeps", "recipe", "debug")  # choose options of several groups at once


def apply_values(recorded: Experiment, values: Mapping[str, Any], session: Session) -> Experiment:
    """Return the recorded experiment with these values of keys and groups.

    Raises UserError for what is unknown or of the wrong type.
    """
    for name in WHOLE:
        if name in values:
            raise UserError(
                f"{name}={values[name]} replaces more than one group of the recorded trial. Name the groups."
            )
    base = follow(OmegaConf.create(asdict(recorded)))

    def compose(wanted: list[str]) -> DictConfig:
        """What ``wanted`` names anew, for its section to be taken out; the recorded trial otherwise."""
        chosen = [text for text in wanted if text.partition("=")[0] in GROUPS]
        return session.compose(chosen) if chosen else base

    return Points(compose, []).experiment(values)


def follow(config: DictConfig) -> DictConfig:
    """The configuration in which values refer to others again (``${lr}``) where conf/ has it so and they are equal."""
    found = config.copy()
    for key, reference in _references():
        trial = found.copy()
        OmegaConf.update(trial, key, reference)
        if OmegaConf.select(trial, key) == OmegaConf.select(config, key):
            found = trial
    return found


@cache
def _references() -> frozenset[tuple[str, str]]:
    """Every key of a group's options that refers to others, and how."""
    return frozenset(
        pair
        for group in GROUPS
        for path in (PROJECT / "conf" / group).glob("*.yaml")
        for pair in _in_option(group, yaml.safe_load(path.read_text(encoding="utf-8")))
    )


def _in_option(group: str, content: dict[str, object] | None) -> Iterator[tuple[str, str]]:
    for name, value in (content or {}).items():
        if isinstance(value, str) and "${" in value:
            yield f"{group}.{name}", value
