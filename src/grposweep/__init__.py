"""Hyperparameter sweeps for GRPO: composed by Hydra, validated before they cost anything, searched by Optuna."""

__version__ = "0.1.0"
