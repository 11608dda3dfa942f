"""What follows from a failure: bounded retries, and an end to what spreads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grposweep.storage.results import Failure, same_words
from grposweep.sweep._failures import Step, is_epidemic, next_step, policies

AGAIN = {Step.RETRY, Step.ELSEWHERE, Step.HEAL}


@pytest.mark.parametrize("failure", list(Failure))
def test_every_class_has_words_and_a_policy(failure: Failure) -> None:
    """A new class without them is noticed here."""
    assert failure.label
    assert failure in policies()


@given(st.lists(st.sampled_from(list(Failure)), min_size=1, max_size=40), st.integers(0, 12))
def test_no_mixture_of_failures_continues_forever(past: list[Failure], requeue_limit: int) -> None:
    """The larger of requeue_limit and the three that a node failure allows."""
    if next_step(past, requeue_limit) in AGAIN:
        assert len(past) <= max(requeue_limit, 3)


@pytest.mark.parametrize(
    ("failure", "steps"),
    [
        (Failure.GPU_MEMORY, [Step.HEAL, Step.FAIL]),
        (Failure.NODE_FAILURE, [Step.ELSEWHERE, Step.ELSEWHERE, Step.ELSEWHERE, Step.FAIL]),
        (Failure.COMMUNICATION, [Step.ELSEWHERE, Step.ELSEWHERE, Step.FAIL]),
        (Failure.HANG, [Step.ELSEWHERE, Step.FAIL]),
        (Failure.KILLED, [Step.RETRY] * 3 + [Step.FAIL]),
        (Failure.HOST_MEMORY, [Step.ELSEWHERE, Step.FAIL]),
        (Failure.PREEMPTED, [Step.RETRY] * 5 + [Step.FAIL]),
        (Failure.TIME_LIMIT, [Step.RETRY] * 5 + [Step.FAIL]),
        (Failure.DISK_FULL, [Step.STOP]),
        *(
            (failure, [Step.FAIL])
            for failure in (
                Failure.BAD_CONFIGURATION,
                Failure.REWARD,
                Failure.CRASH,
                Failure.NON_FINITE,
                Failure.COLLAPSE,
            )
        ),
    ],
)
def test_a_class_is_tried_again_as_often_as_its_policy_says(
    failure: Failure, steps: list[Step]
) -> None:
    """With cluster.requeue_limit=5."""
    assert [next_step([failure] * (n + 1), 5) for n in range(len(steps))] == steps


def test_the_same_crash_in_three_trials_is_an_epidemic_and_three_different_ones_are_none() -> None:
    """Numbers, addresses and paths do not make a difference; a trial that finished ends the row."""
    messages = [f"CUDA error at 0x7f{n}c: /tmp/a{n}/x.py line {n}" for n in range(3)]
    same = [(Failure.CRASH, same_words(Failure.CRASH, message)) for message in messages]
    assert is_epidemic([None, *same])
    assert not is_epidemic([*same, None])
    assert not is_epidemic(
        [same[0], same[1], (Failure.CRASH, same_words(Failure.CRASH, "another"))]
    )
    assert not is_epidemic(same[:2])


def test_what_the_point_decides_is_no_epidemic() -> None:
    """Three diverging learning rates in a row say nothing about the fourth."""
    diverged = (Failure.NON_FINITE, same_words(Failure.NON_FINITE, "eval_reward was not a number"))
    assert not is_epidemic([diverged] * 5)
