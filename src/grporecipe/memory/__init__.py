"""Estimate a rank's GPU memory from the model's shape and a setting; arithmetic without torch."""
