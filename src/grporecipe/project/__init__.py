"""The project around a recipe: its settings, its repository, and the version that judges."""
