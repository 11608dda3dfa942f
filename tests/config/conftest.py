"""Hydra's own composition of conf/, for tests that hold ours against it."""

from collections.abc import Callable, Iterator
from functools import cache

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import DictConfig

from grposweep.config.compose import PROJECT, register

Compose = Callable[[list[str]], DictConfig]


@pytest.fixture(scope="module")
def compose() -> Iterator[Compose]:
    """``compose(["batch=small"])``: what Hydra makes of overrides, its own section included."""
    register()
    with initialize_config_dir(config_dir=str(PROJECT / "conf"), version_base="1.3"):
        composed = cache(lambda overrides: hydra_compose("config", list(overrides), return_hydra_config=True))
        yield lambda overrides: composed(tuple(overrides))
