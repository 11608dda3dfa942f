"""Bad input: one message that says what is set, why it cannot work, and what to set instead."""


class BadInput(Exception):
    """Something a person set cannot work; printed as it is, without a traceback, exit code 2."""


class LostLease(Exception):
    """Another controller has taken this sweep over; this one stops without touching anything."""
