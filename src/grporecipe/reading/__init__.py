"""Read recipes as their frameworks do: YAML, overrides, launch commands, shell scripts, Python."""
