"""Composing outside of run.py: what ``grposweep plan`` and ``grposweep space`` need of Hydra."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grposweep.config.compose import PROJECT, register
from grposweep.config.messages import check_groups, message
from grposweep.errors import BadInput


@dataclass(frozen=True)
class Session:
    """An open Hydra over conf/."""

    loader: ConfigLoader

    def compose(self, overrides: list[str]) -> DictConfig:
        """The configuration at these overrides, Hydra's own section included.

        Raises BadInput for what Hydra cannot compose.
        """
        check_groups(overrides)
        try:
            return compose("config", overrides, return_hydra_config=True)
        except (HydraException, OmegaConfBaseException) as error:
            raise BadInput(message(error)) from error

    def sweep_params(self, overrides: list[str]) -> dict[str, Any]:
        """The dials of a sweep file, where the overrides name one."""
        shared = [override for override in overrides if override.startswith("sweeps=")]
        params = OmegaConf.to_container(self.compose(shared).hydra.sweeper.params)
        return {str(name): content for name, content in params.items()} if isinstance(params, dict) else {}


@contextmanager
def open_session() -> Iterator[Session]:
    """Hydra over conf/, closed afterwards.

    Raises BadInput where there is none: a wheel holds the package alone.
    """
    register()
    conf = PROJECT / "conf"
    if not conf.is_dir():
        raise BadInput(
            f"{conf} does not exist: this installation has the package without its configuration groups. Recipes of other "
            "frameworks can be read with it; for sweeps, clone the repository and install that (pip install -e .)."
        )
    with initialize_config_dir(config_dir=str(conf), version_base="1.3"):
        yield Session(GlobalHydra.instance().config_loader())
