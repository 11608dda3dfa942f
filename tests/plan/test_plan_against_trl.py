"""The same arithmetic by the real GRPOConfig: what it accepts, what it refuses, and what it derives."""

from random import Random
from typing import Any
from unittest.mock import PropertyMock, patch

import pytest

from grposweep import plan
from grposweep.rules import check
from grposweep.setting import Setting

ANSWERS = {
    "must be divisible by num_generations": "GB101",
    "at least 2 generations": "GB102",
    "divisible by the number of generations used for evaluation": "GE101",
}


BATCH = (
    "num_generations", "num_generations_eval", "per_device_train_batch_size", "per_device_eval_batch_size",
    "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size", "num_iterations",
)  # fmt: skip


def draw_setting(random: Random) -> Setting:
    """A batch that is valid about half of the time."""
    processes, size = random.randint(1, 8), random.choice([1, 2, 4, 6, 8, 12])
    rollout = random.choice([None, None, None, processes * size * random.randint(1, 4)])
    return Setting(
        processes=processes,
        num_generations=random.choice([1, 2, 2, 3, 4, 6, 8]),
        per_device_train_batch_size=size,
        gradient_accumulation_steps=random.randint(1, 6),
        steps_per_generation=None if rollout else random.choice([None, None, 1, 2, 3, 4, 8]),
        generation_batch_size=rollout,
        num_iterations=random.randint(1, 3),
        evaluates=random.random() < 0.7,
        per_device_eval_batch_size=random.choice([2, 4, 8, 12, 24]),
        num_generations_eval=random.choice([None, None, 0, 2, 4, 8]),
        max_steps=10,
    )


def construct(s: Setting) -> Any:
    """TRL's configuration of a setting, or its complaint; only the number of processes is not real."""
    from transformers import TrainingArguments
    from trl import GRPOConfig

    batch = {name: getattr(s, name) for name in BATCH}
    with patch.object(TrainingArguments, "world_size", new_callable=PropertyMock, return_value=s.processes):
        try:
            return GRPOConfig(
                output_dir="unused", use_cpu=True, bf16=False, report_to="none", max_steps=10,
                eval_strategy="steps" if s.evaluates else "no", eval_steps=5, **batch,
            )  # fmt: skip
        except ValueError as error:
            return str(error)


@pytest.mark.slow
def test_trl_refuses_what_the_rules_refuse_for_the_same_reason_and_accepts_the_rest() -> None:
    """200 settings; TRL stops at its first complaint, the rules name all, so TRL's must be among them."""
    random, refused = Random(0), 0
    for _ in range(200):
        s = draw_setting(random)
        codes = {problem.code for problem in check(s) if problem.code in ANSWERS.values()}
        made = construct(s)
        if isinstance(made, str):
            refused += 1
            assert next(code for text, code in ANSWERS.items() if text in made) in codes, (s, made)
        else:
            assert not codes, s
            assert made.generation_batch_size == plan.completions_per_rollout(s)
            assert made.steps_per_generation == plan.micro_steps_per_generation(s)
    assert 50 < refused < 150
