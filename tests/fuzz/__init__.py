"""Text from outside, damaged in every way: a message at worst, never a traceback, and never a
wait.
"""
