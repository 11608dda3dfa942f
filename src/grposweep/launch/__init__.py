"""Where attempts run: one contract (submit, poll, cancel) for every launcher."""
