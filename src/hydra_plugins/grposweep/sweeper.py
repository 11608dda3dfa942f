"""The sweepers of Hydra's plugin: ``hydra/sweeper=grposweep`` in any application, and the one of grposweep's own commands.

Hydra imports this module at the start of every application, so everything heavy waits inside the methods.
"""

import sys
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf


class GrposweepSweeper(Sweeper):
    """``-m`` and ``hydra.mode: MULTIRUN`` end here; ``params`` are a sweep file's parameters, in Hydra's sweep syntax."""

    def __init__(self, params: Any = None) -> None:
        plain = OmegaConf.to_container(params) if OmegaConf.is_config(params) else params
        self._params = {str(name): content for name, content in plain.items()} if isinstance(plain, dict) else {}
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
        from grposweep.cli.run import run_multirun

        assert self._context is not None  # Hydra calls setup first
        sys.exit(run_multirun(self._context.config_loader, self._config, arguments, self._params))


class AppSweeper(GrposweepSweeper):
    """The sweeper of any other application, whose own function and Hydra launcher run the jobs."""

    def __init__(self, params: Any = None, **options: Any) -> None:
        super().__init__(params)
        self._options = options

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what composes and runs jobs."""
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        self._task_function = task_function

    def sweep(self, arguments: list[str]) -> None:
        """Run the sweep, and exit with its code if that is not 0."""
        from grposweep.sweep.any_app import sweep_app

        assert self._context is not None  # Hydra calls setup first
        if code := sweep_app(self._context, self._task_function, self._config, arguments, self._params, self._options):
            sys.exit(code)


@dataclass
class AppSweeperConf:
    """``hydra.sweeper`` of any other application; docs/guides/hydra_app.md explains the keys."""

    _target_: str = "hydra_plugins.grposweep.sweeper.AppSweeper"
    params: dict[str, Any] | None = None
    sampler: str = "auto"
    n_trials: int | None = None
    n_jobs: int | None = None
    direction: str = "maximize"
    seed: int = 0
    validator: str | None = None


# grposweep's own commands have registered their sweeper under this name before Hydra looks for plugins.
if ConfigStore.instance().get_type("hydra/sweeper/grposweep.yaml") == ObjectType.NOT_FOUND:
    ConfigStore.instance().store(group="hydra/sweeper", name="grposweep", node=AppSweeperConf, provider="grposweep")
