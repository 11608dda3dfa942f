"""Bad input: one message that says what is set, why it cannot work, and what to set instead."""


class UserError(Exception):
    """Something a person set cannot work; printed as it is, without a traceback, exit code 2."""


class LeaseLostError(Exception):
    """Another controller has taken this sweep over; this one stops without touching anything."""


class ProgramFailed(Exception):
    """A program of somebody else's that ran a trial ended badly: its exit code as it was (negative: that signal)."""

    def __init__(self, code: int, last_lines: list[str]) -> None:
        self.kind = f"signal {-code}" if code < 0 else f"exit code {code}"
        self.last_lines = last_lines
        super().__init__(f"the program ended with {self.kind}")
