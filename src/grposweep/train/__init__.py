"""One attempt at a trial: GRPO with TRL, or the fake trainer. Reached through files only."""
