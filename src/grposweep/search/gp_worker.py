"""The helper process that asks Optuna's Gaussian process sampler, so that the controller never imports torch."""

import json
import sys
from typing import Any

from grposweep.search.sampler import Ask, candidates
from grposweep.search.space import Choice, Interval, Parameter, Space
from grposweep.search.study import rebuild_history

ENOUGH = 8  # candidates a question: two free ones, then the optimum in some valid combinations


def main() -> None:
    """Read a question from standard input, write candidate points to standard output, both JSON."""
    question: dict[str, Any] = json.load(sys.stdin)
    study = rebuild_history(question["direction"], question["told"])
    ask = Ask(**question["ask"])
    drawn = candidates(study, Space(tuple(map(_dial, question["space"]))), ask, question["finite"])
    json.dump([point for point, _ in zip(drawn, range(ENOUGH), strict=False)], sys.stdout)


def _dial(content: dict[str, Any]) -> Parameter:
    """The dial behind its description; candidates need labels only."""
    when = {name: tuple(labels) for name, labels in content.get("when", {}).items()}
    if "choices" in content:
        labels = tuple(content["choices"])
        return Parameter(content["dial"], Choice(labels, labels), when)
    domain = Interval(content["low"], content["high"], content.get("log", False), content.get("integer", False))
    return Parameter(content["dial"], domain, when)


if __name__ == "__main__":
    main()
