"""Run what Hydra composed: a sweep of one point, or of many. ``--help`` and a misspelt key do not
need this module.
"""

import sys
from pathlib import Path
from typing import cast

from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grporecipe.errors import ExitCode, UserError
from grporecipe.files import Config
from grporecipe.terminal import say
from grposweep.config.compose import check_groups, message
from grposweep.config.points import Compose, Points
from grposweep.schema.registries import is_external
from grposweep.search.listed import list_points
from grposweep.search.parse import ONE_FACTOR, parse_space
from grposweep.search.space import Space
from grposweep.sweep.validate import validate_sweep


def run_single(config: DictConfig) -> int:
    """Run a sweep of one point. It prints its own error messages, because Hydra would add a line
    before them.
    """
    hydra = HydraConfig.get()
    # as typed: an override may hold ${...}
    overrides = cast(list[str], OmegaConf.to_container(hydra.overrides.task))
    compose = composer(GlobalHydra.instance().config_loader(), hydra.job.config_name)
    given = {override.split("=")[0] for override in overrides}

    def composed(wanted: list[str]) -> DictConfig:
        return config if wanted == overrides else compose(wanted)

    try:
        searched = [key for key in hydra.sweeper.params or () if key not in given]
        if searched:
            raise UserError(
                f"hydra.sweeper.params: a single run searches no {', '.join(searched)}. Add -m, or "
                "set hydra.mode: MULTIRUN in the sweep file."
            )
        points = Points(composed, overrides)
        return _run(Space(), points, overrides, dict(hydra.runtime.choices))
    except UserError as error:
        say(f"error: {error}", sys.stderr)
        return ExitCode.BAD_INPUT


def run_multirun(
    loader: ConfigLoader, config: DictConfig, arguments: list[str], params: Config
) -> int:
    """Run a sweep: the parameters of command line and sweep file, over their shared composition."""
    compose = composer(loader, config.hydra.job.config_name)
    space, fixed = parse_space(arguments, params, loader)
    points = Points(compose, fixed)
    # a comparison of one alternative with the base configuration
    if points.base.search.sampler == ONE_FACTOR:
        space, fixed = parse_space(arguments, params, loader, keeps_single=True)
        points = Points(compose, fixed)
    return _run(space, points, fixed, dict(config.hydra.runtime.choices))


def composer(loader: ConfigLoader, name: str | None) -> Compose:
    """Return a function that composes the primary configuration of this name with other
    overrides.
    """

    def compose(overrides: list[str]) -> DictConfig:
        check_groups(overrides)
        try:
            return loader.load_configuration(
                config_name=name, overrides=overrides, run_mode=RunMode.RUN
            )
        except (HydraException, OmegaConfBaseException) as error:
            raise UserError(message(error)) from error

    return compose


def _run(space: Space, points: Points, overrides: list[str], choices: Config) -> int:
    space = list_points(space, points.base.search)
    named = [str(choices[group]) for group in ("model", "task") if group not in space.names]
    # a trial's exported configuration is the option of both
    hint = "-".join(dict.fromkeys(named))
    trainer = points.base.trainer
    # model and task are the program's
    if is_external(trainer):
        arguments = (trainer.command or trainer.kind).split()
        files = [word for word in arguments if word.endswith((".py", ".sh", ".yaml", ".yml"))]
        hint = "-".join(Path(file).stem for file in files) or trainer.kind
    study = Path(str(choices.get("sweeps") or "")).name
    validated = validate_sweep(space, points, overrides)
    # optuna, numpy and rich: 0.5 s that a refusal should not pay
    from grposweep.sweep.run import run_sweep

    return run_sweep(validated, overrides, hint or "sweep", study=study)
