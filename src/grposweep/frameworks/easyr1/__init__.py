"""easyr1: its reader, writer and keys."""
