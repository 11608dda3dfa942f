"""What training brought is the same number in every place."""

import json
import re

import pytest

from grposweep.report.html_page import write_report
from grposweep.report.status import status_json, status_screen
from grposweep.report.view import read_sweep
from grposweep.storage.folders import SweepFolder
from in_process import Sweep
from support import Printed, on_terminal, read, trials, unwrap

pytestmark = pytest.mark.slow


def test_the_gain_after_a_race_is_the_same_in_the_terminal_in_status_and_in_the_report(
    sweep_here: Sweep, printed: Printed
) -> None:
    """The mean over the fresh seeds, each against its own start; not against the start of the
    search's seed.
    """
    words = (
        "trainer=fake",
        "trainer.args.noise=0.05",
        "schedule.budget_completions=null",
        "schedule.max_steps=2",
    )
    folder = sweep_here(*words, "lr=1e-3,1e-1", "name=s", "search.seeds=2", "search.leaders=2")
    said = printed()
    view = read_sweep(SweepFolder(folder))
    results = [read(trial / "result.json") for trial in trials(folder)[2:]]
    # replicates of the better rate
    mine = [result for result in results if result["objective"] > 0.6][:2]
    expected = sum(result["objective"] - result["start"] for result in mine) / 2
    assert f"before training: {expected:+.4f} ± " in unwrap(said)
    best = status_json(view)["best"]
    assert best["gain"] == pytest.approx(expected)
    shown = on_terminal(status_screen(view), columns=200)
    assert f"{expected:+.4f} from {best['start']:.4f}" in unwrap(shown)
    page = write_report(view, None).read_text()
    assert re.search(
        rf"{re.escape(f'{expected:+.4f}')}.*from {best['start']:.4f} before training",
        page,
        re.DOTALL,
    )
    assert json.dumps(best)
