"""Sweep folders written file by file as a sweep leaves them, in milliseconds a trial; their curves
are made up.
"""

import json
import math
import random
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from grporecipe.files import Json
from grposweep.config.compose import open_session, render_experiment
from grposweep.config.points import Points
from grposweep.report.trial_view import TrialView
from grposweep.report.view import read_sweep

# five times as fast, where PyYAML was built with it
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
STEP_SECONDS = 3.0
EPOCH = 1_790_000_000.0
FAILURE = {
    "kind": "OutOfMemoryError",
    "class": "gpu_memory",
    "message": "CUDA out of memory. Tried to allocate 2.00 GiB",
    "last_lines": [
        "Traceback (most recent call last):",
        "torch.OutOfMemoryError: CUDA out of memory.",
    ],
}
CLIPS = {
    f"clip_ratio/{name}": 0.0
    for name in ("high_max", "high_mean", "low_mean", "low_min", "region_mean")
}
LENGTHS = {
    f"completions/{name}_length": 96.5
    for name in ("max", "max_terminated", "min", "min_terminated")
}


@cache
def baseline() -> str:
    """The base configuration, with the fake trainer."""
    with open_session() as session:
        return render_experiment(Points(session.compose, ["trainer=fake"]).base)


@cache
def baseline_values() -> Any:
    """The same, read."""
    return yaml.safe_load(baseline())


def best_of(sweep: Path) -> TrialView:
    """The best trial of a sweep, which has one."""
    best = read_sweep(sweep).best
    assert best is not None
    return best


@dataclass
class Made:
    """Folder to write. Of every 17 trials one fails, of every 11 one is stopped early; ``running``
    ones come last.
    """

    trials: int = 12
    steps: int = 100
    evaluations: int = 10
    running: int = 0
    queued: int = 0
    # of the three best, on other seeds
    replicates: int = 0
    metric: str = "eval_reward"
    parameters: dict[str, list[Any]] = field(
        default_factory=lambda: {
            "batch": ["small", "medium", "large"],
            "batch.num_generations": [4, 8, 16],
        }
    )
    message: str = FAILURE["message"]  # type: ignore[assignment]
    sampler: str = "auto"
    # over sweep.yaml's own
    settings: Json = field(default_factory=dict)


def make_sweep(path: Path, made: Made) -> Path:
    """Write the folder; the same numbers every time."""
    chance = random.Random(0)
    (path / "trials").mkdir(parents=True)
    space = [{"parameter": "lr", "low": 1e-5, "high": 1e-2, "log": True}]
    space += [{"parameter": name, "choices": labels} for name, labels in made.parameters.items()]
    _write_sweep(path, made, space)
    found: list[tuple[float, int, Json]] = []
    for number in range(made.trials):
        point = {"lr": 10 ** chance.uniform(-5, -2)} | {
            name: chance.choice(v) for name, v in made.parameters.items()
        }
        found.append((_write_trial(path, made, number, point, {}, chance), number, point))
    best = sorted(found, key=lambda triple: -triple[0])[:3]
    number = made.trials
    for seed in range(1000, 1000 * (made.replicates + 1), 1000):
        for _, of, point in best:
            attributes = {"role": "confirm", "of": of, "seed": seed}
            _write_trial(path, made, number, point, attributes, chance, ends="finished")
            number += 1
    return path


def make_comparison(path: Path, turned: list[Json], seeds: int = 4) -> Path:
    """A sweep of one factor at a time: the baseline (lr 3e-4) and these points, all on so many
    seeds.
    """
    chance = random.Random(0)
    made = Made(trials=1 + len(turned), replicates=seeds, sampler="one_factor")
    (path / "trials").mkdir(parents=True)
    space = [
        {"parameter": name, "choices": [point[name] for point in turned if name in point]}
        for name in dict.fromkeys(name for point in turned for name in point)
    ]
    _write_sweep(path, made, space)
    for index in range(seeds):
        for of, point in enumerate([{}, *turned]):
            attributes = {"role": "confirm", "of": of, "seed": 1000 * index} if index else {}
            number = index * made.trials + of
            _write_trial(path, made, number, point, attributes, chance, ends="finished")
    return path


def _write_sweep(path: Path, made: Made, space: list[Json]) -> None:
    provenance = {
        "grposweep": "0.1.0",
        "git_sha": "0" * 40,
        "git_diff": "",
        "packages": {"torch": "2.13.0", "trl": "1.16.0"},
        "python": "3.11.7",
        "platform": "Linux",
        "hostname": "node1",
        "command": "python src/run.py -m lr=...",
    }
    search = {
        "sampler": made.sampler,
        "seed": 0,
        "metric": made.metric,
        "direction": "maximize",
        "last": 1,
        "seeds": made.replicates,
        "leaders": 3,
    }
    content = {
        "name": path.name,
        "identity": "0" * 64,
        "space": space,
        "search": search,
        "overrides": ["trainer=fake"],
        "baseline": baseline_values(),
        "provenance": provenance,
        **made.settings,
    }
    (path / "sweep.yaml").write_text(yaml.dump(content, Dumper=DUMPER, sort_keys=False))
    problem = {
        "code": "GB101",
        "message": "batch.num_generations=12: whole groups",
        "fixes": [{"cluster.processes": 3}],
    }
    lines = [{"point": {"batch": "small", "batch.num_generations": 12}, "problems": [problem]}] * 4
    _lines(path / "invalid.jsonl", lines)
    sampler = "tpe" if made.sampler == "auto" else made.sampler
    outlook = {
        "target": made.trials + 4,
        "at_once": 2,
        "sampler": sampler,
        "points": 12,
        "valid": 8,
    }
    waiting = {str(made.trials - 1): "(Priority)"} if made.queued else {}
    (path / "outlook.json").write_text(
        json.dumps({**outlook, "budget_hours": 50.0, "waiting": waiting})
    )


def _write_trial(
    sweep: Path,
    made: Made,
    number: int,
    point: Json,
    attributes: Json,
    chance: random.Random,
    ends: str = "",
) -> float:
    """One trial's folder; what it is worth."""
    identity = f"{number * 7919:06x}" + "0" * 58
    folder = sweep / "trials" / f"{number:04d}-{identity[:6]}"
    folder.mkdir()
    state = ends or _state(made, number)
    reach = {"finished": 1.0, "pruned": 0.3, "failed": 0.5, "running": 0.6, "queued": 0.0}[state]
    step = (
        int(made.steps * reach)
        // max(made.steps // made.evaluations, 1)
        * max(made.steps // made.evaluations, 1)
    )
    record = {
        "number": number,
        "point": point,
        "attributes": {"experiment": identity, **attributes},
    }
    _json(folder / "trial.json", record)
    config = baseline().replace("lr: 0.0003\n", f"lr: {point.get('lr', 3e-4)}\n", 1)
    (folder / "config.yaml").write_text(config)
    overrides = " ".join(f"{name}={label}" for name, label in point.items())
    (folder / "command.sh").write_text(
        f"#!/bin/sh\n# Repeats this trial.\ncd /work\npython src/run.py {overrides}\n"
    )
    begin = EPOCH + 400.0 * number if state != "running" else time.time() - STEP_SECONDS * step
    _lines(folder / "attempts.jsonl", [{"attempt": 0, "event": "intent", "time": begin}])
    started = {"attempt": 0, "event": "started", "time": begin, "job_id": str(7000 + number)}
    _lines(folder / "attempts.jsonl", [started])
    if state == "queued":
        return 0.0
    metrics = list(_metrics(made, point, step, begin, chance))
    _lines(folder / "metrics.jsonl", metrics)
    runs = [{"event": "start", "attempt": 0, "time": begin, "devices": 4, "restarts": 0}]
    if state != "running":
        runs.append({"event": "end", "attempt": 0, "time": begin + STEP_SECONDS * step})
    _lines(folder / "runs.jsonl", runs)
    _json(folder / "heartbeat", {"step": step, "total": made.steps, "counter": step})
    values = [line["eval_reward"] for line in metrics if "eval_reward" in line]
    if state != "running":
        _write_result(folder, made, state, step, values)
    return values[-1] if state == "finished" else 0.0


def _write_result(folder: Path, made: Made, state: str, step: int, values: list[float]) -> None:
    failure: Json | None = None
    if state == "failed":
        failure = {**FAILURE, "message": made.message}
    if state == "pruned":
        failure = {"kind": "stopped", "message": "less than a 5 % chance to end among the best"}
    worth = {
        "objective": values[-1] if state in ("finished", "pruned") else None,
        "objective_se": 0.012,
    }
    start = {"start": values[0], "start_se": 0.014}
    result = {
        "status": state,
        "attempt": 0,
        **worth,
        **start,
        "step": step,
        "total_steps": made.steps,
    }
    _json(folder / "result.json", {**result, "completions": 64 * step, "failure": failure})
    end = {"attempt": 0, "event": "ended", "code": int(state == "failed")}
    _lines(
        folder / "attempts.jsonl",
        [{**end, "failure": "gpu_memory", "step": "fail"} if failure else end],
    )


def _state(made: Made, number: int) -> str:
    left = made.trials - number
    if left <= made.queued:
        return "queued"
    if left <= made.queued + made.running:
        return "running"
    return "failed" if number % 17 == 5 else "pruned" if number % 11 == 3 else "finished"


def _metrics(made: Made, point: Json, last: int, begin: float, chance: random.Random) -> Any:
    """Lines as TRL's trainer leaves them: one a step, one more an evaluation."""
    top = max(0.85 - 0.2 * abs(math.log10(point.get("lr", 3e-4) / 3e-4)), 0.02) + chance.gauss(
        0, 0.01
    )
    for step in range(last + 1):
        share = 1 - math.exp(-4 * step / made.steps)
        reward = 0.3 + (top - 0.3) * share
        head = {
            "attempt": 0,
            "step": step,
            "completions": 64 * step,
            "time": begin + STEP_SECONDS * step,
        }
        if step:
            more = {
                "kl": 0.02 * share,
                "entropy": 2.0 - share,
                "grad_norm": 0.5 + chance.random(),
                "loss": 0.001,
            }
            train = {
                "reward": reward + chance.gauss(0, 0.03),
                "reward_std": 0.3,
                **CLIPS,
                **LENGTHS,
                **more,
            }
            sizes = {
                "learning_rate": point.get("lr", 3e-4),
                "completions/mean_length": 60 + 30 * share,
                "epoch": step / 100,
            }
            yield {
                **head,
                "kind": "train",
                **train,
                **sizes,
                "frac_reward_zero_std": 0.1,
                "step_time": STEP_SECONDS,
            }
        if step % max(made.steps // made.evaluations, 1) == 0:
            value = reward + chance.gauss(0, 0.01)
            evaluated = {
                f"eval_{name}": 0.0 for name in (*CLIPS, *LENGTHS, "kl", "loss", "reward_std")
            }
            yield {
                **head,
                "kind": "eval",
                **evaluated,
                "eval_reward": value,
                "eval_reward_se": 0.012,
            }


def _json(path: Path, content: Json) -> None:
    path.write_text(json.dumps({**content}, indent=1) + "\n")


def _lines(path: Path, lines: list[Json]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
