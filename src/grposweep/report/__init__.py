"""What people look at: tables and the live display, made from the sweep folder."""
