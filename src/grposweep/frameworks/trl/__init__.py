"""trl: its reader, writer and keys."""
