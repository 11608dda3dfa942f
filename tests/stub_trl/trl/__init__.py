"""What a training script imports."""

from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

__version__ = "1.16.0"
__all__ = ["GRPOConfig", "GRPOTrainer"]
