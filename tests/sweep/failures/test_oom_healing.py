"""A healed attempt trains on the same completions, step by step; only its micro-batches are
smaller.
"""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grporecipe.model import planning
from grporecipe.model.setting import Setting
from grporecipe.rules.check import check, errors
from grposweep.config.fields import KEYS
from grposweep.config.to_setting import read_setting
from grposweep.schema import Experiment
from grposweep.storage.records import OomFix, apply_oom_fix
from grposweep.sweep._oom import SPLITTABLE, halve_batch

BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")


def setting(size: int, accumulation: int, generation: int | None = None, **more: Any) -> Setting:
    """A valid setting of four processes and groups of four."""
    batch = dict(zip(BATCH, (size, accumulation, generation), strict=True))
    return Setting(
        processes=4,
        num_generations=4,
        max_steps=10,
        epochs=None,
        keys=KEYS,
        **{"loss_type": "grpo", **batch, **more},
    )


def test_the_micro_batch_is_halved_and_the_accumulation_doubled() -> None:
    """And a rollout's micro-steps, where they are set; otherwise TRL derives them from the
    accumulation.
    """
    assert halve_batch(setting(8, 3)) == dict(zip(BATCH[:2], (4, 6), strict=True))
    assert halve_batch(setting(8, 3, 6)) == dict(zip(BATCH, (4, 6, 12), strict=True))
    assert halve_batch(setting(9, 1)) == dict(zip(BATCH[:2], (3, 3), strict=True))


@pytest.mark.parametrize(
    "hopeless",
    [
        setting(1, 8),
        setting(8, 1, loss_type="bnpo"),
        setting(8, 1, use_liger_kernel=True),
        setting(8, 1, loss_type="new"),
    ],
    ids=["one completion", "bnpo", "liger", "a loss of tomorrow"],
)
def test_what_cannot_be_split_or_would_train_otherwise_is_not_healed(hopeless: Setting) -> None:
    """It becomes a failed trial."""
    assert halve_batch(hopeless) is None


@given(
    st.integers(1, 24),
    st.integers(1, 6),
    st.none() | st.integers(1, 8),
    st.integers(1, 3),
    st.sampled_from(sorted(SPLITTABLE)),
    st.sampled_from([1, 2, 3, 8]),
)
def test_healing_keeps_rollouts_and_steps(
    size: int, accumulation: int, generation: int | None, reuse: int, loss: str, processes: int
) -> None:
    """Completions a rollout and a step, optimizer steps per rollout, and validity."""
    before = setting(size, accumulation, generation, num_iterations=reuse, loss_type=loss).replace(
        {"processes": processes}
    )
    changes = halve_batch(before)
    if changes is None or errors(check(before)):
        return
    after = before.replace(changes)
    assert not errors(check(after))
    for number in (
        planning.completions_per_rollout,
        planning.completions_per_step,
        planning.steps_per_rollout,
        planning.total_steps,
    ):
        assert number(after) == number(before)
    assert after.per_device_train_batch_size < before.per_device_train_batch_size


def test_an_experiment_whose_sizes_were_left_to_the_planner_is_healed_too(tmp_path: Path) -> None:
    """The planner's own size is halved, and evaluation keeps its size: the objective is measured as
    before.
    """
    experiment = Experiment()
    experiment.batch.prompts_per_step = 8
    experiment.batch.num_generations = 8
    experiment.schedule.max_steps = 10
    before = read_setting(experiment)
    changes = halve_batch(before)
    assert changes is not None
    OomFix(changes, "out of GPU memory", attempt=0).write(tmp_path)
    after = read_setting(apply_oom_fix(tmp_path, experiment))
    assert not errors(check(after))
    assert after.per_device_train_batch_size * 2 == before.per_device_train_batch_size == 64
    assert after.per_device_eval_batch_size == before.per_device_eval_batch_size
    assert planning.completions_per_step(after) == planning.completions_per_step(before)


@pytest.mark.slow
@pytest.mark.parametrize("generation", [None, 4])
def test_trl_derives_the_same_rollout_for_a_healed_batch(
    generation: int | None, tmp_path: Any
) -> None:
    """By the real GRPOConfig."""
    from trl import GRPOConfig

    before = Setting(
        processes=1,
        num_generations=4,
        loss_type="dapo",
        max_steps=10,
        **dict(zip(BATCH, (8, 2, generation), strict=True)),
    )
    changes = halve_batch(before)
    assert changes is not None
    configs = [
        GRPOConfig(
            output_dir=str(tmp_path),
            num_generations=4,
            use_cpu=True,
            **{n: getattr(s, n) for n in BATCH},
        )
        for s in (before, before.replace(changes))
    ]
    steps = [
        c.per_device_train_batch_size * c.gradient_accumulation_steps * c.world_size
        for c in configs
    ]
    assert steps[0] == steps[1] == 16
    assert (
        configs[0].generation_batch_size
        == configs[1].generation_batch_size
        == 8 * (generation or 2)
    )
    assert configs[1].steps_per_generation == 2 * configs[0].steps_per_generation
