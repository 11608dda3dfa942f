"""ms_swift: its reader, writer and keys."""
