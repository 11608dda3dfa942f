"""``grposweep translate``: a recipe in another framework's words, by way of the neutral setting, with what gets lost."""
