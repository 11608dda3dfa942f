from dataclasses import dataclass, field
from typing import List
from ..workers.config import WorkerConfig
@dataclass
class DataConfig:
    train_files: List[str] = field(default_factory=list)
    rollout_batch_size: int = 512
    max_prompt_length: int = 512
    max_response_length: int = 512
@dataclass
class AlgorithmConfig:
    adv_estimator: str = "grpo"
    kl_coef: float = 1e-3
@dataclass
class TrainerConfig:
    total_epochs: int = 10
    n_gpus_per_node: int = 8
    nnodes: int = 1
@dataclass
class PPOConfig:
    data: DataConfig = field(default_factory=DataConfig)
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
