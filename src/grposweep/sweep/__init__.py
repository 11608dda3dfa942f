"""The sweep on disk and its controller: crash-only, one writer, everything in files."""
