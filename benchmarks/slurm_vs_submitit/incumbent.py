"""The same trials as our fake trainer's, for hydra-optuna-sweeper and hydra-submitit-launcher: a
sleep and a number.
"""

import time

import hydra
from omegaconf import DictConfig

STEPS = 10
# of a rollout, on one process
COMPLETIONS = 32


@hydra.main(version_base="1.3", config_path=".", config_name="incumbent")
def main(config: DictConfig) -> float:
    """Refuse what TRL refuses, where TRL does: in the job."""
    if COMPLETIONS % config.generations:
        raise ValueError("the rollout must be divisible by the number of generations")
    time.sleep(STEPS * config.step_seconds)
    return -float(config.step_seconds)


if __name__ == "__main__":
    main()
