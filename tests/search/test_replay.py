"""benchmarks/curves/replay.py on a small file of made-up curves."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPLAY = Path(__file__).parents[2] / "benchmarks" / "curves" / "replay.py"


def replay(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command as a user types it."""
    return subprocess.run([sys.executable, REPLAY, *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Fifteen points with two seeds; the best learning rate is 1e-3, and signals are absent or empty."""
    lines = [
        {
            "point": {"lr": lr, "num_generations": size}, "seed": seed, "start": 0.2, "steps": [10, 20, 30, 40],
            "held_out": [0.2 + (0.1 * at + size / 200) * (n + 1) + seed / 1000 for n in range(4)],
            "kl": [], "completions_per_step": 8.0, "seconds": 5.0,
        }
        for lr, at in ((1e-5, 0.0), (1e-4, 0.5), (1e-3, 1.0), (1e-2, -0.4), (1e-1, -0.5))
        for size in (4, 8, 16)
        for seed in (0, 1)
    ]  # fmt: skip
    path = tmp_path / "made.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_a_replay_says_what_each_policy_costs(recorded: Path, tmp_path: Path) -> None:
    """In completions, compared with plain TPE, with two trials at once; each repeat is kept."""
    kept = ("--slots", 2, "--keep", tmp_path / "kept")
    done = replay(recorded, "--policy", "default,tpe,asha", "--repeats", 2, "--format", "json", *kept)
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert set(content) == {"default", "tpe", "asha"}
    for row in content.values():
        assert set(row["completions_to_1pct"]) == {"median", "low", "high"}
        assert 0 < row["completions_to_1pct"]["median"] <= 15 * 320
        assert row["regret_at_equal_budget"] >= 0
        assert 0 <= row["false_stops_over_1pct"] <= row["false_stops"] <= 1
    assert content["tpe"]["cost_ratio_to_tpe"] == 1
    assert content["tpe"]["false_stops"] == 0
    assert all(len(file.read_text().splitlines()) == 2 for file in (tmp_path / "kept").glob("made.*.2.*.jsonl"))


@pytest.mark.parametrize(
    ("line", "word"),
    [("{}", "line 1"), ("no JSON", "line 1"), ("", "0 recorded points")],
    ids=["empty", "text", "none"],
)
def test_what_is_no_recorded_curve_is_refused_in_one_message(tmp_path: Path, line: str, word: str) -> None:
    """Without a traceback, exit code 2."""
    path = tmp_path / "wrong.jsonl"
    path.write_text(line)
    done = replay(path)
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_hpo_rl_bench_is_converted_with_parameters_that_change_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
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
    found = {"learning_rate": [-3, -4, -5], "gamma": [0.95, 0.98, 0.99], "returns_eval": [float(n) for n in range(10)]}
    line = changing(names[0], found)
    assert line["point"] == {"lr1": 1e-3, "lr2": 1e-4, "lr3": 1e-5, "gamma1": 0.95, "gamma2": 0.98, "gamma3": 0.99}
    assert (line["seed"], line["held_out"]) == (0, [2.0, 7.0])
