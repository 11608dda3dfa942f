"""A value that only a running program knows: no error rests on it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grporecipe.linting.linter import lint_recipe
from grporecipe.model.recipe import Recipe
from grporecipe.reading.load import Options, build_recipe, load_recipe
from support import PROJECT
from verdicts import error_codes

SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
TRL: dict[str, tuple[Any, ...]] = {
    "num_generations": SIZES,
    "per_device_train_batch_size": SIZES,
    "gradient_accumulation_steps": SIZES,
    "steps_per_generation": SIZES,
    "num_iterations": (1, 2),
    "beta": (0.0, 0.04),
    "sync_ref_model": (True, False),
    "temperature": (0.0, 1.0),
    "epsilon": (0.2, 1.5),
    "loss_type": ("dapo", "luspo"),
    "learning_rate": (1e-6, 0.0),
}
SWIFT: dict[str, tuple[Any, ...]] = {
    "rlhf_type": ("grpo",),
    **{key: TRL[key] for key in ("num_generations", "beta", "temperature")},
}
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
VERL: dict[str, tuple[Any, ...]] = {
    "data.train_batch_size": SIZES,
    f"{ROLLOUT}.n": SIZES,
    f"{ACTOR}.ppo_mini_batch_size": SIZES,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": SIZES,
    f"{ACTOR}.use_dynamic_bsz": (True, False),
    "trainer.nnodes": (1, 2),
    f"{ACTOR}.ulysses_sequence_parallel_size": (1, 2, 3),
    f"{ROLLOUT}.temperature": (0.0, 1.0),
    f"{ACTOR}.ppo_micro_batch_size": (2, 4, 8),
    "trainer.n_gpus_per_node": (1, 2, 4, 8),
}
EASYR1: dict[str, tuple[Any, ...]] = {
    "data.rollout_batch_size": SIZES,
    "worker.rollout.n": SIZES,
    "worker.actor.global_batch_size": SIZES,
    "worker.actor.micro_batch_size_per_device_for_update": SIZES,
    "trainer.n_gpus_per_node": (1, 2, 3, 8),
    "worker.rollout.temperature": (0.0, 1.0),
}
PROCESSES = ("trainer.nnodes", "trainer.n_gpus_per_node")
KEYS = {"trl": TRL, "ms-swift": SWIFT, "verl": VERL, "easyr1": EASYR1}


def errors(recipe: Recipe) -> set[str]:
    """The codes of a recipe's errors."""
    return error_codes(lint_recipe(recipe, with_fixes=False).diagnostics)


@pytest.mark.slow
@given(st.data())
def test_an_error_is_true_for_every_value_of_a_key_that_is_unknown(data: st.DataObject) -> None:
    """The environment of a run cannot hold a value that avoids it."""
    framework = data.draw(st.sampled_from(sorted(KEYS)))
    choices = KEYS[framework]
    config = {key: data.draw(st.sampled_from(values), key) for key, values in choices.items()}
    key = data.draw(
        st.sampled_from(sorted(key for key, values in choices.items() if len(values) > 1))
    )
    options = Options(framework, processes=data.draw(st.sampled_from([None, 1, 2, 8])))
    # Readers keep the word itself, or nothing.
    written = data.draw(st.sampled_from([{key: "$VALUE"}, {}]))
    others = {name: value for name, value in config.items() if name != key}
    hidden = replace(build_recipe(others | written, options), unresolved={key: "$VALUE"})
    found = errors(hidden)
    for value in choices[key]:
        true = errors(build_recipe(config | {key: value}, options))
        # If no number of processes would do, the rule that is named may be another one for each
        # number.
        assert bool(true) >= bool(found) if key in PROCESSES else found <= true, (key, value)


OF_EASYR1 = PROJECT / "tests" / "repositories" / "easyr1_optional_section"
# by rule: a launch that breaks it, the fork's files, the check
FORKS: dict[str, tuple[str, dict[str, str], str]] = {
    "GB101": (
        "accelerate launch --num_processes 1 -m trl.scripts.grpo --num_generations 8 "
        "--per_device_train_batch_size 3",
        {
            "VERSION": "1.9.0",
            "trl/trainer/grpo_config.py": "class GRPOConfig:\n    num_generations: int = 8\n",
            "trl/trainer/grpo_trainer.py": "",
        },
        "if batch % num_generations: raise ValueError",
    ),
    "GB106": (
        "NPROC_PER_NODE=2 swift rlhf --rlhf_type grpo --model m --num_generations 4 "
        "--per_device_train_batch_size 4 --generation_batch_size 12",
        {"swift/version.py": "__version__ = '4.5.0'\n", "swift/rlhf_trainers/grpo_trainer.py": ""},
        "if self.generation_batch_size % global_batch_size: raise ValueError",
    ),
    "GB303": (
        "python3 -m verl.trainer.main data.rollout_batch_size=500 worker.rollout.n=8 "
        "worker.actor.global_batch_size=128",
        {
            **{
                name: (OF_EASYR1 / name).read_text()
                for name in ("verl/trainer/config.py", "verl/workers/config.py")
            },
            "verl/trainer/ray_trainer.py": "",
        },
        "if config.data.rollout_batch_size % config.worker.actor.global_batch_size: raise "
        "ValueError",
    ),
}


@pytest.mark.parametrize("code", FORKS)
def test_a_check_that_a_fork_does_not_have_is_not_judged(code: str, tmp_path: Path) -> None:
    """A note says so; with the check in the fork's trainer it is an error."""
    launch, files, check = FORKS[code]
    *_, trainer = files
    found = {}
    for is_checked in (False, True):
        folder = tmp_path / str(is_checked)
        (folder / ".git").mkdir(parents=True)
        for name, text in {**files, "run.sh": launch + "\n"}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text + (check + "\n") * (is_checked and name == trainer))
        found[is_checked] = lint_recipe(
            load_recipe(folder / "run.sh", Options()), with_fixes=False
        ).diagnostics
    assert code in {each.code for each in found[True] if each.severity == "error"}
    assert code not in {each.code for each in found[False]}
    assert any(each.code == "GV106" and code in each.message for each in found[False])
