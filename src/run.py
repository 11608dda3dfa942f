"""The Hydra command: ``python src/run.py [-m] lr=... batch=...`` runs one experiment, or sweeps
many.
"""

import sys

from grporecipe.errors import without_traceback

# importing takes a second or two
with without_traceback():
    import hydra
    from omegaconf import DictConfig

    from grposweep.cli.run import command


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def main(config: DictConfig) -> None:
    """One experiment; with -m Hydra calls the sweeper instead."""
    # 0.3 s that --help should not pay
    from grposweep.cli.composed import run_single

    sys.exit(run_single(config))


if __name__ == "__main__":
    command(main)
