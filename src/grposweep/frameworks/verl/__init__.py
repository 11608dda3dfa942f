"""verl: its reader, writer and keys."""
