"""One attempt at a trial: real GRPO with TRL, or a fake of it; reached through files and a command only."""
