import torch
class GRPOTrainer: pass
