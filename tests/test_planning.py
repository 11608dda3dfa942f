"""The plan's formulas: known cases, and a walk through TRL's sampler and epoch loop written down
here once more.
"""

from dataclasses import replace
from itertools import pairwise, product
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grporecipe.model import planning
from grporecipe.model.setting import Setting

COUNT = st.integers(1, 6)


@st.composite
def valid_settings(draw: st.DrawFn) -> Setting:
    """Any setting that TRL accepts: whole groups, and data for at least one rollout."""
    size, processes, accumulation = draw(COUNT), draw(st.integers(1, 4)), draw(COUNT)
    per_generation = draw(st.one_of(st.none(), COUNT))
    as_completions = draw(st.booleans())
    rollout = size * processes * (per_generation or accumulation)
    generations = draw(st.sampled_from([n for n in range(1, rollout + 1) if rollout % n == 0]))
    prompts = rollout // generations
    return Setting(
        processes=processes,
        num_generations=generations,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=None if as_completions else per_generation,
        generation_batch_size=rollout if as_completions and per_generation else None,
        num_iterations=draw(st.integers(1, 3)),
        train_prompts=draw(st.integers(prompts, 8 * prompts + 5)),
        epochs=draw(st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0])),
    )


class Walk(NamedTuple):
    """What happened in a simulated training."""

    steps: int
    rollouts: int
    # optimizer steps after which no generated completion is left to train on
    boundaries: list[int]
    # prompts that an epoch never sees
    dropped: int


def walk(s: Setting, max_steps: int | None = None) -> Walk:
    """RepeatSampler, the data loader and transformers' epoch loop, one micro-step at a time."""
    assert s.processes is not None
    assert s.train_prompts is not None
    a_micro_step = s.processes * s.per_device_train_batch_size
    rollout = s.generation_batch_size or a_micro_step * (
        s.steps_per_generation or s.gradient_accumulation_steps
    )
    per_generation = rollout // a_micro_step
    chunk = rollout // s.num_generations
    chunks = [
        c
        for i in range(0, s.train_prompts, chunk)
        if len(c := range(s.train_prompts)[i : i + chunk]) == chunk
    ]
    repeats = range(s.num_iterations * per_generation)
    samples = [p for c in chunks for _ in repeats for p in c for _ in range(s.num_generations)]
    # TRL's loader gives a whole rollout for every micro-step
    batches = len(samples) // rollout
    updates = max(
        batches // s.gradient_accumulation_steps + int(batches % s.gradient_accumulation_steps > 0),
        1,
    )
    total = max_steps if max_steps is not None else -int(-(s.epochs or 0) * updates // 1)
    steps = micro = rollouts = 0
    boundaries = []
    every = per_generation * s.num_iterations
    # an epoch
    while steps < total:
        for batch in range(batches):
            rollouts += micro % every == 0
            micro += 1
            if (batch + 1) % s.gradient_accumulation_steps == 0 or batch + 1 == batches:
                steps += 1
                if micro % every == 0:
                    boundaries.append(steps)
                if steps >= total:
                    break
    return Walk(steps, rollouts, boundaries, s.train_prompts - len({*samples}))


@settings(max_examples=150)
@given(s=valid_settings())
def test_steps_rollouts_and_dropped_prompts_are_those_of_a_walk(s: Setting) -> None:
    """Every formula at once, for a run of epochs."""
    seen = walk(s)
    made = planning.build_plan(s)
    assert (made.total_steps, made.dropped_prompts) == (seen.steps, seen.dropped)
    assert made.total_completions == seen.rollouts * (made.completions_per_rollout or 0)


@settings(max_examples=60)
@given(s=valid_settings(), steps=st.integers(1, 30))
def test_a_run_of_steps_generates_what_a_walk_generates(s: Setting, steps: int) -> None:
    """``max_steps`` wins over the epochs, and the last epoch may be cut short."""
    made = planning.build_plan(replace(s, max_steps=steps))
    assert made.total_steps == steps
    assert made.total_completions == walk(s, steps).rollouts * (made.completions_per_rollout or 0)


@settings(max_examples=60)
@given(s=valid_settings(), budget=st.integers(1, 400))
def test_a_budget_is_never_overspent_and_the_next_step_would(s: Setting, budget: int) -> None:
    """The steps of a budget are the most that its whole rollouts pay for (on one long epoch)."""
    enough = (planning.prompts_per_rollout(s) or 0) * (
        budget // (planning.completions_per_rollout(s) or 1) + 8
    )
    s = replace(s, epochs=None, budget_completions=budget, train_prompts=enough)
    rollout = planning.completions_per_rollout(s) or 0
    steps = planning.total_steps(s) or 0
    assert steps == 0 or walk(s, steps).rollouts * rollout <= budget
    assert walk(s, steps + 1).rollouts * rollout > budget


@settings(max_examples=60)
@given(s=valid_settings())
def test_boundaries_are_where_no_generated_completion_is_left(s: Setting) -> None:
    """A checkpoint on any multiple resumes exactly (within an epoch, or where epochs end on whole
    steps).
    """
    every = planning.boundary_steps(s)
    rollouts = int(6 * every / planning.steps_per_rollout(s))
    s = replace(s, train_prompts=(planning.prompts_per_rollout(s) or 0) * rollouts)
    seen = walk(s, 6 * every)
    assert seen.boundaries == [every * n for n in range(1, 7)]


@settings(max_examples=60)
@given(s=valid_settings(), checkpoints=st.integers(1, 5))
def test_checkpoints_fall_on_rollout_boundaries(s: Setting, checkpoints: int) -> None:
    """As many as asked for, or as many as there are boundaries."""
    s = replace(s, checkpoints=checkpoints)
    every = planning.save_every(s)
    assert every is not None
    assert every % planning.boundary_steps(s) == 0
    assert every <= max((planning.total_steps(s) or 0) // checkpoints, planning.boundary_steps(s))


def test_a_save_interval_that_a_recipe_names_is_kept() -> None:
    """Another project's recipe is read, not improved; no checkpoints means none."""
    s = Setting(processes=1, max_steps=10, save_steps=7, checkpoints=2)
    assert planning.save_every(s) == 7
    # a share of all steps, rounded up, as in transformers
    assert planning.save_every(replace(s, save_steps=0.25)) == 3
    assert planning.save_every(replace(s, save_steps=None, checkpoints=0)) is None
    assert planning.evaluate_every(replace(s, eval_steps=0.25)) == 3


def test_data_that_fill_no_rollout_give_no_step() -> None:
    """As in TRL with max_steps: it finishes without one."""
    s = Setting(
        processes=1,
        num_generations=8,
        per_device_train_batch_size=64,
        train_prompts=7,
        max_steps=10,
    )
    assert planning.total_steps(s) == 0


def test_what_depends_on_an_unknown_is_unknown() -> None:
    """None is never a default in disguise."""
    made = planning.build_plan(Setting(processes=None, epochs=1.0, train_prompts=100))
    assert (
        made.completions_per_rollout
        is made.total_steps
        is made.prompts_per_step
        is made.evaluation_batches
        is None
    )
    assert planning.total_steps(Setting(processes=1, epochs=1.0)) is None
    assert planning.prompts_per_rollout(Setting(processes=1, num_generations=7)) is None


def test_an_evaluation_takes_the_batches_that_its_completions_fill() -> None:
    """ceil(100 x 8 / (64 x 2)); none where nothing is evaluated."""
    s = Setting(processes=2, per_device_eval_batch_size=64, num_generations=8, eval_prompts=100)
    assert planning.evaluation_batches(s) == 7
    assert planning.evaluation_batches(replace(s, num_generations_eval=4)) == 4
    assert planning.evaluation_batches(replace(s, evaluates=False)) is None


@settings(max_examples=200)
@given(total=st.integers(1, 400), count=st.integers(1, 12))
def test_a_spread_is_even_and_ends_at_the_end(total: int, count: int) -> None:
    """No gap differs from the even one by more than the rounding of its two ends."""
    marks = planning.spread(total, count)
    assert marks[-1] == total
    assert len(marks) <= count
    if total >= count:
        assert all(abs(b - a - total / count) <= 1 for a, b in pairwise((0, *marks)))


def test_nothing_is_spread_over_nothing() -> None:
    """No steps, no marks; no count, no marks."""
    assert planning.spread(0, 4) == planning.spread(10, 0) == ()
    assert planning.spread(10, 1) == (10,)
    assert planning.spread(2, 4) == (1, 2)


AUTO = frozenset({"per_device_train_batch_size", "gradient_accumulation_steps"})


@settings(max_examples=150)
@given(
    prompts=st.integers(1, 24),
    generations=st.integers(2, 16),
    processes=st.integers(1, 8),
    bound=st.integers(1, 40),
)
def test_auto_keeps_what_the_algorithm_sees_and_takes_the_largest_size(
    prompts: int, generations: int, processes: int, bound: int
) -> None:
    """Brute force over all sizes: the step stays whole, B is the largest within the bound;
    otherwise it says so.
    """
    asked = Setting(
        processes=processes, num_generations=generations, prompts_per_step=prompts, auto=AUTO
    )
    s = planning.realise(replace(asked, max_per_device_train_batch_size=bound))
    wanted = prompts * generations
    fits = [
        b
        for b, a in product(range(1, bound + 1), range(1, wanted + 1))
        if b * a * processes == wanted
    ]
    assert (s.unsolved == frozenset()) == bool(fits)
    if fits:
        assert s.per_device_train_batch_size == max(fits)
        assert planning.completions_per_step(s) == wanted


@settings(max_examples=100)
@given(
    generations=st.integers(1, 16),
    processes=st.integers(1, 8),
    bound=st.integers(1, 64),
    prompts=st.integers(1, 100),
)
def test_an_automatic_evaluation_batch_holds_whole_groups(
    generations: int, processes: int, bound: int, prompts: int
) -> None:
    """The largest within the bound; never more than the held-out set needs, unless one group needs
    it.
    """
    asked = Setting(processes=processes, num_generations=generations, eval_prompts=prompts)
    auto = frozenset({"per_device_eval_batch_size"})
    s = planning.realise(replace(asked, auto=auto, max_per_device_train_batch_size=bound))
    size = s.per_device_eval_batch_size
    fits = [b for b in range(1, bound + 1) if b * processes % generations == 0]
    assert size * processes % generations == 0
    assert size <= bound or size == min(b for b in range(1, 65) if b * processes % generations == 0)
    assert bool(fits) == (size <= bound)


@pytest.mark.parametrize(
    "fixed", [{"per_device_train_batch_size": 16}, {"gradient_accumulation_steps": 4}]
)
def test_one_size_given_the_other_is_solved_for(fixed: dict[str, int]) -> None:
    """Sixty-four completions on one process are 16 x 4, whichever is written down."""
    s = Setting(processes=1, prompts_per_step=8, auto=AUTO - set(fixed), **fixed)  # type: ignore[arg-type]  # one size
    done = planning.realise(s)
    assert (done.per_device_train_batch_size, done.gradient_accumulation_steps) == (16, 4)
    assert planning.realise(replace(s, prompts_per_step=7, processes=3)).unsolved == s.auto


def test_without_auto_or_without_processes_nothing_is_touched() -> None:
    """Solving needs a question and a machine."""
    s = Setting(processes=3, prompts_per_step=5)
    assert planning.realise(s) is s
    waiting = Setting(processes=None, prompts_per_step=5, auto=AUTO)
    assert planning.realise(waiting) is waiting
    assert planning.realise(Setting(processes=1, prompts_per_step=None, auto=AUTO)).unsolved == AUTO


def test_a_step_of_no_prompts_is_left_to_the_rules() -> None:
    """The sizes of a framework that counts prompts are still answered; a rule names the zero."""
    s = Setting(
        processes=1,
        num_generations=8,
        per_device_train_batch_size=4,
        prompts_per_rollout=8,
        prompts_per_step=0,
    )
    resized = planning.resize(s)
    assert (resized.gradient_accumulation_steps, resized.steps_per_generation) == (1, 16)
