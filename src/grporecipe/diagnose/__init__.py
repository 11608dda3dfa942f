"""Diagnose the log of a GRPO training: read it in any framework's format, and report problems with
steps and numbers.
"""
