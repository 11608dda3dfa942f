"""The linter: ``linter`` finds problems with verified fixes; ``command`` reads, ``output`` prints,
``apply_fixes`` writes.
"""
