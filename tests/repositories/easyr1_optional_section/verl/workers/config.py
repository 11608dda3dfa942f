from dataclasses import dataclass, field
from typing import Optional
@dataclass
class RewardConfig:
    reward_type: str = "function"
    reward_function: Optional[str] = None
@dataclass
class RolloutConfig:
    n: int = 1
    temperature: float = 1.0
    max_num_batched_tokens: int = 512
    server_url: Optional[str] = None
@dataclass
class ModelConfig:
    model_path: Optional[str] = None
@dataclass
class ActorConfig:
    global_batch_size: int = 256
    micro_batch_size_per_device_for_update: int = 4
    micro_batch_size_per_device_for_experience: int = 16
    model: ModelConfig = field(default_factory=ModelConfig)
@dataclass
class WorkerConfig:
    actor: ActorConfig = field(default_factory=ActorConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    val_reward: Optional[RewardConfig] = None
