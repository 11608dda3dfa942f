"""benchmarks/curves/replay.py on a small file of made-up curves."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from grporecipe.files import Json
from support import sampled, write_lines

REPLAY = Path(__file__).parents[2] / "benchmarks" / "curves" / "replay.py"
CHART = REPLAY.with_name("chart.py")


def replay(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command as a user types it."""
    return subprocess.run(
        [sys.executable, REPLAY, *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Fifteen points with two seeds; the best learning rate is 1e-3, and signals are absent or
    empty.
    """
    lines = [
        {
            "point": {"lr": lr, "num_generations": size},
            "seed": seed,
            "start": 0.2,
            "steps": [10, 20, 30, 40],
            "held_out": [0.2 + (0.1 * at + size / 200) * (n + 1) + seed / 1000 for n in range(4)],
            "kl": [],
            "completions_per_step": 8.0,
            "seconds": 5.0,
        }
        for lr, at in ((1e-5, 0.0), (1e-4, 0.5), (1e-3, 1.0), (1e-2, -0.4), (1e-1, -0.5))
        for size in (4, 8, 16)
        for seed in (0, 1)
    ]
    path = tmp_path / "made.jsonl"
    write_lines(path, lines)
    return path


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark's modules can be imported."""
    monkeypatch.syspath_prepend(str(REPLAY.parent))


@pytest.mark.slow
def test_a_replay_says_what_each_policy_costs_and_finds(recorded: Path) -> None:
    """As shares of what finishing every started trial costs; regret is compared with plain TPE's,
    here with two slots.
    """
    done = replay(
        recorded,
        "--policy",
        "default,tpe,median",
        "--effort",
        0.5,
        "--trials",
        8,
        "--repeats",
        3,
        "--slots",
        2,
        "--format",
        "json",
    )
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert set(content) == {"default", "tpe", "median"}
    for row in content.values():
        assert row["files"]["made"]["cost"] == row["cost"]
        assert row["cost_interval"]["low"] <= row["cost"] <= row["cost_interval"]["high"]
        assert (row["repeats"], row["started"]) == (3, 8)
        assert 0 <= row["arrived"] <= row["cost"] <= 1
        assert row["regret"] >= 0
    tpe = content["tpe"]
    assert (tpe["cost"], tpe["lost"], tpe["regret_to_tpe"]) == (1, 0, 0)
    assert content["default"]["effort"] == 0.5
    assert content["default"]["cost"] <= 0.55


@pytest.mark.slow
def test_with_a_budget_the_number_of_trials_is_free(recorded: Path) -> None:
    """Our policy starts more trials than plain TPE for the same completions, and none spends more
    than the budget.
    """
    options = ("--budget", "3,5", "--policy", "default,tpe,halving,own_asha", "--repeats", 2)
    content = json.loads(replay(recorded, *options, "--format", "json").stdout)
    assert {name: set(rows) for name, rows in content.items()} == {
        key: {"3", "5"} for key in ("default", "tpe", "halving", "own_asha")
    }
    rows = [row for found in content.values() for row in found.values()]
    assert all(0 <= row["regret"] <= row["picked"] and 0 < row["cost"] <= 1 for row in rows)
    assert content["default"]["5"]["started"] > content["tpe"]["5"]["started"]
    assert "| default |" in replay(recorded, *options).stdout
    refused = replay(recorded, "--budget", "few")
    assert (refused.returncode, "Set --budget" in refused.stderr) == (2, True)


@pytest.mark.slow
def test_one_call_compares_several_efforts_and_numbers_of_trials(recorded: Path) -> None:
    """The table has a row per policy, effort and number of trials; a file limits how many can
    start.
    """
    done = replay(recorded, "--policy", "rank@0.5,rank@1", "--trials", "4,50", "--repeats", 2)
    rows = [
        [cell.strip() for cell in row.split("|")[2:6]]
        for row in done.stdout.splitlines()
        if "| made |" in row
    ]
    assert [row[:3] for row in rows] == [
        [f"rank@{e}", n, "2"] for e in ("0.5", "1") for n in ("4", "15")
    ]
    assert rows[3][3] == "1.00 (1.00 to 1.00)"


@pytest.mark.slow
def test_more_trials_at_less_effort_are_compared_at_equal_cost(recorded: Path) -> None:
    """Twice as many trials at half the effort cost about what plain TPE costs."""
    options = ("--policy", "default@0.5,tpe", "--trials", "6", "--repeats", 2, "--equal-cost")
    row = json.loads(replay(recorded, *options, "--format", "json").stdout)["default@0.5"]["files"][
        "made"
    ]
    assert (row["started"], row["tpe_started"]) == (12, 6)
    assert row["cost_to_tpe"] == pytest.approx(1, abs=0.1)
    assert "| TPE's regret | ratio (95 %) |" in replay(recorded, *options).stdout


@pytest.mark.slow
def test_an_interrupted_replay_continues_from_the_repeats_it_kept(
    recorded: Path, tmp_path: Path
) -> None:
    """Lines that are there are read, not replayed; what is missing is."""
    options = (
        "--policy",
        "tpe",
        "--trials",
        4,
        "--repeats",
        2,
        "--format",
        "json",
        "--keep",
        tmp_path / "kept",
    )
    whole = replay(recorded, *options).stdout
    (kept,) = (tmp_path / "kept").glob("*.jsonl")
    first, second = kept.read_text().splitlines()
    kept.write_text(f"{first}\n")
    assert replay(recorded, *options).stdout == whole
    assert kept.read_text().splitlines() == [first, second]
    kept.write_text(f"{json.dumps(json.loads(first) | {'cost': 0.5})}\n{second}\n")
    assert json.loads(replay(recorded, *options).stdout)["tpe"]["cost"] == 0.75


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("--policy", "nope"),
        ("--policy", "tpe@0.5"),
        ("--policy", "rank@2"),
        ("--policy", "rank@half", "--effort", "0.5"),
        ("--effort", "0"),
        ("--trials", "0"),
        ("--trials", "few"),
        ("--policy", "tpe", "--equal-cost"),
    ],
    ids="_".join,
)
def test_wrong_options_are_refused_in_one_message(recorded: Path, options: tuple[str, ...]) -> None:
    """Without a traceback, exit code 2."""
    done = replay(recorded, *options)
    assert done.returncode == 2
    assert "Set" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("curves")
def test_a_sweep_has_lost_if_a_better_point_had_started() -> None:
    """By more than one per cent; regret is what the best finished point lacks of the best of
    all.
    """
    from outcome import Outcome
    from pool import Place, Pool, Recorded

    def place(worth: float) -> Place:
        return Place({"lr": worth}, [Recorded([10.0, 20.0], [0.0, worth], None, 1.0, [], {})])

    pool = Pool("made", [place(worth) for worth in (0.2, 0.5, 0.796, 0.8)])

    def found(finished: list[tuple[float, int]], started: list[int]) -> Json:
        return Outcome(finished, started, 30.0, 40.0).figures(pool)

    assert found([(20.0, 1)], [0, 1])["regret"] == pytest.approx(0.375)
    assert [found([(20.0, a)], [0, a, b])["lost"] for a, b in ((1, 0), (2, 3), (1, 2))] == [
        False,
        False,
        True,
    ]
    assert found([(20.0, 1), (30.0, 0)], [0, 1])["arrived"] == 0.5
    assert (found([], [1])["regret"], found([], [1])["arrived"]) == (pytest.approx(0.75), 0.75)


@pytest.mark.usefixtures("curves")
def test_no_lost_sweep_among_few_does_not_say_that_none_is_ever_lost() -> None:
    """Shares have Wilson's interval; means are resampled within each file."""
    import numpy
    from figures import bounds, bounds_of_share, resample

    assert bounds_of_share(0.0, 40)["low"] == 0
    assert bounds_of_share(0.0, 40)["high"] == pytest.approx(0.088, abs=0.001)
    assert bounds_of_share(0.5, 40) == {
        "low": pytest.approx(0.352, abs=1e-3),
        "high": pytest.approx(0.648, abs=1e-3),
    }
    assert bounds(resample([numpy.array([1.0, 1.0]), numpy.array([3.0, 3.0])])) == {
        "low": 2.0,
        "high": 2.0,
    }
    assert bounds(numpy.array([1.0, numpy.inf])) == {"low": 1.0, "high": None}


@pytest.mark.slow
def test_a_chart_has_a_panel_per_file(recorded: Path, tmp_path: Path) -> None:
    """From the kept repeats or from the JSON; our policy is a line over its efforts. Only common
    seeds count.
    """
    options = (
        "--policy",
        "rank@0.5,rank@1,tpe,median",
        "--trials",
        8,
        "--repeats",
        2,
        "--keep",
        tmp_path / "kept",
    )
    (tmp_path / "printed.json").write_text(replay(recorded, *options, "--format", "json").stdout)
    replay(recorded, "--policy", "tpe", "--trials", 8, "--repeats", 6, "--keep", tmp_path / "kept")
    charts = []
    for source in ("kept", "printed.json"):
        chart = [sys.executable, CHART, tmp_path / source, tmp_path / "chart.svg", "--trials", "8"]
        subprocess.run(chart, check=True)
        drawn = ElementTree.parse(tmp_path / "chart.svg").getroot()
        words = [
            "".join(item.itertext()) for item in drawn.iter("{http://www.w3.org/2000/svg}text")
        ]
        assert {"made", "0.5", "1", "median", "tpe"} <= {*words}
        charts.append(sorted(words))
    assert charts[0] == charts[1]
    chart[2] = tmp_path / "kept"
    assert subprocess.run([*chart[:-1], "9"], capture_output=True, check=False).returncode == 2


@pytest.mark.parametrize(
    ("line", "word"),
    sampled([("{}", "line 1"), ("no JSON", "line 1"), ("", "0 recorded points")], 3),
    ids=["empty", "text", "none"],
)
def test_what_is_no_recorded_curve_is_refused_in_one_message(
    tmp_path: Path, line: str, word: str
) -> None:
    """Without a traceback, exit code 2."""
    path = tmp_path / "wrong.jsonl"
    path.write_text(line)
    done = replay(path)
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_hpo_rl_bench_is_converted_with_parameters_that_change_on_the_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Points without all three seeds are left out, and the same ones are drawn at each call."""
    monkeypatch.syspath_prepend(str(REPLAY.parent))
    from hpo_rl_bench import changing, drawn

    names = [
        f"Enduro-v0_PPO_random_lr_-3-4-5_gamma_0.950.980.{n}_seed{seed}_eval.json"
        for n in range(10, 120)
        for seed in range(3)
    ]
    few = [
        "Enduro-v0_PPO_random_lr_-3-3-3_gamma_0.80.80.8_seed0_eval.json",
        "Enduro-v0_PPO_random_lr_-3_gamma_0.8_clip_0.2_seed0_eval.json",
    ]
    paths = drawn([*few, *names])
    assert len(paths) == 300
    assert not {*few} & {*paths}
    assert paths == drawn([*reversed(names), *few])
    found = {
        "learning_rate": [-3, -4, -5],
        "gamma": [0.95, 0.98, 0.99],
        "returns_eval": [float(n) for n in range(10)],
    }
    line = changing(names[0], found)
    assert line["point"] == {
        "lr1": 1e-3,
        "lr2": 1e-4,
        "lr3": 1e-5,
        "gamma1": 0.95,
        "gamma2": 0.98,
        "gamma3": 0.99,
    }
    assert (line["seed"], line["held_out"]) == (0, [2.0, 7.0])
