"""What decides in a sweep of few trials, on the page and at the end of a run, and what to change
next.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from grporecipe.files import write_json
from grposweep.report._advice import advise
from grposweep.report._leaderboard import basis_text
from grposweep.report.html_page import render_report
from grposweep.report.run_output import RunEnd, print_results
from grposweep.report.tables import build_console
from grposweep.report.view import SweepView, read_sweep
from grposweep.search.analysis import part_of
from grposweep.search.space import Interval
from grposweep.storage.results import start_run
from made import Made, make_comparison, make_sweep
from support import lines, unwrap, update, write_lines

# learning rate, batch, objective
Trial = tuple[float, str, float]
CLEAR: tuple[Trial, ...] = (
    (3e-4, "small", 0.80),
    (1e-3, "small", 0.79),
    (2e-4, "small", 0.78),
    (4e-4, "medium", 0.40),
    (8e-4, "medium", 0.42),
    (3e-4, "medium", 0.41),
)


def make(path: Path, *trials: Trial, paused: int = 0) -> SweepView:
    """A sweep of these trials; the last ``paused`` ones have half of a curve and no result."""
    space = [
        {"parameter": "lr", "low": 1e-5, "high": 1e-2, "log": True},
        {"parameter": "batch", "choices": ["small", "medium"]},
    ]
    provenance = {"command": "python src/run.py -m lr=a batch=small,medium name=s", "packages": {}}
    sweep = make_sweep(
        path / "s", Made(trials=len(trials), settings={"space": space, "provenance": provenance})
    )
    for number, folder in enumerate(sorted((sweep / "trials").iterdir())):
        lr, batch, value = trials[number]
        update(folder / "trial.json", point={"lr": lr, "batch": batch})
        is_paused = number >= len(trials) - paused
        status = "stopped" if is_paused else "finished"
        result = {"status": status, "attempt": 0, "objective": value}
        write_json(folder / "result.json", result)
        if is_paused:
            (folder / "control.json").write_text('{"action": "pause", "reason": "6th of 6"}')
        write_json(folder / "plan.json", {"total_completions": 6400})
        steps = range(0, 101 - 50 * is_paused, 10)
        rise = [(step, 0.2 + (value - 0.2) * step / 100) for step in steps]
        write_curve(folder, *rise)
    return read_sweep(sweep)


def write_curve(trial: Path, *points: tuple[int, float], **more: object) -> None:
    """Evaluations of a trial: steps and rewards."""
    lines = [
        {"kind": "eval", "step": s, "completions": 64 * s, "eval_reward": value, **more}
        for s, value in points
    ]
    write_lines(trial / "metrics.jsonl", lines)


def printed(view: SweepView) -> str:
    """The end of a run in 80 columns."""
    console = build_console(80)
    with console.capture() as shown:
        print_results(console, view, RunEnd())
    return shown.get()


def test_few_trials_have_effects_with_intervals_on_the_page_and_the_terminal(
    tmp_path: Path,
) -> None:
    """The significant one comes first; no share is stated."""
    view = make(tmp_path, *CLEAR)
    said = printed(view)
    page = render_report(view)
    rows = [line.split() for line in said.splitlines() if " of 6 " in line]
    assert [row[0] for row in rows] == ["batch", "lr"]
    assert " ".join(rows[0]) == "batch small 3 of 6 +0.3800 ± 0.0507"
    assert " ".join(rows[1]).endswith("not significant")
    assert "what decided" not in said
    assert "+0.3800 ± 0.0507" in page[page.index('id="contrasts"') :]


def test_a_range_is_not_widened_without_evidence(tmp_path: Path) -> None:
    """The best of four equal trials lies at an edge. The limits name it, and the step is another
    one.
    """
    values = [
        (9e-3, "small", 0.501),
        (1e-4, "medium", 0.5),
        (5e-3, "medium", 0.499),
        (2e-4, "small", 0.5),
    ]
    found = advise(make(tmp_path, *values))
    assert found is not None
    assert "lr=0.009 lies at the upper edge of its range." in found.limits
    assert "lr" not in found.step.text


def test_a_paused_trial_counts_with_what_the_finished_ones_gained_from_there(
    tmp_path: Path,
) -> None:
    """It reached 0.41 after half of the training, in which the others rose by 0.219. A collapsed
    one has ended as it is.
    """
    view = make(tmp_path, *CLEAR, paused=1)
    said = "6 trials, 1 of them paused or stopped early (with what finished ones gained from there)"
    assert basis_text(view.importance) == said
    assert round(view.importance.contrasts[0].difference.mean, 3) == 0.307
    result = view.trial(5).path / "result.json"
    failure = {"class": "collapse", "kind": "guard", "message": "seen"}
    update(result, failure=failure)
    contrasts = read_sweep(view.path).importance.contrasts
    assert round(contrasts[0].difference.mean, 3) == 0.38


def test_paused_trials_follow_the_finished_ones_by_their_value(tmp_path: Path) -> None:
    """On the terminal and on the page; 0.40, 0.42 and 0.41 were reached."""
    view = make(tmp_path, *CLEAR, paused=3)
    said = printed(view)
    assert re.findall(r"paused at (\d\.\d+)", said) == ["0.4200", "0.4100", "0.4000"]
    assert re.findall(r'class="quiet">(0\.\d+)</td>', render_report(view)) == [
        "0.4200",
        "0.4100",
        "0.4000",
    ]


def test_rewards_that_never_differ_are_no_collapse(tmp_path: Path) -> None:
    """A guard has ended both trials, for reasons of their own."""
    view = make(tmp_path, *CLEAR)
    for number, guard in ((0, "no_variance"), (1, "reward_fallen")):
        failure = {"class": "collapse", "kind": "guard", "message": "seen"}
        content = {
            "status": "pruned",
            "attempt": 0,
            "objective": 0.1,
            "guard": guard,
            "failure": failure,
        }
        write_json(view.trial(number).path / "result.json", content)
    said = unwrap(printed(read_sweep(view.path)))
    assert (
        "1 of them because its training had collapsed, 1 of them because its rewards never differed"
        in said
    )


@pytest.mark.parametrize(
    ("gpu", "unit"), [(True, "GPU hours"), (False, "CPU hours"), (None, "GPU hours")]
)
def test_hours_without_a_gpu_are_cpu_hours(tmp_path: Path, gpu: bool | None, unit: str) -> None:
    """As the run noted; an older run has no note. A budget is in GPU hours always."""
    view = make(tmp_path, *CLEAR)
    assert view.progress.budget_hours is not None
    start_run(view.trials[0].path, 0, 1, gpu=gpu)
    runs = view.trials[0].path / "runs.jsonl"
    runs.write_text(runs.read_text().splitlines()[-1] + "\n")
    assert view.spent_text.endswith("GPU hours")
    view = replace(view, progress=replace(view.progress, budget_hours=None))
    assert view.hours_unit == unit
    assert f" {unit[:3]} h " in printed(view)


def test_a_parameter_without_any_effect_is_named(tmp_path: Path) -> None:
    """Trials that differ in nothing else have the same log; one other digit in it is an effect."""
    alike = [
        (lr, batch, 0.8 if lr == 1e-4 else 0.5)
        for lr in (1e-4, 1e-3)
        for batch in ("small", "medium")
    ]
    said = printed(make(tmp_path / "a", *alike))
    assert (
        "batch changed nothing: trials 0, 1 have the same rewards and gradients at every step"
        in said
    )
    assert "Decide between them on fresh seeds" not in said
    assert "lr changed nothing" not in said
    for metrics in tmp_path.glob("a/**/metrics.jsonl"):
        write_lines(metrics, [{**line, "grad_norm": 0.0} for line in lines(metrics)])
    said = printed(read_sweep(next(tmp_path.glob("a/**/sweep.yaml")).parent))
    assert "No step had a gradient: the rewards of each group were the same" in unwrap(said)
    alike[0] = (1e-4, "small", 0.8001)
    assert "changed nothing" not in printed(make(tmp_path / "b", *alike))


def test_a_comparison_of_one_factor_has_no_second_table_of_effects(tmp_path: Path) -> None:
    """Its own effects are paired by seed."""
    view = read_sweep(make_comparison(tmp_path / "s", [{"lr": 1e-5}, {"lr": 1e-3}, {"lr": 1e-2}]))
    assert "effects of single parameters" not in printed(view)


@pytest.mark.parametrize(("high", "lower"), [(16, range(2, 10)), (3, [2])])
def test_the_halves_of_a_range_of_whole_numbers_share_none(
    high: int, lower: range | list[int]
) -> None:
    """Each number lies in the half that is offered for it."""
    domain = Interval(2, high, False, True)
    halves = {number: part_of(domain, number) for number in range(2, high + 1)}
    assert all(
        isinstance(half, Interval) and half.low <= number <= half.high
        for number, half in halves.items()
    )
    assert [number for number, half in halves.items() if half == halves[2]] == list(lower)


@pytest.mark.slow
def test_a_paused_trial_has_one_value_on_the_terminal_and_on_the_page(tmp_path: Path) -> None:
    """Its objective is the mean of its last two evaluations, 0.70 and 0.36 (search.last=2)."""
    view = make(tmp_path, *CLEAR[:5], (3e-4, "medium", 0.53), paused=1)
    write_curve(view.trial(5).path, (0, 0.2), (10, 0.7), (20, 0.36))
    view = read_sweep(tmp_path / "s")
    assert "paused at 0.5300" in printed(view)
    page = render_report(view)
    assert ">0.5300<" in page
    assert ">0.3600<" not in page


def test_a_trial_that_fell_after_its_best_evaluation_says_so(tmp_path: Path) -> None:
    """By more than the errors of its last two evaluations, with the step to keep; a smaller fall is
    noise.
    """
    view = make(tmp_path, *CLEAR)
    for errors, told in ((0.04, True), (0.2, False)):
        values = ((0, 0.05), (20, 0.67), (40, 0.78), (50, 0.68), (60, 0.7))
        write_curve(view.trials[0].path, *values, eval_reward_se=errors)
        said = printed(read_sweep(view.path))
        assert ("past its peak: 0.7800 at step 40, 0.7000 at step 60" in unwrap(said)) == told


def test_similar_rewards_of_prompts_that_differ_in_digits_are_told_and_change_no_number(
    tmp_path: Path,
) -> None:
    """16 prompts of four texts. Rewards without such a pattern are no news, and neither are
    families that the user has named.
    """
    view = make(tmp_path, *CLEAR)
    result = view.trials[0].path / "result.json"
    update(result, evaluated=[100], objective_se=0.01)
    steady = [0.1 * (n // 4) + 0.01 * (n % 4) for n in range(16)]
    groups = [n // 4 for n in range(16)]
    told = {}
    for name, means, families in (
        ("alike", steady, []),
        ("mixed", sorted(steady, key=lambda v: v % 0.1), []),
        ("named", steady, groups),
    ):
        line = {"step": 100, "prompts": "a", "means": means, "alike": groups, "families": families}
        write_lines(view.trials[0].path / "prompt_rewards.jsonl", [line])
        advice = advise(read_sweep(view.path))
        assert advice is not None
        assert "eval_reward 0.8000" in advice.sentence
        told[name] = "task.family_column" in " ".join(advice.limits)
    assert told == {"alike": True, "mixed": False, "named": False}
