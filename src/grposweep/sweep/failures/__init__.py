"""Why attempts fail and what to do about it: evidence -> ``classify`` -> ``next_step``; pure but for reading log tails."""

from grposweep.sweep.failures.classify import classify
from grposweep.sweep.failures.evidence import Evidence, log_sizes, read_evidence
from grposweep.sweep.failures.healing import heal
from grposweep.sweep.failures.kinds import Failure
from grposweep.sweep.failures.policy import POLICIES, Policy, Step, is_epidemic, next_step, same_words

__all__ = [
    "POLICIES",
    "Evidence",
    "Failure",
    "Policy",
    "Step",
    "classify",
    "heal",
    "is_epidemic",
    "log_sizes",
    "next_step",
    "read_evidence",
    "same_words",
]
