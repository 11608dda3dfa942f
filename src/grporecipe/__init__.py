"""Read, judge, plan and fix GRPO recipes of every framework. Needs neither Hydra nor Optuna nor
torch.
"""

__version__ = "0.1.0"
