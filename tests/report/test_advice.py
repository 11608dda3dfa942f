"""What a report advises: what to use, how sure that is, and one command to try next."""

import re
import shlex
import shutil
import sys
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import pytest
import yaml

from grporecipe.files import append_line, write_json
from grposweep.report._advice import Advice, advise, next_sentence, tie_sentences
from grposweep.report.compare import compare_all
from grposweep.report.export import show_best
from grposweep.report.html_page import render_report
from grposweep.report.run_output import RunEnd, print_results
from grposweep.report.status import status_json, status_screen
from grposweep.report.tables import build_console
from grposweep.report.view import read_sweep
from made import Made, make_comparison, make_sweep
from support import Printed, edit, on_terminal, read, sampled, unwrap, update, write_lines
from support import trials as trial_folders

SPACE = [
    {"parameter": "lr", "low": 1e-5, "high": 1e-2, "log": True},
    {"parameter": "batch", "choices": ["small", "medium"]},
]
COMMAND = "python src/run.py sweeps=lr_batch name=s search.trials=4"


def make(path: Path, *trials: tuple[float, float], **changes: Any) -> Path:
    """A finished sweep whose trials have these learning rates and objectives, each with a standard
    error of 0.01.
    """
    command = {"command": COMMAND, "packages": {}}
    made = Made(
        trials=len(trials),
        parameters={"batch": ["small"]},
        settings={"space": SPACE, "provenance": command},
    )
    sweep = make_sweep(path / "s", made)
    write_json(sweep / "outlook.json", {"target": len(trials), "sampler": "tpe"})
    for folder, (lr, value) in zip(trial_folders(sweep), trials, strict=True):
        update(folder / "trial.json", point={"lr": lr, "batch": "small"})
        result = {
            "status": "finished",
            "objective": value,
            "objective_se": 0.01,
            "start": 0.3,
            "attempt": 1,
        }
        write_json(folder / "result.json", result | changes)
        # its curve ends elsewhere
        (folder / "metrics.jsonl").unlink()
    return sweep


def advice(sweep: Path) -> Advice:
    """Its advice, which there is."""
    found = advise(read_sweep(sweep))
    assert found is not None
    return found


def test_it_opens_with_the_best_point_its_interval_and_its_gain(tmp_path: Path) -> None:
    """In one sentence, and the page's first section shows it."""
    sweep = make(tmp_path, (3e-4, 0.8), (1e-4, 0.6))
    said = advice(sweep).sentence
    assert said == (
        "Use lr=0.0003 batch=small: eval_reward 0.8000 ± 0.0224 (95 % over prompts, best of 2), "
        "+0.5000 against 0.3000 before training."
    )
    page = render_report(read_sweep(sweep))
    assert page.index(said) < page.index('id="summary"')


def test_points_that_do_not_differ_significantly_are_named_with_their_common_values(
    tmp_path: Path,
) -> None:
    """And the command that decides between them, which resumes the sweep."""
    found = advice(make(tmp_path, (3e-4, 0.8), (1e-4, 0.79), (5e-4, 0.785), (1e-3, 0.5)))
    assert (
        "Trials 0, 1, 2 do not differ significantly on one seed: lr 0.0001 to 0.0005, batch small."
        in found.limits
    )
    assert (found.step.text, found.step.command) == (
        "Decide between them on fresh seeds",
        f"{COMMAND} search.seeds=5",
    )


@pytest.mark.parametrize(("lr", "range"), [(1.2e-5, "1e-06,0.01"), (9e-3, "1e-05,0.1")])
def test_a_best_value_at_an_edge_of_its_range_is_reported_with_a_wider_range(
    tmp_path: Path, lr: float, range: str
) -> None:
    """As a new sweep, which begins with what this one found."""
    near = [(lr * shift, 0.8 - 0.01 * n) for n, shift in enumerate((1, 1.1, 0.9))]
    far = [(1e-7 / rate, value - 0.2) for rate, value in near]
    found = advice(make(tmp_path, *near, *far))
    assert any(text.startswith(f"lr={lr:g} lies at the ") for text in found.limits)
    assert found.step.text == "Widen the range of lr"
    assert shlex.split(found.step.command)[2:] == [
        "sweeps=lr_batch",
        "search.trials=4",
        f"lr=tag(log,interval({range}))",
        "search.warm_start=s",
    ]


@pytest.mark.parametrize(
    ("key", "advised"), [("optimizer.adam_beta2", False), ("optimizer.weight_decay", True)]
)
def test_a_wider_range_that_the_key_refuses_is_not_advised(
    tmp_path: Path, key: str, advised: bool
) -> None:
    """A beta above 1, where the best value lies."""
    points = [(0.95 - 0.01 * n, 0.8 - 0.01 * n) for n in range(3)]
    sweep = make(tmp_path, *points, *((1e-4 * rate, value - 0.3) for rate, value in points))
    edit(sweep / "sweep.yaml", "parameter: lr", f"parameter: {key}")
    edit(sweep / "sweep.yaml", "high: 0.01", "high: 1.0")
    for path in sweep.glob("trials/*/trial.json"):
        edit(path, '"lr"', f'"{key}"')
    assert ("Widen" in advice(sweep).step.text) == advised


def test_a_best_value_inside_its_range_needs_no_wider_one(tmp_path: Path) -> None:
    """Nor does a winner that differs from all others have ties."""
    found = advice(make(tmp_path, (3e-4, 0.8), (1e-4, 0.6)))
    assert found.step.text == "Confirm the winner on fresh seeds"
    assert found.limits == [
        "This is one seed. Another seed moves results by more than the interval says."
    ]


def test_a_command_hides_secrets_and_quotes_paths(tmp_path: Path) -> None:
    """The command line of the sweep may hold both."""
    sweep = make(tmp_path, (3e-4, 0.8), (1e-4, 0.6))
    secret = "'search.storage=postgresql://me:hunter2@db/x' 'task.path=/a folder/x'"
    edit(sweep / "sweep.yaml", "sweeps=lr_batch", f"sweeps=lr_batch {secret}")
    command = advice(sweep).step.command
    assert "hunter2" not in command
    assert "'task.path=/a folder/x'" in command


def test_a_command_works_from_another_folder_and_after_an_edit_of_the_rewards(
    tmp_path: Path,
) -> None:
    """It goes to where the sweep was started, and continues it with the sweep's own copies of the
    files.
    """
    sweep = make(tmp_path, (3e-4, 0.8), (1e-4, 0.6))
    edit(sweep / "sweep.yaml", "packages:", "working_directory: /a b\n  packages:")
    files = {"rewards.py": {"digest": "aa", "copied": True}}
    write_json(sweep / "inputs.json", {"files": files})
    assert (
        advice(sweep).step.command
        == f"cd '/a b' && {COMMAND} search.changed_files=recorded search.seeds=5"
    )


def test_a_command_begins_with_grposweep_if_the_shell_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one of this Python. Another one would run another version."""
    sweep = make(tmp_path / "s", (3e-4, 0.8), (1e-4, 0.6))
    edit(sweep / "sweep.yaml", "python src/run.py", "python -m grposweep run")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/grposweep").touch(0o755)
    begins = {}
    for place in (tmp_path / "bin", Path(sys.executable).parent):
        monkeypatch.setenv("PATH", str(place))
        begins[place] = advice(sweep).step.command
    assert [command.partition(" sweeps=")[0] for command in begins.values()] == [
        "python -m grposweep run",
        "grposweep run",
    ]


def test_no_advice_before_a_trial_has_finished_or_in_a_comparison(tmp_path: Path) -> None:
    """Nothing has finished, or one factor at a time, where the effects are the answer."""
    assert advise(read_sweep(make_sweep(tmp_path / "a", Made(trials=1, running=1)))) is None
    assert advise(read_sweep(make_comparison(tmp_path / "b", [{"lr": 1e-5}]))) is None


def test_the_terminal_calls_a_tie_what_the_report_calls_a_tie(
    tmp_path: Path, printed: Printed
) -> None:
    """At the end of a run, in status within 80 columns, and from best; a clear winner has no such
    sentence.
    """
    view = read_sweep(make(tmp_path, (1e-4, 0.80), (3e-4, 0.79), (5e-4, 0.5)))
    tie = "Trials 0, 1 do not differ significantly on one seed: lr 0.0001 or 0.0003, batch small."
    print_results(build_console(80), view, RunEnd())
    build_console(80).print(status_screen(view))
    show_best(view, None, None)
    said = printed()
    assert unwrap(said).count(tie) == 3
    assert said.count("Decide between them on fresh seeds: python src/run.py sweeps=lr_batch") == 2
    assert tie_sentences(read_sweep(make(tmp_path / "clear", (1e-4, 0.8), (3e-4, 0.5)))) == []


def test_a_difference_without_an_interval_is_no_clear_winner(tmp_path: Path) -> None:
    """One seed each, and an evaluation without standard errors."""
    view = read_sweep(make(tmp_path, (1e-4, 0.8), (3e-4, 0.5), objective_se=None))
    assert "so the interval is unknown" in tie_sentences(view)[-1]
    assert status_json(view)["best"]["warning"] == " ".join(tie_sentences(view))
    assert next_sentence(view).startswith("Confirm the winner on fresh seeds: python")


def test_nothing_is_recommended_if_two_seeds_tell_no_point_from_the_start(tmp_path: Path) -> None:
    """The headline, status, best and the end of a run say why, and the report says what decides
    it.
    """
    sweep = make(tmp_path, (1e-4, 0.7), (3e-4, 0.69), objective_se=None)
    content = yaml.safe_load((sweep / "sweep.yaml").read_text())
    content["search"] |= {"seeds": 2, "leaders": 2}
    (sweep / "sweep.yaml").write_text(yaml.safe_dump(content))
    for number, (of, seed, value) in enumerate(
        [(0, 1000, 0.3), (1, 1000, 0.31), (0, 2000, 0.6), (1, 2000, 0.58)], 2
    ):
        original = next((sweep / "trials").glob(f"{of:04d}-*"))
        copy = shutil.copytree(original, sweep / "trials" / f"{number:04d}-{number:06d}")
        attributes = {"role": "confirm", "of": of, "seed": seed, "experiment": f"{number:06d}"}
        update(copy / "trial.json", attributes=attributes)
        update(copy / "result.json", objective=value)
    found = advice(sweep)
    said = "No winner: the 2 points cannot be told apart, not even from the model before training."
    said += " Two seeds are too few for an interval."
    assert found.sentence.startswith(f"{said} eval_reward 0.4500 against")
    assert found.sentence.endswith("± 1.9059 (95 % over 2 fresh seeds).")
    assert found.step.text == "Decide on more seeds"
    assert tie_sentences(read_sweep(sweep))[0] == said


@pytest.mark.parametrize(
    ("direction", "values"), [("maximize", (0.2, 0.1)), ("minimize", (0.4, 0.5))]
)
def test_a_best_point_worse_than_the_model_before_training_is_no_winner(
    tmp_path: Path, direction: str, values: tuple[float, float]
) -> None:
    """The sweep made the model worse: it ended lower than 0.3, or higher where less is better."""
    sweep = make(tmp_path, (1e-4, values[0]), (3e-4, values[1]))
    edit(sweep / "sweep.yaml", "maximize", direction)
    assert advice(sweep).sentence.startswith(
        "No winner: the best point (lr=0.0001 batch=small) ended worse than the model before "
        "training."
    )


def with_seeds(sweep: Path) -> Path:
    """Make the seed a parameter of all trials."""
    for path in sweep.glob("trials/*/trial.json"):
        update(path, point={**read(path)["point"], "seed": 1})
    return sweep


def test_a_sweep_from_a_checkpoint_is_advised_nothing_that_its_command_refuses(
    tmp_path: Path,
) -> None:
    """A branch takes no other schedule; another sweep without anything else to try does."""
    sweep = with_seeds(make(tmp_path, (3e-4, 0.8), (1e-4, 0.6)))
    step = advice(sweep).step
    assert step.text == "Train twice as long"
    assert step.command.endswith(" schedule.budget_completions=12800")
    settings = yaml.safe_load((sweep / "sweep.yaml").read_text())
    settings["provenance"]["fork_of"] = {"sweep": "s", "trial": "0000-a", "step": 4}
    (sweep / "sweep.yaml").write_text(yaml.safe_dump(settings))
    assert advice(sweep).step.text == "Repeat it on another seed"


def test_advice_and_provenance_have_the_latest_command(tmp_path: Path) -> None:
    """The sweep was started with three seeds and continued with five. Of a key that is there twice
    the last value counts.
    """
    sweep = make(tmp_path, (3e-4, 0.8), (1e-4, 0.6))
    for seeds in (3, 5):
        command = f"{COMMAND} name=t schedule.epochs=1 schedule.epochs=2 search.seeds={seeds}"
        line = {"command": command, "working_directory": str(Path.cwd())}
        append_line(sweep / "commands.jsonl", line)
    page = render_report(read_sweep(sweep))
    assert "search.seeds=5" in page[page.index('id="provenance"') :]
    assert "search.seeds=3" not in page
    wanted = (
        "python src/run.py sweeps=lr_batch search.trials=4 name=t schedule.epochs=2 search.seeds=5"
    )
    assert advice(sweep).step.command == wanted


def test_an_exact_tie_without_intervals_is_a_tie(tmp_path: Path, printed: Printed) -> None:
    """Of all points, or of the best ones; without it the earlier trial would be the best."""
    view = read_sweep(make(tmp_path, (1e-4, 0.2625), (3e-4, 0.2625), objective_se=None))
    print_results(build_console(80), view, RunEnd())
    assert "No winner: the 2 points cannot be told apart" in unwrap(printed())
    view = read_sweep(
        make(tmp_path / "3", (1e-4, 0.6), (3e-4, 0.6), (5e-4, 0.5), objective_se=None)
    )
    assert (
        tie_sentences(view)[0]
        == "Trials 0, 1 are tied on one seed: lr 0.0001 or 0.0003, batch small."
    )


def simulate(path: Path, stream: Random, prompts: int, better: float) -> Path:
    """A sweep of four trials that answer the same hard and easy prompts four times each. The first
    has a better chance of a reward of 1 by so much.
    """
    chances = [0.1 + 0.6 * stream.random() for _ in range(prompts)]
    found = [
        [sum(stream.random() < chance + gain for _ in range(4)) / 4 for chance in chances]
        for gain in (better, 0.0, 0.0, 0.0)
    ]
    points = [(1e-4 * (n + 1), fmean(means)) for n, means in enumerate(found)]
    sweep = make(path, *points, evaluated=[100])
    for folder, means in zip(trial_folders(sweep), found, strict=True):
        line = {"step": 100, "prompts": "a", "means": means}
        write_lines(folder / "prompt_rewards.jsonl", [line])
    return sweep


@pytest.mark.slow
@pytest.mark.parametrize("prompts", sampled([16, 64], 2, pytest.mark.thorough))
def test_equal_points_are_rarely_told_apart_and_every_verdict_is_that_of_compare(
    tmp_path: Path, prompts: int
) -> None:
    """In at most 5 % of 200 sweeps of four equal points one differs from the best. There and in 50
    with one better point, those are tied whose p is 0.05 or more.
    """
    stream = Random(prompts)
    apart = []
    for n in range(250):
        view = read_sweep(simulate(tmp_path / str(n), stream, prompts, 0.25 * (n >= 200)))
        tied = [point.first for point in view.tied]
        apart.append(len(tied) < 3)
        for trial in view.ranked[1:] if n >= 150 else ():
            compared = compare_all([str(view.path), str(trial.path)], tmp_path)
            shown = on_terminal(compared, columns=200)
            p = re.search(r"p [=<] (\S+) ", shown)
            assert p is not None
            assert (trial in tied) == (float(p[1]) >= 0.05), shown
    print(prompts, f"{fmean(apart[:200]):.3f} equal, {fmean(apart[200:]):.2f} better points differ")
    assert fmean(apart[:200]) <= 0.05 < 0.4 <= fmean(apart[200:])
