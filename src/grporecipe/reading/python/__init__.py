"""Read Python files by their syntax tree: configurations, options, and the source of frameworks.
Nothing is executed.
"""
