"""``grposweep status``, ``show`` and ``list``: what a user sees, what a script gets, what is
reported of a wrong name.
"""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from grporecipe.files import write_json
from grposweep.report.tables import draw_curve
from made import Made, make_comparison, make_sweep
from support import PROJECT, edit, environment, sampled, unwrap, update, write_lines

from .conftest import Commands, write_sweep

HERE = Path("outputs")


def test_status_shows_how_far_a_sweep_is_what_runs_and_why_others_do_not(
    commands: Commands,
) -> None:
    """Everything that matters, 80 columns wide."""
    write_sweep(trials=20, running=2, queued=1)
    out = commands("status", "s").out
    expected = (
        "2 running, 1 queued",
        "17 of 24 trials",
        "best ",
        "of 50 GPU hours",
        "trial 19: (Priority)",
        "4 of 12 points by 1 rule",
        "trial 3 at step 30: less than a 5 % chance",
        "trial 5: out of GPU memory: CUDA out of memory. Tried",
    )
    assert [text for text in expected if text not in out] == []
    assert max(len(line) for line in out.splitlines()) <= 80


def test_the_further_lines_of_a_cause_are_indented_as_its_first(commands: Commands) -> None:
    """So that they are not read as a section of their own."""
    write_sweep(trials=20, message=f"a reward raised {'again ' * 20}")
    out = commands("status", "s").out.splitlines()
    at = next(number for number, line in enumerate(out) if "trial 5:" in line)
    assert out[at + 1].startswith("  ")
    assert "again" in out[at + 1]


def test_status_is_one_json_object_for_scripts(commands: Commands) -> None:
    """With the running trials' steps and rewards."""
    write_sweep(trials=20, running=2)
    said = json.loads(commands("status", "--json").out)
    assert said["states"] == {
        "queued": 0,
        "running": 2,
        "paused": 0,
        "stopped": 0,
        "finished": 15,
        "pruned": 2,
        "failed": 1,
    }
    assert [trial["step"] for trial in said["under_way"]] == [60, 60]
    assert all(0 < trial["reward"] < 1 for trial in said["under_way"])
    assert said["failures"] == {"gpu_memory": 1}
    assert said["seconds_left"] > 0


def test_status_expects_no_more_than_early_stopping_may_spend(commands: Commands) -> None:
    """The time to come is that of the share that the sweep may spend, here of a hundred trials."""
    path = write_sweep(trials=20, running=2) / "outlook.json"
    found = []
    for share in (1.0, 0.5):
        update(path, target=100, share=share)
        found.append(json.loads(commands("status", "--json").out))
    assert found[1]["seconds_left"] < found[0]["seconds_left"] / 2


def test_status_and_show_say_that_a_running_trial_has_not_moved(commands: Commands) -> None:
    """From its first logged steps, which have no gradient."""
    write_sweep(trials=20, running=2)
    number = json.loads(commands("status", "--json").out)["under_way"][0]["number"]
    (folder,) = HERE.glob(f"s/trials/{number:04}-*")
    rows = [
        {
            "attempt": 0,
            "step": step,
            "completions": 8 * step,
            "kind": "train",
            "time": step,
            "grad_norm": 0.0,
            "loss": 0.0,
            "learning_rate": 1e-6,
            "reward": 0.0,
        }
        for step in range(1, 6)
    ]
    write_lines(folder / "metrics.jsonl", rows)
    warnings = [
        trial["warning"] for trial in json.loads(commands("status", "--json").out)["under_way"]
    ]
    assert warnings == [
        "no weight can have changed in the 5 logged steps to 5: the gradient was 0",
        None,
    ]
    for shown in (commands("status", "s").out, commands("show", "s", str(number)).out):
        assert "no weight can have changed" in shown


@pytest.mark.slow
def test_a_point_is_invalid_and_a_trial_stopped_early_in_all_that_users_read(
    commands: Commands,
) -> None:
    """The word "pruned" is in files and JSON only, which scripts read."""
    write_sweep(trials=20)
    status = commands("status", "s").out
    show = commands("show", "s", "3").out
    commands("report", "s")
    page = (HERE / "s" / "report.html").read_text().split("<body>")[1].split("<script")[0]
    visible = re.sub(r"<[^>]*>", " ", page)
    assert [text for text in (status, show, visible) if "prune" in text] == []
    assert "invalid  4 of 12 points" in status
    assert "2 stopped early" in status
    assert "trial 3 of s: stopped early" in show
    assert "stopped early" in visible


def test_status_tells_what_each_change_of_one_factor_does(commands: Commands) -> None:
    """Its difference from the base configuration, and whether four seeds tell it."""
    make_comparison(HERE / "s", [{"lr": 1e-5}, {"kl": "low"}])
    out = commands("status", "s").out
    assert re.search(
        r"lr=1e-05: -0\.\d{4} ± 0\.\d{4} worse\n  kl=low: [+-]0\.\d{4} ± 0\.\d{4} tied", out
    )
    verdicts = [
        effect["verdict"] for effect in json.loads(commands("status", "s", "--json").out)["effects"]
    ]
    assert verdicts == ["worse", "tied"]
    assert ", worse (95 %" in commands("show", "1").out


def test_every_screen_means_the_same_best_and_prints_the_same_number(commands: Commands) -> None:
    """The mean on fresh seeds, not what the search had found, in list, show, best, status, report
    and export.
    """
    sweep = write_sweep(trials=12, replicates=2)
    best = json.loads(commands("status", "s", "--json").out)["best"]
    number = best["number"]
    value = f"{best['objective']:.4f}"
    own = json.loads((sweep / "trials" / best["folder"] / "result.json").read_text())["objective"]
    assert value != f"{own:.4f}"
    commands("report", "s")
    page = (sweep / "report.html").read_text()
    rows = [
        row
        for row in json.loads(commands("export", "s", "--format", "json").out)
        if row["rank"] == 1
    ]
    assert {f"{row['ranked_by']:.4f}" for row in rows} == {value}
    repeats = [row for row in rows if row["role"] == "confirm"]
    assert {row["of"] for row in repeats} == {number}
    assert len({row["seed"] for row in rows}) == len(repeats) + 1
    assert f'<p class="figure">{value}</p><p class="quiet">' in page
    assert f"trial {number} of s: eval_reward {value} ± " in commands("best", "s").out
    assert f"best {value} on 2 fresh seeds" in unwrap(commands("list").out)
    assert f"eval_reward  {value} ± " in commands("show", "best").out
    assert f"best     {value} ± " in commands("status", "s").out


def test_without_fresh_seeds_list_says_that_the_best_is_of_the_search(commands: Commands) -> None:
    """So one column of numbers is not read as if all were confirmed."""
    write_sweep(trials=12)
    assert re.search(r"best 0\.\d{4} in the search, lr=", unwrap(commands("list").out))


def test_the_newest_sweep_is_meant_where_none_is_named(commands: Commands) -> None:
    """By its study's last change."""
    for number, name in enumerate(("b", "a")):
        os.utime(write_sweep(name, trials=2) / "sweep.yaml", (1e9 + number, 1e9 + number))
    assert commands("status").out.startswith("a: ")


@pytest.mark.parametrize(
    "arguments", [("status",), ("status", "nowhere"), ("show", "3"), ("list",), ("status", "x\0y")]
)
def test_where_there_is_no_sweep_one_message_says_what_to_do(
    commands: Commands, arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, no traceback."""
    monkeypatch.setenv("GRPOSWEEP_CACHE", str(tmp_path))
    ended = commands(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert "no sweep" in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_name_that_is_no_sweep_is_answered_with_the_nearest_that_is_one(
    commands: Commands,
) -> None:
    """A typing error."""
    write_sweep("lr_batch", trials=1)
    assert "Did you mean lr_batch?" in commands("status", "lr_bach").err


def test_show_tells_everything_about_a_trial(commands: Commands) -> None:
    """Its curve, its rank, what tells it from the best and the baseline, its command on a line of
    its own.
    """
    write_sweep(trials=12)
    out = commands("show", "0").out
    expected = (
        "trial 0 of s: finished",
        "rank ",
        "6,400 completions",
        "1 difference from trial",
        "1 difference from the baseline",
    )
    assert [text for text in expected if text not in out] == []
    # what both have in common
    assert "optimizer" not in out
    assert next(line for line in out.splitlines() if line.startswith("python src/run.py lr="))


def test_show_tells_why_a_trial_failed(commands: Commands) -> None:
    """The class in words, the message, the end of its log."""
    write_sweep(trials=12, message="[red]no markup[/red]")
    out = commands("show", "5").out
    assert "out of GPU memory: [red]no markup[/red]" in out
    assert "torch.OutOfMemoryError" in out


def test_show_tells_that_a_process_ended_without_a_result(commands: Commands) -> None:
    """Its attempt was local and has begun, no result and no end of it were noted, and no controller
    is at work.
    """
    (attempts,) = write_sweep(trials=12, running=2).glob("trials/0010-*/attempts.jsonl")
    assert "without a result" not in commands("show", "10").out
    edit(attempts, '"job_id": "7010"', '"job_id": "local-7010"')
    assert (
        "attempt 0  local-7010, its process ended without a result: kill -9,"
        in commands("show", "10").out
    )


def test_an_unknown_trial_is_answered_with_those_there_are(commands: Commands) -> None:
    """One message."""
    write_sweep(trials=12)
    ended = commands("show", "77")
    assert (ended.code, ended.out) == (2, "")
    assert "by its number (0 to 11)" in ended.err


def test_list_finds_sweeps_below_a_folder_and_names_damaged_ones(commands: Commands) -> None:
    """Two levels down, the latest first."""
    make_sweep(Path("deep") / "outputs" / "one", Made(trials=3))
    make_sweep(Path("two"), Made(trials=3))
    make_sweep(Path("bad"), Made(trials=1)).joinpath("sweep.yaml").write_text("{")
    out = commands("list", ".").out
    assert [name for name in ("one", "two", "is damaged") if name not in out] == []


def test_list_finds_the_sweeps_of_a_copy_of_conf(commands: Commands) -> None:
    """Its configuration puts them elsewhere."""
    assert commands("init", "conf").code == 0
    config = Path("conf/config.yaml")
    edit(config, "outputs: outputs ", "outputs: shared ")
    make_sweep(Path("shared") / "elsewhere", Made(trials=2))
    assert "elsewhere" in commands("list", "--config-dir", "conf").out


def test_list_shows_whole_dates_next_to_long_names(commands: Commands) -> None:
    """80 columns: nothing is cut."""
    write_sweep("tiny-arithmetic-lr-batch-num_generations-d9f37f", trials=4)
    out = commands("list").out
    assert re.search(r"\b\d{4}-\d\d-\d\d\b", out)
    assert re.search(r"\b\d\d:\d\d\b", out)
    assert max(map(len, out.splitlines())) <= 80


def test_a_chart_rises_from_its_lower_left_to_its_upper_right() -> None:
    """A straight line, three lines high."""
    assert draw_curve([(0, 0), (10, 1)], width=6, height=3) == [
        "  1.0000 │    ⡠⠊",
        "         │  ⡠⠊",
        "  0.0000 │⡠⠊",
        "         └0 10 completions",
    ]


def test_status_is_watched_until_the_sweep_is_done(tmp_path: Path) -> None:
    """In a terminal; a sweep whose trials have all ended and that no controller holds is done."""
    import pty

    make_sweep(tmp_path / "outputs" / "s", Made(trials=2, settings={}))
    write_json(tmp_path / "outputs" / "s" / "outlook.json", {"target": 2})
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(
            sys.executable,
            [sys.executable, "-m", "grposweep", "status", "--watch"],
            environment(PYTHONPATH=str(PROJECT / "src"), TERM="xterm"),
        )
    _, status = os.waitpid(pid, 0)
    shown = os.read(terminal, 100_000).decode()
    assert (os.waitstatus_to_exitcode(status), "2 of 2 trials" in shown) == (0, True)


@pytest.mark.parametrize(
    "words",
    sampled(["mine 3", "mine/3", "outputs/mine 3", "--outputs outputs mine 3"], 4),
)
def test_a_sweep_and_its_trial_are_named_in_one_way(commands: Commands, words: str) -> None:
    """Also by SWEEP/TRIAL, and with options before or after."""
    for name in ("mine", "newer"):
        write_sweep(name, trials=12)
    assert commands("show", *words.split()).out.startswith("trial 3 of mine: ")
    assert commands("diagnose", *words.split()).code == 0
    compared = commands("compare", *words.split(), "mine", "7").out
    assert "A mine, trial 3: " in compared
    assert "B mine, trial 7: " in compared


def test_a_sweep_stands_for_its_best_trial_in_show_and_for_its_failed_ones_in_retry(
    commands: Commands,
) -> None:
    """A wrong name is answered with the nearest one."""
    write_sweep("mine", trials=4)
    assert commands("show", "mine").out == commands("show", "mine", "best").out
    assert "mine has no failed trial" in commands("retry", "mine").err
    assert "Did you mean mine?" in commands("retry", "mime").err
    assert "name one trial" in commands("rerun", "mine", "lr=1e-3").err


@pytest.mark.slow
def test_the_newest_sweep_that_trains_is_meant_and_listed_first(commands: Commands) -> None:
    """Sweeps of the fake trainer come after it, and are marked. A dry run has a status only."""
    for number, (name, kind) in enumerate((("real", "trl"), ("newer", "fake"))):
        made = Made(trials=2, settings={"baseline": {"trainer": {"kind": kind}}})
        os.utime(make_sweep(HERE / name, made) / "sweep.yaml", (1e9 + number, 1e9 + number))
    assert commands("status").out.startswith("real: ")
    assert re.search("(?s)real.*fake trainer, ", commands("list").out)
    dry = {"baseline": {"cluster": {"kind": "dry_run"}}}
    write_sweep("dry", trials=0, settings=dry)
    assert commands("status").out.startswith("dry: ")
    assert commands("best").out == commands("best", "real").out
    for name, is_fake in (("real", False), ("newer", True)):
        for screen in (commands("show", name).out, commands("best", name).out):
            assert ("fake trainer" in screen) is is_fake
