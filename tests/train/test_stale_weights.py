"""A trial whose vLLM does not get the trained weights ends with one message; any other continues.
Logs are staged.
"""

import pytest

from grporecipe.errors import UserError
from grposweep.storage.results import Failure, same_words
from grposweep.sweep._failures import Evidence, classify_failure
from grposweep.train._vllm import DIFFERENCE, StaleWeightsGuard

# Measured with vLLM's CPU build on the tiny model, as far as the comment says so.

# measured in float32, learning rate 1e-3
NEVER_SENT = [7e-07, 1.3e-01, 2.7e-01, 6.7e-01]
# measured in bfloat16, learning rate 1e-4
SLOWLY = [4.7e-03, 9.6e-03, 2.4e-02, 6.9e-02, 8.0e-02, 9.1e-02]
# the engine has loaded the model that the trial began with
RESUMED = [5e-01, 4e-01, 5e-01]
IN_SYNC = {
    # measured
    "float32": [4e-07, 4e-07, 2e-06, 5e-07, 3e-07],
    # measured
    "bfloat16": [
        4.7e-03,
        7.1e-03,
        4.9e-03,
        3.7e-03,
        1.0e-02,
        2.4e-03,
        1.2e-02,
        4.3e-03,
        1.9e-02,
        4.2e-03,
    ],
    # measured in bfloat16
    "learning rate 1e-2": [4.7e-03, 1.3e-02, 1.1e-02, 6.5e-03, 4.6e-03, 1.2e-02, 4.4e-03],
    # measured in bfloat16
    "learning rate 1": [4.7e-03, 2.8e-02, 0.0, 0.0, 0.0],
    # vLLM renormalises, TRL does not: always that large
    "top_p": [8e-02, 1.2e-01, 1.5e-01, 1.3e-01, 1.1e-01],
    "late divergence": [5e-03] * 12 + [4e-01] * 5,
    "one bad rollout": [5e-03, 5e-01, 4e-01, 6e-03, 5e-03],
    "not finite": [5e-03, float("nan"), float("inf"), float("nan")],
}


def steps_until_failure(
    differences: list[float], guard: StaleWeightsGuard
) -> tuple[int, str] | None:
    """The optimizer step at which the guard ends the trial, and what it says."""
    for step, difference in enumerate(differences, 1):
        try:
            guard.check({"loss": 0.0, DIFFERENCE: difference})
        except UserError as error:
            return step, str(error)
    return None


@pytest.mark.parametrize(
    ("differences", "step"), [(NEVER_SENT, 4), (SLOWLY, 6)], ids=["at once", "slowly"]
)
def test_stale_weights_end_the_trial_and_the_message_has_the_numbers(
    differences: list[float], step: int
) -> None:
    """Three rollouts over the limit are enough."""
    found = steps_until_failure(differences, StaleWeightsGuard("server"))
    assert found is not None
    assert found[0] == step
    assert "the engine's weights are stale" in found[1]
    assert f"{differences[0]:.2g} in the first rollout and {differences[step - 3]:.2g}" in found[1]
    assert "Set generation.use_vllm=false" in found[1]


@pytest.mark.parametrize("case", IN_SYNC)
def test_an_engine_in_sync_is_left_alone(case: str) -> None:
    """Also where rounding or top_p make the difference large, and where a training diverges
    late.
    """
    assert steps_until_failure(IN_SYNC[case], StaleWeightsGuard("colocate")) is None


def test_a_resumed_trial_is_compared_with_its_first_attempt() -> None:
    """After a resume the very first rollout differs, so it cannot be the measure."""
    guard = StaleWeightsGuard("colocate")
    guard.begin(
        [
            {"step": 0, "eval_reward": 0.1},
            {"step": 1, DIFFERENCE: 4e-07},
            {"step": 2, DIFFERENCE: 5e-07},
        ]
    )
    found = steps_until_failure(RESUMED, guard)
    assert found is not None
    assert found[0] == 3
    assert "4e-07 in the first rollout" in found[1]


def test_a_training_without_vllm_is_not_judged() -> None:
    """TRL then logs no difference."""
    guard = StaleWeightsGuard("colocate")
    guard.begin([{"step": 1, "loss": 0.5}])
    guard.check({"loss": 0.1})
    assert guard.first is None


def test_stale_weights_are_a_bad_configuration_and_the_same_in_every_trial() -> None:
    """It is not tried again, and three such trials in a row stop the sweep."""
    messages = [
        steps_until_failure(differences, StaleWeightsGuard("server"))
        for differences in (NEVER_SENT, SLOWLY)
    ]
    words = set()
    for found in messages:
        assert found is not None
        failure = classify_failure(
            Evidence(
                code=2, error=f"bad_input: {found[1]}", logs={"rank-0.log": found[1].splitlines()}
            )
        )
        assert failure is Failure.BAD_CONFIGURATION
        words.add(same_words(failure, found[1]))
    assert len(words) == 1
