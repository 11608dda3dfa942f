"""Which trainings have collapsed, and which only look like it."""

import pytest

from grposweep.search.curves import Curve, State, check_curve, one_template


def curve(held_out: list[float], start: float | None = 0.4, **signals: list[float | None]) -> Curve:
    """Ten evaluations make a whole training; the last ones may be to come."""
    completions = [100.0 * (n + 1) for n in range(len(held_out))]
    errors = [0.02] * len(held_out)
    values = completions, held_out, start, errors, signals
    return Curve(1000.0, *values, number=0, state=State.RUNNING)


COLLAPSED = {
    "non_finite": curve([0.5], broken=[1.0]),
    "kl_blow_up": curve([0.4, 0.35, 0.3], kl=[0.1, 40.0, 900.0]),
    "entropy_collapse": curve([0.4, 0.3, 0.3], entropy=[0.8, 1e-4, 1e-5]),
    "no_variance": curve([0.4, 0.3, 0.3, 0.3], zero_std=[0.2, 1.0, 1.0, 1.0]),
    "all_truncated": curve([0.4, 0.3, 0.3, 0.3], truncated=[0.1, 1.0, 1.0, 1.0]),
    "reward_fallen": curve([0.3, 0.1, 0.05]),
}
SOUND = {
    "one step without a loss": curve([0.5], broken=[0.2]),
    "one outlier of KL": curve([0.4, 0.4, 0.4], kl=[0.1, 900.0, 0.2]),
    "far from the reference, and better for it": curve([0.5, 0.7, 0.8], kl=[1.0, 40.0, 60.0]),
    "certain, and right": curve([0.6, 0.99, 0.99], entropy=[0.8, 1e-4, 1e-5]),
    "all groups solved": curve([0.9, 1.0, 1.0, 1.0], zero_std=[0.5, 1.0, 1.0, 1.0]),
    "no variance yet": curve([0.4, 0.4], zero_std=[1.0, 1.0]),
    "a limit that was always too short": curve(
        [0.4, 0.4, 0.4, 0.4], truncated=[1.0, 1.0, 1.0, 1.0]
    ),
    "a dip": curve([0.1, 0.35]),
    "low rewards as noisy as these": curve([0.02, 0.02], start=0.05),
    "a start that was not measured": curve([0.1, 0.05], start=None),
    "nothing logged": curve([0.4, 0.3, 0.3, 0.3]),
}


@pytest.mark.parametrize("guard", COLLAPSED)
def test_each_guard_finds_its_collapse_and_says_what_it_saw(guard: str) -> None:
    """In words that a user can check."""
    alarm = check_curve(COLLAPSED[guard])
    assert alarm is not None
    assert alarm.guard == guard
    assert any(digit.isdigit() for digit in alarm.evidence) or guard == "non_finite"


@pytest.mark.parametrize("case", SOUND)
def test_no_guard_ends_a_training_that_may_recover_or_has_learned(case: str) -> None:
    """Better one collapse too late than a good trial lost."""
    assert check_curve(SOUND[case]) is None


@pytest.mark.parametrize("guard", COLLAPSED)
def test_a_guard_is_silent_one_evaluation_before(guard: str) -> None:
    """The evidence has just become enough."""
    whole = COLLAPSED[guard]
    if len(whole.held_out) > 1:
        before = {name: list(values[:-1]) for name, values in whole.signals.items()}
        assert check_curve(curve(list(whole.held_out[:-1]), whole.start, **before)) is None


def test_the_guard_against_templates_has_the_limit_that_is_set() -> None:
    """Two evaluations in a row; it holds for a trial that is better than its start as well, which
    is what it is for.
    """
    gamed = curve([0.5, 0.9, 0.95], templates=[0.1, 0.7, 0.8])
    found = one_template(gamed, 0.5)
    assert found is not None
    assert found.evidence == (
        "80% of the held-out completions are one template, more than "
        "search.max_template_share=0.5 twice"
    )
    assert one_template(gamed, 0.75) is None
    assert check_curve(gamed) is None
