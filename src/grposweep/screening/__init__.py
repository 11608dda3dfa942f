"""Screen prompts, reward and sampling by one rollout of the untrained model: which groups would carry a signal."""
