"""open_r1: its reader, writer and keys."""
