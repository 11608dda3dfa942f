"""From what Hydra composed to an Experiment: the schema is merged once more, so that no key slips in unnoticed."""

from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import OmegaConfDumper  # behind OmegaConf.to_yaml; public nowhere
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from grposweep.config.objectives import split_objectives
from grposweep.config.schema import Experiment
from grposweep.config.words import unknown_key
from grposweep.errors import BadInput

PROJECT = Path(__file__).resolve().parents[3]  # holds conf/, sweeps/ and src/


def register() -> None:
    """Tell Hydra the schema and the sweeper; run.py calls this before it composes anything."""
    OmegaConf.register_new_resolver("ranks", _ranks, replace=True)
    store = ConfigStore.instance()
    store.store(name="experiment_schema", node=Experiment, provider="grposweep")
    store.store(
        group="hydra/sweeper",
        name="grposweep",
        node={"_target_": "hydra_plugins.grposweep.sweeper.GrposweepSweeper", "params": {}},
        provider="grposweep",
    )


def _ranks(nodes: int, gpus_per_node: int, tasks_per_node: int, server_gpus: int) -> int:
    """``${ranks:nodes,gpus_per_node,tasks_per_node,server_gpus}``: a rank a GPU that trains, or without GPUs a rank a task."""
    return max(nodes * (gpus_per_node or tasks_per_node) - server_gpus, 1)  # GT106 says where none is left


def to_experiment(config: DictConfig | dict[str, Any]) -> Experiment:
    """The typed experiment behind a composed configuration, interpolations resolved.

    Raises BadInput for unknown keys (``+`` and ``++`` bypass Hydra's own check), wrong types and missing values.
    """
    return resolved(typed(config))


def typed(config: DictConfig | dict[str, Any]) -> DictConfig:
    """A composed configuration under the schema's types, interpolations unresolved.

    Raises BadInput as ``to_experiment`` does.
    """
    plain = config if isinstance(config, dict) else OmegaConf.to_container(config)
    assert isinstance(plain, dict)  # a composed configuration is never a list
    _refuse_missing(plain)
    try:
        merged = OmegaConf.merge(_schema(), {key: value for key, value in plain.items() if key != "hydra"})
    except OmegaConfBaseException as error:
        raise BadInput(explain(error)) from error
    assert isinstance(merged, DictConfig)  # as the schema is
    return merged


def resolved(config: DictConfig) -> Experiment:
    """The experiment behind a typed configuration, which is changed: its interpolations are resolved.

    Raises BadInput for an interpolation that leads nowhere, or to a value of the wrong type.
    """
    try:
        OmegaConf.resolve(config)
        experiment = OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        raise BadInput(explain(error)) from error
    assert isinstance(experiment, Experiment)  # structured() keeps the type
    experiment.search = split_objectives(experiment.search)
    return experiment


def _refuse_missing(content: Any, key: str = "") -> None:
    """Raise BadInput for a value that was left open (``???``): merging would put the schema's default in its place."""
    if isinstance(content, dict):
        for name, value in content.items():
            _refuse_missing(value, f"{key}.{name}" if key else str(name))
    elif content == "???" and not key.startswith("hydra."):
        raise BadInput(f"{key} is not set, and this configuration cannot do without it. Set {key}=...")


@cache
def _schema() -> Any:
    """The schema as a configuration, made once: merging copies it."""
    return OmegaConf.structured(Experiment)


def explain(error: OmegaConfBaseException) -> str:
    """One sentence for a person out of an OmegaConf error."""
    key = str(error.full_key or error.key or "")
    first = str(error.msg or error).strip().splitlines()[0]
    if isinstance(error, ConfigKeyError | ConfigAttributeError):
        return unknown_key(key)
    if isinstance(error, MissingMandatoryValue):
        return f"{key} is not set, and this configuration cannot do without it. Set {key}=..."
    if isinstance(error, InterpolationKeyError):
        return f"{key or 'A value'} refers to a key that does not exist: {first}. Correct the name inside ${{...}}."
    return f"{key}: {first}. Set a value of the right type ('--cfg job' shows the present ones)."


def load_experiment(path: Path) -> Experiment:
    """The experiment in a trial's ``config.yaml``."""
    config = OmegaConf.load(path)
    assert isinstance(config, DictConfig)  # our own file
    return to_experiment(config)


def render_experiment(experiment: Experiment) -> str:
    """The YAML that ``load_experiment`` reads back unchanged."""
    # As OmegaConf.to_yaml(OmegaConf.structured(experiment)) does, which checks every type once more: 20 ms instead of 1.
    return yaml.dump(
        asdict(experiment), default_flow_style=False, allow_unicode=True, sort_keys=False, Dumper=_dumper()
    )


@cache
def _dumper() -> type[yaml.Dumper]:
    """PyYAML's fast writer with OmegaConf's own quotes, around words that would be read back as numbers."""

    class Dumper(getattr(yaml, "CDumper", yaml.Dumper)):  # type: ignore[misc]  # the same text either way, one five times faster
        pass

    Dumper.add_representer(str, OmegaConfDumper.str_representer)
    return Dumper
