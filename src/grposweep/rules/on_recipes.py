"""The rules on recipes themselves, all registered once this is imported; lint needs them, sweeps do not."""

from grposweep.rules import keys, ms_swift_keys, ms_swift_refused

__all__ = ["FILES"]

FILES = (keys, ms_swift_keys, ms_swift_refused)
