"""GRPO frameworks: one folder each, with its keys, reader, writer and own rules.

A framework is a `Framework` named ``FRAMEWORK`` in its folder, and a line in
``registries.FRAMEWORKS``. A recipe's framework is detected by its keys and by the programs and
paths it names, never by what is importable here.
"""
