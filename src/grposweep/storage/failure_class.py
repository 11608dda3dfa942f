"""The classes of failures, as result.json and reports name them."""

from enum import StrEnum


class Failure(StrEnum):
    """The root cause of an attempt's end."""

    GPU_MEMORY = "gpu_memory"
    HOST_MEMORY = "host_memory"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"
    NODE_FAILURE = "node_failure"
    COMMUNICATION = "communication"
    HANG = "hang"
    BAD_CONFIGURATION = "bad_configuration"
    REWARD = "reward"
    NON_FINITE = "non_finite"
    COLLAPSE = "collapse"
    KILLED = "killed"
    DISK_FULL = "disk_full"
    CRASH = "crash"  # anything else

    @property
    def words(self) -> str:
        """The class as a person would say it."""
        return _WORDS[self]


_WORDS = {
    Failure.GPU_MEMORY: "out of GPU memory",
    Failure.HOST_MEMORY: "out of host memory",
    Failure.PREEMPTED: "preempted",
    Failure.TIME_LIMIT: "time limit reached",
    Failure.NODE_FAILURE: "a node or GPU failed",
    Failure.COMMUNICATION: "the ranks lost touch",
    Failure.HANG: "no sign of life",
    Failure.BAD_CONFIGURATION: "a configuration that cannot work",
    Failure.REWARD: "a reward function failed",
    Failure.NON_FINITE: "the training diverged",
    Failure.COLLAPSE: "the policy collapsed",
    Failure.KILLED: "ended by hand",
    Failure.DISK_FULL: "the disk is full",
    Failure.CRASH: "crashed",
}


def words_of(name: str) -> str:
    """A class as a person would say it, by the name that a file gives it; the name itself where it is none of ours."""
    return Failure(name).words if name in set(Failure) else name
