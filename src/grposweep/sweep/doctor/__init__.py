"""``grposweep doctor``: what a sweep's files should agree on, where they do not, and what would mend it."""

from grposweep.sweep.doctor.visit import visit

__all__ = ["visit"]
