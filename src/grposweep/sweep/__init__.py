"""The sweep on disk and its controller: one writer, all state in files, safe to kill at any
time.
"""
