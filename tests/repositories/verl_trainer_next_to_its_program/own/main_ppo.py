from .ray_trainer import RayPPOTrainer
