"""Attempts as Slurm jobs."""
