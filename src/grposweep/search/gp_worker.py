"""The helper process that runs Optuna's Gaussian process sampler, so that the controller never imports torch."""

import json
import sys
from typing import Any

from grposweep.search.sampler import SamplerRequest, candidates
from grposweep.search.space import read_space
from grposweep.search.study import rebuild_history

ENOUGH = 8  # candidates a request: two free ones, then the optimum in some valid combinations


def main() -> None:
    """Read a request from standard input and write candidate points to standard output, both JSON."""
    content: dict[str, Any] = json.load(sys.stdin)
    study = rebuild_history(content["direction"], content["told"])
    request = SamplerRequest(**content["ask"])
    drawn = candidates(study, read_space(content["space"]), request, content["finite"])
    json.dump([point for point, _ in zip(drawn, range(ENOUGH), strict=False)], sys.stdout)


if __name__ == "__main__":
    main()
