"""What ``src/run.py`` calls between the command line and Hydra: both sweep syntaxes, messages for bad input, exit codes."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from grposweep.config.compose import check_groups, message, register
from grposweep.config.points import Compose, Points
from grposweep.errors import ExitCode, LeaseLostError, UserError
from grposweep.schema import is_external
from grposweep.search.parse import parse_space, split_tokens
from grposweep.search.space import Space
from grposweep.terminal import keep_screens, printable

VERBOSE = ("-v", "--verbose")  # shown on the terminal: the controller's log


def command(main: Callable[[], None]) -> None:
    """Run a Hydra main so that bad input is one message and exit code 2, never a traceback."""
    keep_screens()
    register()
    wanted = "HYDRA_FULL_ERROR" in os.environ  # then the user wants the traceback
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing and exiting with 1
    tokens = ["verbose=true" if token in VERBOSE else token for token in split_tokens(sys.argv[1:])]
    sys.argv[1:] = sorted(tokens, key=lambda token: token not in ("-m", "--multirun"))  # argparse wants flags first
    try:
        _refuse_launchers(sys.argv[1:])
        check_groups(sys.argv[1:])
        main()
    except (UserError, HydraException, OmegaConfBaseException) as error:
        if wanted:
            raise
        print(f"error: {printable(message(error))}", file=sys.stderr)
        sys.exit(ExitCode.BAD_INPUT)
    except LeaseLostError as error:
        print(f"stopped: {printable(str(error))}", file=sys.stderr)
        sys.exit(ExitCode.FAILED)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)


def run_single(config: DictConfig) -> int:
    """A single run: a sweep of one point. Says itself what is wrong: Hydra would put a line of its own before it."""
    hydra = HydraConfig.get()
    overrides = list(hydra.overrides.task)
    compose = _composer(GlobalHydra.instance().config_loader(), hydra.job.config_name)
    try:
        points = Points(lambda wanted: config if wanted == overrides else compose(wanted), overrides)
        return _run(Space(), points, overrides, dict(hydra.runtime.choices))
    except UserError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return ExitCode.BAD_INPUT


def run_multirun(loader: ConfigLoader, config: DictConfig, arguments: list[str], params: Mapping[str, Any]) -> int:
    """A sweep: the parameters of command line and sweep file, over the composition that they share."""
    space, fixed = parse_space(arguments, params, loader)
    return _run(
        space, Points(_composer(loader, config.hydra.job.config_name), fixed), fixed, dict(config.hydra.runtime.choices)
    )


def _composer(loader: ConfigLoader, name: str | None) -> Compose:
    """What composes the primary configuration of this name at other overrides."""

    def compose(overrides: list[str]) -> DictConfig:
        check_groups(overrides)
        return loader.load_configuration(config_name=name, overrides=overrides, run_mode=RunMode.RUN)

    return compose


def _run(space: Space, points: Points, overrides: list[str], choices: Mapping[str, Any]) -> int:
    from grposweep.sweep.run import run_sweep  # optuna and rich: 0.3 s that --help and --cfg should not pay

    searched = {parameter.name for parameter in space.parameters}
    hint = "-".join(str(choices[group]) for group in ("model", "task") if group not in searched)
    trainer = points.base.trainer
    if is_external(trainer.kind):  # model and task are the program's
        hint = "-".join(Path(name).stem for name in (trainer.script or trainer.kind, trainer.recipe) if name)
    return run_sweep(space, points, overrides, hint or "sweep")


def _refuse_launchers(arguments: list[str]) -> None:
    """hydra/launcher would be ignored: trials are started by cluster=."""
    for argument in arguments:
        if argument.startswith(("hydra/launcher", "+hydra/launcher")):
            raise UserError(
                f"{argument}: Hydra's launchers wait for whole batches, so grposweep does not use them. "
                f"Set cluster=... (cluster=local) instead."
            )
