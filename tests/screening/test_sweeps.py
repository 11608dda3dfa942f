"""How sweeps use screens: which one matches, what rules read of it, and the hash that trials carry."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grporecipe.errors import UserError
from grporecipe.rules.check import check, errors
from grposweep.config.compose import load_experiment, open_session
from grposweep.config.identity import experiment_id, prepared_key, screen_key
from grposweep.config.points import Points
from grposweep.config.to_setting import read_setting
from grposweep.schema import Experiment
from grposweep.screening.run import (
    choose_pass_rates,
    find_screen,
    prompts_by_group,
    run_screen,
    screening_experiment,
    with_screens,
)
from grposweep.storage.screens import (
    PassRatesRecord,
    ScreenRequest,
    find_pass_rates,
    hand_over,
    kept_prompts,
    screening_order,
)
from in_process import sweeps_in

from .made import make_prompt, make_screen, mixed


@pytest.fixture(scope="module")
def composed() -> Experiment:
    """The default experiment."""
    with open_session() as session:
        return Points(session.compose, ["task.train_prompts=240"]).base


@pytest.fixture
def base(composed: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """The same, in a working directory of its own."""
    monkeypatch.chdir(tmp_path)
    return composed


def screen_of(experiment: Experiment, prompts: Any, samples: int = 16, **data: int) -> Any:
    """Write a screen that matches an experiment."""
    return make_screen(Path("outputs") / "screens" / f"{screen_key(experiment)}-{samples}", prompts, **data)


def changed(base: Experiment, section: str, **values: Any) -> Experiment:
    """The experiment with other values in a section."""
    return replace(base, **{section: replace(getattr(base, section), **values)})


def test_what_is_sampled_makes_the_key_and_how_it_is_trained_does_not(base: Experiment) -> None:
    """Sampling, rewards and data on one side; batch, adapters, what generates and the filter on the other."""
    same = [changed(base, "batch", num_generations=4), changed(base, "generation", use_vllm=True), replace(base, lr=1.0, seed=7),
            changed(base, "task", keep_between=[0.2, 0.8]), changed(base, "model", gradient_checkpointing=True)]  # fmt: skip
    other = [changed(base, "generation", temperature=0.7), changed(base, "generation", max_completion_length=8),
             changed(base, "task", rewards=["math"]), changed(base, "task", train_prompts=100)]  # fmt: skip
    assert {screen_key(experiment) for experiment in same} == {screen_key(base)}
    assert len({screen_key(experiment) for experiment in [base, *other]}) == 5


def test_an_edited_reward_file_makes_another_key(base: Experiment) -> None:
    """By its content."""
    Path("mine.py").write_text("def f(completions, **_): return [0.0] * len(completions)\n")
    mine = changed(base, "task", rewards=["mine.py:f"])
    before = screen_key(mine)
    Path("mine.py").write_text("def f(completions, **_): return [1.0] * len(completions)\n")
    assert screen_key(mine) != before


def test_the_screen_with_most_prompts_is_found_and_an_unfinished_one_is_not(base: Experiment) -> None:
    """An unfinished screen has fewer prompts than requested."""
    assert find_screen(base) is None
    screen_of(base, mixed(120), train_prompts=240)
    assert find_screen(base) is None
    screen_of(base, mixed(60, samples=8), samples=8, train_prompts=60)
    found = find_screen(base)
    assert found is not None
    assert found.request == ScreenRequest(8)


def test_a_batch_whose_groups_are_dead_is_invalid_with_the_numbers(base: Experiment) -> None:
    """1 of 240 prompts passes sometimes: 4 prompts per step hardly ever hold one; a filter makes the point valid."""
    prompts = [make_prompt(i, [float(i == 0 and j % 2) for j in range(16)]) for i in range(240)]
    screen_of(base, prompts)
    kept = changed(base, "task", keep_between=[0.2, 0.8])
    for experiment, codes in ((base, ["GD101"]), (kept, [])):
        prepared = {prepared_key(experiment): {"train_prompts": 240, "eval_prompts": 256}}
        entry = with_screens(prepared, [experiment])[prepared_key(experiment)]
        problems = errors(check(read_setting(experiment, entry)))
        assert [problem.code for problem in problems] == codes
        assert all("of 4 prompts per step, 0.0" in problem.message for problem in problems)
        assert all("98% of the optimizer steps" in problem.message for problem in problems)


def test_the_prompts_that_a_filter_leaves_are_unknown_before_preparation(base: Experiment) -> None:
    """Steps of an epoch follow from those that are left."""
    assert read_setting(base).train_prompts == 240
    assert read_setting(changed(base, "task", keep_between=[0.2, 0.8])).train_prompts is None


def test_without_a_screen_that_matches_nothing_is_judged(base: Experiment) -> None:
    """A screen at another temperature does not apply."""
    screen_of(changed(base, "generation", temperature=0.5), [make_prompt(i, [0.0] * 16) for i in range(240)])
    found = with_screens({prepared_key(base): {"train_prompts": 240}}, [base])
    assert read_setting(base, found[prepared_key(base)]).signal_shares == ()


def test_the_filter_is_part_of_a_trial_and_its_pass_rates_have_a_hash(base: Experiment) -> None:
    """Two screens that differ in one sample make two trials."""
    kept = changed(base, "task", keep_between=[0.2, 0.8])
    screen_of(base, mixed())
    first = choose_pass_rates([base, kept])
    record = find_pass_rates(Path("outputs"), str(first))
    assert record is not None
    assert len(record.keep(0.2, 0.8)) == 80
    other = replace(record, rates=(0.5, *record.rates[1:]))
    assert other.digest != first
    ids = {
        experiment_id(e, read_setting(e))
        for e in (base, kept, *(changed(kept, "task", screen=d) for d in (first, other.digest)))
    }
    assert len(ids) == 4
    assert choose_pass_rates([base]) is None


@pytest.mark.parametrize(
    ("prompts", "message"), [(None, "there is no screen"), (mixed(120), "only one of 120 of 240 prompts")]
)
def test_a_filter_without_a_screen_of_all_prompts_says_what_to_run(
    base: Experiment, prompts: Any, message: str
) -> None:
    """Prompts that were not screened have no pass rate."""
    if prompts:
        screen = screen_of(base, prompts, train_prompts=240)
        ScreenRequest(16, 120).write(screen.folder)
    with pytest.raises(UserError, match=message) as error:
        choose_pass_rates([changed(base, "task", keep_between=[0.2, 0.8])])
    assert "grposweep screen" in str(error.value)


def test_points_that_need_different_screens_are_refused(base: Experiment) -> None:
    """One filter for all trials, or their objectives would be about different prompts."""
    kept = changed(base, "task", keep_between=[0.2, 0.8])
    with pytest.raises(UserError, match="differ in model, prompts, rewards or sampling"):
        choose_pass_rates([kept, changed(kept, "generation", temperature=0.5)])


def test_a_trial_refuses_pass_rates_of_other_data(tmp_path: Path) -> None:
    """And those of another hash, and bounds that keep nothing."""
    record = PassRatesRecord("k", 16, "rows", (0.0, 0.5, 1.0))
    record.write(tmp_path)
    assert kept_prompts(tmp_path, record.digest, [0.2, 0.8], "rows") == [1]
    for digest, bounds, train, message in (
        ("other", [0.2, 0.8], "rows", "has " + record.digest),
        (record.digest, [0.2, 0.8], "changed", "the data changed"),
        (record.digest, [0.6, 0.8], "rows", "none of the 3 prompts"),
    ):
        with pytest.raises(UserError, match=message):
            kept_prompts(tmp_path, digest, bounds, train)
    with pytest.raises(UserError, match="no screen or sweep"):
        hand_over(tmp_path / "outputs", "nothing", tmp_path)


def test_only_our_own_trainer_screens(base: Experiment) -> None:
    """The fake trainer samples nothing."""
    fake = changed(base, "trainer", kind="fake")
    with pytest.raises(UserError, match="Set trainer=trl"):
        run_screen(fake, 16, None, None, None)  # type: ignore[arg-type]  # refused before they are used


def test_a_screen_runs_whole_groups_and_trains_nothing(base: Experiment) -> None:
    """Its configuration is valid for any number of ranks, and has the sampling of the experiment."""
    for ranks in (1, 3):
        run = screening_experiment(
            changed(changed(base, "cluster", processes=ranks), "generation", temperature=0.7), 16
        )
        assert run.batch.per_device_eval_batch_size * ranks % 16 == 0  # type: ignore[operator]  # a number by now
        assert (run.generation.temperature, run.kl.beta, run.schedule.max_steps) == (0.7, 0.0, 1)


def test_group_sizes_that_the_batch_does_not_allow_are_left_out(base: Experiment) -> None:
    """32 completions per step hold whole groups of 32 and fewer."""
    assert prompts_by_group(base) == {2: 16.0, 4: 8.0, 8: 4.0, 16: 2.0, 32: 1.0}


def test_the_order_of_prompts_is_fixed_and_mixed() -> None:
    """The first prompts are a random sample."""
    assert screening_order(100) == screening_order(100)
    assert sorted(screening_order(100)) == list(range(100))
    assert 30 < sum(screening_order(100)[:50]) / 50 < 70


def test_the_trials_of_a_filtered_sweep_name_the_hash(base: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run: each config.yaml has it, and the sweep's folder has the pass rates."""
    screen_of(base, mixed())
    sweep = sweeps_in(Path.cwd(), monkeypatch)
    words = ("task.train_prompts=240", "task.keep_between=[0.2,0.8]", "cluster=dry_run")
    folder = sweep("lr=1e-3,2e-3", "name=filtered", *words)
    record = PassRatesRecord.read(folder)
    assert record is not None
    trials = [load_experiment(trial / "config.yaml") for trial in sorted((folder / "trials").iterdir())]
    assert [trial.task.screen for trial in trials] == [record.digest] * 2
    settings = (folder / "sweep.yaml").read_text()
    assert f"task.screen={record.digest}" in settings
    assert f"\n  screen: {record.digest}\n" in settings  # of its provenance
