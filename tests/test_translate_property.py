"""What is valid in one framework's words is the same training in another's, up to what the translation says is lost."""

import shutil
from math import gcd
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from grporecipe.fields.recipes import read_recipe, write_recipe
from grporecipe.model import planning
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.recipe import Recipe
from grporecipe.model.setting import Setting
from grporecipe.reading.load import Options, load_recipe
from grporecipe.rules.check import check, errors
from grporecipe.translate import differences, read_back, translate
from grposweep.config.from_setting import translate_own
from support import PROJECT, examples

IN_PROMPTS = sorted(name for name, known in FRAMEWORKS.items() if known.traits.unit == "prompts")
WRITERS = sorted(FRAMEWORKS)
# A number that a framework cannot keep is named by one of these words in what the translation says is lost.
WORDS = {
    "completions per rollout": ("rollout",),
    "prompts per rollout": ("rollout", "prompts"),
    "completions per optimizer step": ("step",),
    "optimizer steps per rollout": ("rollout", "step"),
    "optimizer steps": ("step", "rollout", "epoch"),
    "KL coefficient in the loss": ("KL",),
}


@st.composite
def valid_settings(draw: st.DrawFn) -> Setting:
    """TRL's settings of all sizes: groups are whole on every number of processes, steps may span or straddle rollouts."""
    processes, group = draw(st.sampled_from([1, 2, 3, 7, 8])), draw(st.sampled_from([2, 4, 8, 14]))
    size, accumulation = draw(st.sampled_from([1, 2, 4, 16])), draw(st.sampled_from([1, 2, 3, 8]))
    unit = group // gcd(group, processes * size)
    micro_steps = unit * draw(st.sampled_from([1, 2, 3]))
    beta = draw(st.sampled_from([0.0, 1e-3, 0.04]))
    steps = draw(st.sampled_from([None, 1, 100]))
    s = Setting(
        given=frozenset({"framework"}),
        processes=processes,
        num_generations=group,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=draw(st.sampled_from([accumulation, micro_steps])),
        steps_per_generation=draw(st.sampled_from([micro_steps, None])),
        num_iterations=draw(st.sampled_from([1, 2])),
        evaluates=False,
        eval_strategy="no",
        train_prompts=draw(st.sampled_from([997, 8000])),
        max_steps=steps,
        epochs=None if steps else draw(st.sampled_from([1.0, 2.0])),
        beta=beta,
        use_bias_correction_kl=draw(st.booleans()),
        loss_type=draw(st.sampled_from(["grpo", "bnpo", "dr_grpo", "dapo"])),
        epsilon_high=draw(st.sampled_from([None, 0.28])),
        scale_rewards=draw(st.sampled_from(["group", "none"])),
        learning_rate=draw(st.sampled_from([1e-6, 3e-4])),
        lr_scheduler_type=draw(st.sampled_from(["constant", "linear", "cosine"])),
        warmup_steps=draw(st.sampled_from([0.0, 0.1, 10.0])),
        temperature=draw(st.sampled_from([0.7, 1.0])),
        max_completion_length=draw(st.sampled_from([64, 1024])),
        save_steps=draw(st.sampled_from([None, 50.0])),
        lora=draw(st.booleans()),
        lora_rank=draw(st.sampled_from([8, 64])),
        lora_alpha=draw(st.sampled_from([16.0, 24.0])),
    )
    assume(not errors(check(s)))
    return s


def unstated(before: Setting, after: Setting, losses: tuple[str, ...]) -> list[str]:
    """Numbers that changed without a message."""
    said = " ".join(losses)
    return [found for found in differences(before, after)
            if not any(word in said for word in WORDS.get(found.partition(":")[0], ()))]  # fmt: skip


@pytest.mark.parametrize("target", WRITERS)
@settings(max_examples=examples(60), deadline=None)
@given(s=valid_settings())
def test_what_is_written_reads_back_as_the_same_plan(target: str, s: Setting) -> None:
    """Every writer of the table, its own reader, no number lost without a message."""
    written = write_recipe(s, target)
    assert unstated(s, read_back(written, target, s), written.losses) == []


@pytest.mark.parametrize("target", WRITERS)
@settings(max_examples=examples(30), deadline=None)
@given(s=valid_settings())
def test_there_and_back_again_is_where_it_began(target: str, s: Setting) -> None:
    """TRL's words, another framework's, and TRL's again."""
    there = write_recipe(s, target)
    between = read_back(there, target, s)
    back = write_recipe(between, "trl")
    assert unstated(s, read_back(back, "trl", between), (*there.losses, *back.losses)) == []


@pytest.mark.parametrize("target", ["trl", "ms-swift"])
@settings(max_examples=examples(30), deadline=None)
@given(s=valid_settings())
def test_completions_are_kept_exactly_among_those_that_count_them(target: str, s: Setting) -> None:
    """TRL and ms-swift size alike: nothing of the sizes may be lost at all."""
    after = read_back(write_recipe(s, target), target, s)
    assert planning.build_plan(after).completions_per_rollout == planning.build_plan(s).completions_per_rollout
    assert planning.completions_per_step(after) == planning.completions_per_step(s)
    assert planning.total_steps(after) == planning.total_steps(s)


@pytest.mark.parametrize("target", IN_PROMPTS)
@settings(max_examples=examples(30), deadline=None)
@given(s=valid_settings())
def test_sizes_that_prompts_can_say_are_kept_exactly(target: str, s: Setting) -> None:
    """Whole groups a step, whole steps per rollout, whole steps on every rank: nothing of them may be lost."""
    rollout, step = planning.completions_per_rollout(s) or 0, planning.completions_per_step(s) or 0
    assume(step % s.num_generations == 0 and rollout % step == 0)
    after = read_back(write_recipe(s, target), target, s)
    assert (planning.completions_per_rollout(after), planning.completions_per_step(after)) == (rollout, step)
    assert (after.num_generations, after.num_iterations) == (s.num_generations, s.num_iterations)
    assert (after.learning_rate, after.beta, after.temperature) == (s.learning_rate, s.beta, s.temperature)
    assert (after.epsilon, after.max_completion_length) == (s.epsilon, s.max_completion_length)


KEYS = ("lr_scheduler_type", "learning_rate", "beta", "loss_type", "num_generations", "save_steps", "temperature")


@pytest.mark.parametrize("target", WRITERS)
@settings(max_examples=examples(30), deadline=None)
@given(hidden=st.sets(st.sampled_from(KEYS), min_size=1))
def test_a_value_that_only_the_script_knows_is_listed_and_never_written(target: str, hidden: set[str]) -> None:
    """Its word stands in comments alone, and what is written is the default of the framework that was read."""
    config = {"num_generations": 8, "per_device_train_batch_size": 8, "learning_rate": 2e-6, "warmup_steps": 10}
    words = {key: f"word_{key}" for key in hidden}
    lines = dict.fromkeys(words, 1)
    recipe = Recipe("trl", (1, 16, 0), {**config, **words}, 8, file="t.py", lines=lines, unresolved=words)
    made = translate(read_recipe(recipe).setting, target, recipe)
    assert not any(word in text for text in made.files.values() for word in words.values())
    assert all(any(word in loss for loss in made.losses) for word in words.values())


@pytest.mark.parametrize("target", WRITERS)
def test_the_group_of_a_fork_is_named_as_a_guess(target: str, tmp_path: Path) -> None:
    """Its trainer sizes groups by a key of its own: the translation fails and names the key, and its other keys are listed."""
    folder = shutil.copytree(PROJECT / "tests" / "repositories" / "verl_groups_by_another_key", tmp_path / "fork")
    (folder / ".git").mkdir()
    recipe = load_recipe(folder / "run.sh", Options())
    made = translate(read_recipe(recipe).setting, target, recipe)
    assert any("env.rollout.n" in said and "set what trains" in said for said in made.changed)
    assert any("env.rollout.n=8" in loss for loss in made.losses) or target == "verl"


@settings(max_examples=examples(30), deadline=None)
@given(s=valid_settings())
def test_our_own_groups_are_written_for_every_setting(s: Setting) -> None:
    """Files of six groups and a study; what no key of ours says is listed."""
    translation = translate_own(s)
    assert len(translation.files) == 7
    assert translation.losses
