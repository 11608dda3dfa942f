"""What to do about a failure: try again (here, elsewhere, with a smaller micro-batch), give the trial up, or stop the sweep."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from grposweep.sweep.failures.kinds import Failure

EPIDEMIC = 3  # trials in a row that fail in the same words, before the sweep stops


class Step(StrEnum):
    """What the controller does next with a trial whose attempt failed."""

    RETRY = "retry"
    ELSEWHERE = "elsewhere"  # on other nodes
    HEAL = "heal"  # with what ``heal`` changes, where it can; otherwise FAIL, and a recorded memory constraint
    FAIL = "fail"
    STOP = "stop"  # the trial stays unfinished, and nothing new is submitted


@dataclass(frozen=True)
class Policy:
    """``retries`` counts further attempts of one trial after failures of this class; None: cluster.requeue_limit."""

    retries: int | None
    again: Step
    then: Step = Step.FAIL
    spreads: bool = False
    """Whether the same words in several trials mean that the next trial will fail as well: not where the point decides."""


POLICIES = {
    Failure.PREEMPTED: Policy(None, Step.RETRY),
    Failure.TIME_LIMIT: Policy(None, Step.RETRY),
    Failure.NODE_FAILURE: Policy(3, Step.ELSEWHERE),
    Failure.COMMUNICATION: Policy(2, Step.ELSEWHERE, spreads=True),
    Failure.HANG: Policy(1, Step.ELSEWHERE, spreads=True),
    Failure.GPU_MEMORY: Policy(1, Step.HEAL),
    Failure.HOST_MEMORY: Policy(1, Step.ELSEWHERE, spreads=True),  # a shared node's other jobs may have been the cause
    Failure.DISK_FULL: Policy(0, Step.STOP, Step.STOP),
    Failure.KILLED: Policy(0, Step.FAIL),  # whoever ended it meant to
    Failure.BAD_CONFIGURATION: Policy(0, Step.FAIL, spreads=True),
    Failure.REWARD: Policy(0, Step.FAIL, spreads=True),
    Failure.CRASH: Policy(0, Step.FAIL, spreads=True),
    Failure.NON_FINITE: Policy(0, Step.FAIL),
    Failure.COLLAPSE: Policy(0, Step.FAIL),
}


def next_step(past: Sequence[Failure], requeue_limit: int) -> Step:
    """The step after a trial's failures so far, the newest last.

    ``requeue_limit`` bounds the failures of all classes together, so that no mixture of them goes on for ever.
    """
    newest = past[-1]
    policy = POLICIES[newest]
    limit = requeue_limit if policy.retries is None else policy.retries
    if past.count(newest) <= limit and len(past) <= max(requeue_limit, limit):
        return policy.again
    return policy.then


def same_words(failure: Failure, message: str) -> str:
    """What two failures have in common where they are the same one: no numbers, addresses, paths or quotes."""
    text = re.sub(r"0x[0-9a-fA-F]+|(?:/[\w.@+-]+)+|\d[\d.,:e+-]*", "#", message.splitlines()[0] if message else "")
    return f"{failure}: {' '.join(text.split())[:200]}"


def is_epidemic(endings: Sequence[tuple[Failure, str] | None], count: int = EPIDEMIC) -> bool:
    """Whether the last ``count`` trials to end failed in the same words.

    ``endings`` are in order of time: None for a trial that finished, else its class and ``same_words``.
    """
    last = endings[-count:]
    failed = [ending for ending in last if ending is not None and POLICIES[ending[0]].spreads]
    return len(failed) == count and len(set(failed)) == 1
