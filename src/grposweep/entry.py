"""What stands between a person's command line and Hydra: both sweep syntaxes, one message for bad input, exit codes."""

import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from grposweep.config.compose import PROJECT, explain, register
from grposweep.config.points import Points
from grposweep.config.schema import GROUPS
from grposweep.config.words import options, unknown_key, unknown_option
from grposweep.errors import BadInput, LostLease
from grposweep.search.parse import malformed, parse_space, split_tokens
from grposweep.search.space import Space

EXIT_STOPPED, EXIT_BAD_INPUT = 1, 2
_NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)


def command(main: Callable[[], None]) -> None:
    """Run a Hydra main as a person expects it: bad input is one message and exit code 2, never a traceback."""
    register()
    wanted = "HYDRA_FULL_ERROR" in os.environ  # then the person wants the traceback
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing and exiting with 1
    tokens = split_tokens(sys.argv[1:])
    sys.argv[1:] = sorted(tokens, key=lambda token: token not in ("-m", "--multirun"))  # argparse wants flags first
    try:
        _refuse_launchers(sys.argv[1:])
        _check_groups(sys.argv[1:])
        main()
    except (BadInput, HydraException, OmegaConfBaseException) as error:
        if wanted:
            raise
        print(f"error: {message(error)}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
    except LostLease as error:
        print(f"stopped: {error}", file=sys.stderr)
        sys.exit(EXIT_STOPPED)
    except KeyboardInterrupt:
        sys.exit(130)


def run_single(config: DictConfig) -> int:
    """A single run: a sweep of one point. Says itself what is wrong: Hydra would put a line of its own before it."""
    hydra = HydraConfig.get()
    overrides = list(hydra.overrides.task)
    try:
        return _run(Space(), Points(lambda _: config, []), overrides, dict(hydra.runtime.choices))
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT


def run_multirun(loader: ConfigLoader, config: DictConfig, arguments: list[str], params: Mapping[str, Any]) -> int:
    """A sweep: the dials of command line and sweep file, over the composition that they share."""
    space, fixed = parse_space(arguments, params, loader)

    def compose(overrides: list[str]) -> DictConfig:
        _check_groups(overrides)
        return loader.load_configuration(
            config_name=config.hydra.job.config_name, overrides=overrides, run_mode=RunMode.RUN
        )

    return _run(space, Points(compose, fixed), fixed, dict(config.hydra.runtime.choices))


def _run(space: Space, points: Points, overrides: list[str], choices: Mapping[str, Any]) -> int:
    from grposweep.sweep.run import run_sweep  # optuna and rich: 0.3 s that --help and --cfg should not pay

    searched = {dial.name for dial in space.dials}
    hint = "-".join(str(choices[group]) for group in ("model", "task") if group not in searched)
    return run_sweep(space, points, overrides, hint or "sweep")


def message(error: Exception) -> str:
    """One message for a person: what is set, why it cannot work, what to set instead."""
    if isinstance(error, BadInput):
        return str(error)
    if isinstance(error, OmegaConfBaseException):
        return explain(error)
    if isinstance(error, MissingConfigException):
        return _missing(error)
    text = str(error)
    cause = error.__cause__
    if isinstance(error, ConfigCompositionException) and isinstance(cause, OmegaConfBaseException):
        return explain(cause)
    unknown = re.search(r"Could not override '([^']+)'", text)
    if unknown and not text.startswith("In '"):  # "In 'sweeps/x'": a mistake in a file, which Hydra explains well
        return _no_such_key(unknown[1])
    if "Ambiguous value" in text:
        return f"{text.split(chr(39))[1]}: several values are a sweep, and this is a single run. Add -m, or give one value."
    if isinstance(error, OverrideParseException):
        return malformed(error.override, error)
    return " ".join(text.split()) or repr(error)


def _no_such_key(key: str) -> str:
    if key in GROUPS:
        return unknown_option(key, "", options(PROJECT / "conf", key))
    return unknown_key(key)


def _missing(error: MissingConfigException) -> str:
    """A config file that does not exist: nearly always a group's option."""
    path = (error.missing_cfg_file or "").removesuffix(".yaml")
    group, _, value = path.rpartition("/")
    if not group:
        return str(error).strip().splitlines()[0]
    return unknown_option(group, value, list(error.options or []))


def _check_groups(overrides: list[str]) -> None:
    """``batch=16``: Hydra raises ValueError for a number where it wants an option's name."""
    for override in overrides:
        group, _, value = override.partition("=")
        if group in GROUPS and _NUMBER.fullmatch(value):
            raise BadInput(unknown_option(group, value, options(PROJECT / "conf", group)))


def _refuse_launchers(arguments: list[str]) -> None:
    """hydra/launcher would be ignored: trials are started by cluster=."""
    for argument in arguments:
        if argument.startswith(("hydra/launcher", "+hydra/launcher")):
            raise BadInput(
                f"{argument}: Hydra's launchers wait for whole batches, so grposweep does not use them. "
                f"Set cluster=... (cluster=local) instead."
            )
