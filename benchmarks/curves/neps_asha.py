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
from pool import Place, Pool, Recorded

from grposweep.search.space import Choice, Parameter

# per trial at most, promotions included
ASKS = 6


def dial(item: Parameter) -> Any:
    """Return a parameter in NePS's terms."""
    domain = item.domain
    if isinstance(domain, Choice):
        return neps.HPOCategorical([str(label) for label in domain.labels])
    kind = neps.HPOInteger if domain.integer else neps.HPOFloat
    return kind(lower=domain.low, upper=domain.high, log=domain.log)


def rehearse(pool: Pool, seed: int, trials: int) -> Outcome:
    """Return one sweep with one slot. It ends when NePS asks for one more point than ``trials``: it
    promotes first.
    """
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    trainings, left, outcome = draw_trainings(pool, seed), list(range(len(pool.places))), Outcome()
    most = max(len(training.held_out) for training in trainings)
    fidelity = neps.HPOInteger(lower=1, upper=most, is_fidelity=True)
    space = neps.SearchSpace(
        {item.name: dial(item) for item in pool.space.parameters} | {"evaluations": fidelity}
    )
    search = neps.AskAndTell(neps.algorithms.asha(space))
    # NePS's name of a point, without its rung -> place
    places: dict[str, int] = {}
    for _ in range(ASKS * trials):
        trial = search.ask()
        name = str(trial.id).rsplit("_", 1)[0]
        if name not in places:
            if not left or len(places) == trials:
                break
            places[name] = pool.nearest({**trial.config}, left)
            left.remove(places[name])
            outcome.started.append(places[name])
            outcome.full += trainings[places[name]].completions[-1]
        else:
            outcome.resumed += 1
        previous = trial.metadata.previous_trial_id
        before = int(search.trials[previous].config["evaluations"]) if previous else 0
        now = int(trial.config["evaluations"])
        search.tell(trial, -train(trainings[places[name]], places[name], before, now, outcome))
    return outcome


def train(recorded: Recorded, place: int, before: int, now: int, outcome: Outcome) -> float:
    """Train from one evaluation to another, and return what the latter showed."""
    count = len(recorded.held_out)
    before, now = min(before, count), min(now, count)
    outcome.completions += recorded.completions[now - 1] - (
        recorded.completions[before - 1] if before else 0.0
    )
    if now == count and now > before:
        outcome.finished.append((outcome.completions, place))
    return recorded.held_out[now - 1]


def main() -> None:
    """Read the question and print the outcomes."""
    logging.disable()
    question = json.loads(Path(sys.argv[1]).read_text())
    places = [
        Place(p["point"], [Recorded(**training) for training in p["trainings"]])
        for p in question["places"]
    ]
    pool = Pool(question["name"], places)
    print(
        json.dumps([asdict(rehearse(pool, seed, question["trials"])) for seed in question["seeds"]])
    )


if __name__ == "__main__":
    main()
