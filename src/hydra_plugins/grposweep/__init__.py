"""Hydra's door to grposweep: its sweeper."""
