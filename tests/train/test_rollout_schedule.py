"""Rollout boundaries and completions, against a walk through the micro-steps as TRL takes them."""

import pytest

from grporecipe.model.planning import boundary_steps
from grporecipe.model.setting import Setting
from grposweep.train.records import build_rollout_schedule


def walk(setting: Setting, steps: int) -> list[tuple[bool, int]]:
    """(is a boundary, completions so far) after each optimizer step, by TRL's own bookkeeping."""
    per_rollout = (setting.steps_per_generation or 1) * setting.num_iterations
    size = setting.per_device_train_batch_size * (setting.steps_per_generation or 1)
    epoch = (setting.train_prompts or 0) // (size // setting.num_generations) * per_rollout
    done, micro, rollouts = [], 0, 0
    while len(done) < steps:
        # an epoch's last optimizer step takes what is left
        left = epoch - micro % epoch
        for _ in range(min(setting.gradient_accumulation_steps, left)):
            rollouts += micro % per_rollout == 0
            micro += 1
        done.append((micro % per_rollout == 0, rollouts * size))
    return done


@pytest.mark.parametrize("accumulation", [1, 2, 3, 4])
@pytest.mark.parametrize(("per_generation", "iterations"), [(1, 1), (2, 1), (3, 2), (4, 1), (6, 1)])
@pytest.mark.parametrize("prompts", [3, 10, 13])
def test_pace_counts_as_trl_does(
    accumulation: int, per_generation: int, iterations: int, prompts: int
) -> None:
    """Every combination of accumulation, reuse and epoch length, over several epochs."""
    setting = Setting(
        processes=1,
        num_generations=2,
        per_device_train_batch_size=2 if prompts >= 6 or per_generation < 4 else 1,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=per_generation,
        num_iterations=iterations,
        train_prompts=prompts,
    )
    pace = build_rollout_schedule(setting)
    expected = walk(setting, 40)
    assert [
        (pace.is_boundary(step), pace.completions_at(step)) for step in range(1, 41)
    ] == expected


def test_a_short_last_step_moves_the_boundaries_of_the_next_epoch() -> None:
    """So save_steps alone does not say where a checkpoint may be."""
    setting = Setting(
        processes=1,
        num_generations=2,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        steps_per_generation=6,
        # one rollout an epoch: 6 micro-steps are a step of 4 and one of 2
        train_prompts=6,
    )
    assert boundary_steps(setting) == 3
    assert [build_rollout_schedule(setting).is_boundary(step) for step in (1, 2, 3, 4)] == [
        False,
        True,
        False,
        True,
    ]
