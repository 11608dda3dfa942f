"""Screen prompts, reward and sampling with one rollout of the untrained model, to see which groups carry a signal."""
