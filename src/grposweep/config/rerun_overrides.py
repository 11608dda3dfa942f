"""A recorded experiment changed by overrides: a group's option replaces the group, a key its value, the rest stays."""

from collections.abc import Iterator
from dataclasses import asdict
from functools import cache

import yaml
from omegaconf import DictConfig, OmegaConf

from grposweep.config.compose import PROJECT
from grposweep.config.points import Points
from grposweep.config.session import Session
from grposweep.errors import UserError
from grposweep.schema import GROUPS, Experiment
from grposweep.search.parse import parse_space, parse_value, split_tokens

WHOLE = ("sweeps", "recipe", "debug")  # choose options of several groups at once


def changed(recorded: Experiment, overrides: list[str], session: Session) -> Experiment:
    """The recorded experiment at these overrides.

    Raises UserError for what is unknown or of the wrong type, and for several values.
    """
    space, fixed = parse_space(split_tokens(overrides), {}, session.loader)
    if space.dials:
        raise UserError(
            f"{space.dials[0].name} has several values, and a rerun is one run. Give one, or sweep with run.py -m."
        )
    values = dict(parse_value(override) for override in fixed)
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
