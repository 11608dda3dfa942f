"""What a rank needs of its GPU's memory, from the model's shape and a setting alone: arithmetic, no torch."""
