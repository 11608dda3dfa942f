"""NePS's ASHA over recorded curves, in the environment that `make neps` makes; called by replay.py.

NePS asks for a point and a number of evaluations; a promoted point continues from where it was.
"""

import json
import logging
import random
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import neps
import numpy
import torch
from outcome import Outcome, draw_trainings
from pool import NodeContext, Pool, Recorded

from grposweep.search.space import Choice, Parameter

ASKS = 6  # a place, at most: NePS continues asking when all have been used


def dial(item: Parameter) -> Any:
    """A dial in NePS's words."""
    domain = item.domain
    if isinstance(domain, Choice):
        return neps.HPOCategorical([str(label) for label in domain.labels])
    kind = neps.HPOInteger if domain.integer else neps.HPOFloat
    return kind(lower=domain.low, upper=domain.high, log=domain.log)


def rehearse(pool: Pool, seed: int, budget: float) -> Outcome:
    """One sweep with one slot."""
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    trainings, left, outcome = draw_trainings(pool, seed), list(range(len(pool.places))), Outcome()
    most = max(len(training.held_out) for training in trainings)
    fidelity = neps.HPOInteger(lower=1, upper=most, is_fidelity=True)
    space = neps.SearchSpace({item.name: dial(item) for item in pool.space.parameters} | {"evaluations": fidelity})
    search = neps.AskAndTell(neps.algorithms.asha(space))
    places: dict[str, int] = {}  # NePS's name of a point, without its rung -> place
    for _ in range(ASKS * len(pool.places)):
        if outcome.completions >= budget and outcome.arrival(pool) is not None:
            break
        trial = search.ask()
        name = str(trial.id).rsplit("_", 1)[0]
        if name not in places:
            if not left:
                break
            places[name] = pool.nearest({**trial.config}, left)
            left.remove(places[name])
            outcome.started.append(places[name])
        else:
            outcome.resumed += 1
        before = (
            int(search.trials[trial.metadata.previous_trial_id].config["evaluations"])
            if trial.metadata.previous_trial_id
            else 0
        )
        now = int(trial.config["evaluations"])
        search.tell(trial, -train(trainings[places[name]], places[name], before, now, outcome))
    return outcome


def train(recorded: Recorded, place: int, before: int, now: int, outcome: Outcome) -> float:
    """From one evaluation to another; returns what the latter showed."""
    count = len(recorded.held_out)
    before, now = min(before, count), min(now, count)
    start = recorded.completions[before - 1] if before else 0.0
    spent = recorded.completions[now - 1] - start
    outcome.completions += spent
    outcome.seconds += recorded.seconds * spent / recorded.completions[-1]
    if now == count and now > before:
        outcome.finished.append((outcome.completions, outcome.seconds, place))
    return recorded.held_out[now - 1]


def main() -> None:
    """Read the question, print the outcomes."""
    logging.disable()
    question = json.loads(Path(sys.argv[1]).read_text())
    places = [
        NodeContext(p["point"], [Recorded(**training) for training in p["trainings"]]) for p in question["places"]
    ]
    pool = Pool(question["name"], places)
    print(json.dumps([asdict(rehearse(pool, seed, question["budget"])) for seed in question["seeds"]]))


if __name__ == "__main__":
    main()
