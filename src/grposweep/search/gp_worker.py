"""Ask Optuna's Gaussian process sampler in a helper process, so that the controller never imports torch."""

import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import distribution_to_json, json_to_distribution
from optuna.trial import FrozenTrial

from grporecipe.files import parse_json
from grposweep.search.sampler import SamplerRequest, candidates
from grposweep.search.space import Direction, Point, Space, read_space

ENOUGH = 8  # candidates a request: two free ones, then the optimum in some valid combinations
MOST_FINITE = 64  # valid combinations that are sent along


def ask_helper(
    direction: Direction,
    told: Iterable[tuple[FrozenTrial, float]],
    space: Space,
    request: SamplerRequest,
    finite: Collection[Point],
) -> Iterator[Point]:
    """Yield candidate points, given trials with their values. The process starts with the first one."""
    question = {
        "direction": direction,
        "ask": {**vars(request), "fixed": dict(request.fixed)},
        "finite": list(finite)[:MOST_FINITE],
        "space": space.describe(),
        "told": [
            {"value": value, "params": trial.params, "distributions": _as_json(trial)} for trial, value in told
        ],
    }  # fmt: skip
    source = str(Path(__file__).resolve().parents[2])
    answer = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(question),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    yield from parse_json(answer.stdout)


def _as_json(trial: FrozenTrial) -> dict[str, str]:
    return {name: distribution_to_json(kind) for name, kind in trial.distributions.items()}


def _rebuild_study(direction: Direction, told: list[dict[str, Any]]) -> optuna.Study:
    """Return the in-memory study that a question describes."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # the Gaussian process asks for greenlet at every start
    study = optuna.create_study(direction=direction)
    for trial in told:
        kinds = {name: json_to_distribution(text) for name, text in trial["distributions"].items()}
        study.add_trial(optuna.trial.create_trial(params=trial["params"], distributions=kinds, value=trial["value"]))
    return study


def main() -> None:
    """Read a question from standard input and write candidate points to standard output, both JSON."""
    question: dict[str, Any] = parse_json(sys.stdin.read())
    study = _rebuild_study(question["direction"], question["told"])
    request = SamplerRequest(**question["ask"])
    drawn = candidates(study, read_space(question["space"]), request, question["finite"])
    json.dump(list(islice(drawn, ENOUGH)), sys.stdout)


if __name__ == "__main__":
    main()
