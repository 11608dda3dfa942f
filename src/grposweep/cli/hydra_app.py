"""The Hydra application behind ``grposweep run``; ``src/run.py`` is the same from a checkout."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import hydra
from omegaconf import DictConfig

from grporecipe.errors import UserError
from grposweep.cli._run import command
from grposweep.process import CONF

STARTER = "my_study"
STUDY = """# @package _global_
# grposweep run --config-dir {folder} sweeps=my_study
#
# A first study: learning rate against batch, on the tiny model. Set your model, task and cluster.
defaults:
  - override /model: tiny
  - override /task: arithmetic

search:
  trials: 8

hydra:
  mode: MULTIRUN
  sweeper:
    params:
      lr: tag(log, interval(1e-4, 3e-3))
      batch: small,medium
"""


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def main(config: DictConfig) -> None:
    """Run one experiment; with -m Hydra calls the sweeper instead."""
    from grposweep.cli.composed import run_single

    sys.exit(run_single(config))


def start(arguments: Sequence[str]) -> None:
    """Run Hydra on these arguments, and exit with the command's code."""
    sys.argv[1:] = arguments
    command(main)


def copy_conf(folder: Path) -> Path:
    """Copy conf/ into a project and add a starter study; return the study's file.

    Raises UserError if the folder exists.
    """
    if folder.exists():
        raise UserError(
            f"{folder} exists, and its files would be overwritten. Name another folder."
        )
    shutil.copytree(CONF, folder)
    study = folder / "sweeps" / f"{STARTER}.yaml"
    study.write_text(STUDY.format(folder=shlex.quote(str(folder))), encoding="utf-8")
    return study
