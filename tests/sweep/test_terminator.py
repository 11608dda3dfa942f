"""search.terminator: a sweep that has converged starts nothing more, and any other says what that would have saved."""

from dataclasses import replace
from pathlib import Path

import pytest

from grposweep.config.validate import check_objectives
from grposweep.errors import UserError
from grposweep.report.run_output import RunEnd, print_results, terminator_note
from grposweep.report.tables import build_console
from grposweep.report.view import read_sweep
from grposweep.schema import Search
from grposweep.search.early_stopping import NoStopping, SearchContext
from grposweep.search.early_stopping.terminator import Convergence, Terminator
from grposweep.search.space import Space
from grposweep.storage.folders import SweepFolder
from grposweep.storage.records import SweepProgress
from grposweep.sweep.controller import Controller
from made import Made, make_sweep
from toy_launcher import Place, open_controller


class Converged(Terminator):
    """Says from the start that nothing is left to gain."""

    def judge(self, _curves: object) -> Convergence:  # type: ignore[override]  # it looks at none
        return Convergence(0.01, 0.02)


def run(path: Path, terminates: bool) -> tuple[Controller, Place]:
    """A sweep of four points that has converged when its first trial ends."""
    place = Place()
    place.slots = 1
    controller = open_controller(SweepFolder(path), place, NoStopping(), "lr=1e-3,2e-3,3e-3,4e-3")
    controller.queue.search = replace(controller.queue.search, terminator=terminates)
    controller.early_stopping.terminator = Converged(SearchContext(Space()))
    controller.queue.has_converged = controller.early_stopping.has_converged
    controller.tick()
    place.evaluate("0", 0.5)
    place.finish("0", "finished")
    controller.tick()
    return controller, place


def test_a_converged_sweep_starts_nothing_more_if_asked(tmp_path: Path) -> None:
    """It has ended then, and is as long as what it has started."""
    controller, place = run(tmp_path, terminates=True)
    assert len(place.jobs) == 1
    assert controller.tick()
    assert controller.queue.planned == 1


def test_any_other_sweep_continues_and_notes_where_it_had_converged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: later trials do not change the note, and the forecast is not computed for them."""
    controller, place = run(tmp_path, terminates=False)
    assert len(place.jobs) == 2
    noted = dict(controller.early_stopping.converged)
    assert noted == {"trials": 1, "completions": 64, "improvement": 0.01, "noise": 0.02, "best": 0.5}
    monkeypatch.setattr(Converged, "judge", lambda *_: pytest.fail("it is judged again"))
    place.evaluate("1", 0.7)
    place.finish("1", "finished")
    controller.tick()
    assert controller.early_stopping.converged == noted


def test_the_summary_says_what_the_terminator_would_have_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From outlook.json; a record without it says nothing."""
    sweep = make_sweep(tmp_path / "s", Made(trials=4))
    view = read_sweep(sweep)
    spent, best = sum(t.result.completions or 0 for t in view.searched), view.winner
    assert terminator_note(view) == ""
    assert spent > 0
    assert best is not None
    noted = {"trials": 2, "completions": spent / 4, "improvement": 0.004, "noise": 0.02, "best": 0.5}
    SweepProgress(converged=noted).write(sweep)
    note = terminator_note(read_sweep(sweep))
    assert "search.terminator=true would have saved 75% of the completions and ended with 0.5000" in note
    assert f"instead of {best.objective:.4f}" in note
    print_results(build_console(80), read_sweep(sweep), RunEnd())
    assert note in " ".join(capsys.readouterr().out.split())
    asked = replace(read_sweep(sweep), settings={"search": {"terminator": True}})
    assert terminator_note(asked) == (
        "converged after 2 trials: no choice promised more than 0.004, less than the noise of 0.02"
    )
    SweepProgress(converged={"trials": 2}).write(sweep)
    assert terminator_note(read_sweep(sweep)) == ""


def test_several_objectives_never_converge() -> None:
    """They make no order."""
    with pytest.raises(UserError, match=r"search\.terminator=true"):
        check_objectives(Search(terminator=True, further={"gpu_hours": "minimize"}))
