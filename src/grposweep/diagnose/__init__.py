"""Diagnose the log of a GRPO training: read it in any framework's format, and say what happens."""
