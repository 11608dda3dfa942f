"""Parsers for recipes: YAML, overrides, bash, launch commands."""
