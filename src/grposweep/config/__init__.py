"""The configuration: a typed schema, composition by Hydra, and the way from a configuration to a
setting.
"""
