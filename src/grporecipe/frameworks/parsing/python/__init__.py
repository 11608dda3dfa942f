"""Read Python files and notebooks that train by their syntax trees. They are never imported."""
