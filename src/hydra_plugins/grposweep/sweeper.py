"""The sweeper of grposweep's own commands.

Hydra imports this module at the start of every application, so everything heavy waits inside the
methods.
"""

import sys
from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf


class GrposweepSweeper(Sweeper):
    """``-m`` and ``hydra.mode: MULTIRUN`` end here; ``params`` are a sweep file's parameters, in
    Hydra's sweep syntax.
    """

    def __init__(self, params: Any = None) -> None:
        plain = OmegaConf.to_container(params) if OmegaConf.is_config(params) else params
        self._params = (
            {str(name): content for name, content in plain.items()}
            if isinstance(plain, dict)
            else {}
        )
        self._context: HydraContext | None = None

    def setup(
        self,
        *,
        hydra_context: HydraContext,
        task_function: TaskFunction,  # noqa: ARG002  # Hydra's signature; it serves single runs
        config: DictConfig,
    ) -> None:
        """Keep what composes points."""
        self._context = hydra_context
        self._config = config

    def sweep(self, arguments: list[str]) -> None:
        """Run the sweep; its exit code is the command's."""
        from grposweep.cli.composed import run_multirun

        # Hydra calls setup first
        assert self._context is not None
        sys.exit(run_multirun(self._context.config_loader, self._config, arguments, self._params))
