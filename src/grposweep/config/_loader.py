"""Let Hydra compose the configuration of a command once.

Hydra composes a command twice: to read ``hydra.mode``, and again with the mode added to the
overrides. A sweep composes a third time, for what its points share.
"""

import pickle
from typing import cast

from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf


class OnceLoader(ConfigLoaderImpl):
    """Hydra's loader, which keeps its last composition. Neither the mode nor the swept overrides
    change that.
    """

    _key: tuple[str | None, list[str]] | None = None
    _composed = b""

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """Return what Hydra's own loader returns for these arguments."""
        parsed = OverridesParser.create().parse_overrides(overrides)
        if validate_sweep_overrides:
            self.validate_sweep_overrides_legal(parsed, run_mode, from_shell)
        mode = [
            override
            for override in parsed[-1:]
            if str(override.input_line).startswith("hydra.mode=")
        ]
        shared = [
            str(one.input_line) for one in parsed if one not in mode and not one.is_sweep_override()
        ]
        if self._key != (config_name, shared):
            composed = super().load_configuration(config_name, shared, run_mode, from_shell)
            # a group without an option is skipped for a sweep and refused for a run
            self._key = (
                None
                if OmegaConf.missing_keys(composed.hydra.runtime.choices)
                else (config_name, shared)
            )
            self._composed = pickle.dumps(composed)
        config = cast(DictConfig, pickle.loads(self._composed))
        self._apply_overrides_to_config(mode, config)
        own = [one for one in parsed if one.is_hydra_override()]
        others = [one for one in parsed if one not in own]
        config.hydra.overrides.hydra = [one.input_line for one in own]
        config.hydra.overrides.task = [one.input_line for one in others]
        job = config.hydra.job
        job.override_dirname = get_overrides_dirname(others, **job.config.override_dirname)
        return config

    def get_group_options(
        self,
        group_name: str,
        results_filter: ObjectType | None = ObjectType.CONFIG,
        config_name: str | None = None,
        overrides: list[str] | None = None,
    ) -> list[str]:
        """Return what Hydra's own loader returns. It copies its sources for each group, which
        ``--help`` asks for 119 times.
        """
        if config_name or overrides:
            return super().get_group_options(group_name, results_filter, config_name, overrides)
        return self.repository.get_group_options(group_name, results_filter)
