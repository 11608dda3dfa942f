"""Sweeps on disk."""
