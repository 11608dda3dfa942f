"""Sweeps with several objectives, from the command line with the fake trainer."""

import json
from collections.abc import Callable

import pytest

from support import Ended, grposweep, read, trials

Run = Callable[..., Ended]
# A made-up price that is the same in every run: the learning rate itself.
TWO = (
    "trainer=fake", "name=s", "schedule=steps", "schedule.max_steps=2", "trainer.keep=best",
    "search.metric=[eval_reward,learning_rate]", "search.direction=[maximize,minimize]",
)  # fmt: skip


@pytest.mark.slow
def test_the_front_is_shown_and_its_models_are_kept(run: Run) -> None:
    """1e-2 is worse than 1e-3 and dearer; the other three are each other's trade-offs."""
    ended = run(*TWO, "-m", "lr=1e-5,1e-4,1e-3,1e-2", "search.on_end='echo $GRPOSWEEP_BEST_TRIAL > front'")
    assert ended.code == 0, ended.err
    assert "Pareto front: trials 2, 1, 0, which no other" in ended.out
    assert json.loads(grposweep(ended.sweep.parents[1], "status", "--json").out)["front"] == [2, 1, 0]
    folders = trials(ended.sweep)
    assert sorted(path.parent for path in ended.sweep.glob("trials/*/model")) == folders[:3]
    assert read(folders[0] / "result.json")["further"] == {"learning_rate": 1e-5}
    named = (ended.sweep.parents[1] / "front").read_text().split()
    assert named == [folder.name for folder in (folders[2], folders[1], folders[0])]


@pytest.mark.slow
def test_reward_against_gpu_hours_is_searched_by_tpe(run: Run) -> None:
    """``auto`` is a sampler that knows several objectives; the same command continues with more trials."""
    arguments = (*TWO[:5], "search.metric=[eval_reward,gpu_hours]", TWO[6], "-m", "lr=tag(log,interval(1e-5,1e-2))")
    first = run(*arguments, "search.trials=3")
    assert first.code == 0, first.err
    more = run(*arguments, "search.trials=12")
    assert "12 trials (tpe), 3 of them recorded already" in more.out
    assert all(read(folder / "result.json")["further"]["gpu_hours"] > 0 for folder in trials(more.sweep))


@pytest.mark.parametrize("asked", ["search.seeds=3", "search.stopping=asha", "search=gp"])
def test_what_needs_one_order_of_trials_is_refused(run: Run, asked: str) -> None:
    """Before anything starts."""
    ended = run(*TWO, "-m", "lr=1e-5,1e-4", asked)
    assert ended.code == 2
    assert "it needs a single ranking of all trials, but this sweep has 2 objectives" in ended.err
