import trl
from dataclasses import dataclass
@dataclass
class GRPOConfig(trl.GRPOConfig):
    beta: float = 0.0
