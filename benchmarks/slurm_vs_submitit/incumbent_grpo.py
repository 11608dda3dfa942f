"""Tiny real GRPO for hydra-optuna-sweeper and hydra-submitit-launcher: each job runs one training
of ours, fresh.
"""

import json
import subprocess
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig


@hydra.main(version_base="1.3", config_path=".", config_name="incumbent_grpo")
def main(config: DictConfig) -> float:
    """The objective of one run; what run.py refuses, in a second and before torch, is an invalid
    point.
    """
    name = f"job-{HydraConfig.get().job.num}"
    run = [
        config.python,
        config.run,
        f"lr={config.lr}",
        f"batch.num_generations={config.generations}",
        f"name={name}",
        *config.arguments.split(),
    ]
    done = subprocess.run(run, cwd=config.folder, capture_output=True, text=True, check=False)
    if done.returncode == 2:
        raise ValueError(
            f"the rollout must be divisible by the number of generations: {done.stderr}"
        )
    (result,) = Path(config.folder).glob(f"outputs/{name}/trials/*/result.json")
    return float(json.loads(result.read_text())["objective"])


if __name__ == "__main__":
    main()
