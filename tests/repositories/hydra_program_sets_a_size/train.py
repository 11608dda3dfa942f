"""A program of a repository with its own trainer: the batch follows from its groups of environments."""

import hydra


@hydra.main(version_base=None, config_path="config", config_name="base")
def main(config):
    """Set the size, and train."""
    config.data.train_batch_size = config.groups.count * config.groups.size
