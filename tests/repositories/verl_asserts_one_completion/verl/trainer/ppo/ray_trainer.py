class RayPPOTrainer:
    """Groups are made by the environments."""
