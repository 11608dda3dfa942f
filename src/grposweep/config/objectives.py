"""Several objectives as a person writes them: ``search.metric=[eval_reward,gpu_hours] search.direction=[maximize,minimize]``.

The first one is measured, ranked and shown as a single objective is; the others stand beside it in ``search.further``.
"""

from dataclasses import replace
from typing import Any

from grposweep.config.schema import Search
from grposweep.errors import BadInput

DIRECTIONS = ("maximize", "minimize")
GPU_HOURS = "gpu_hours"  # what a trial cost; every other objective is a metric of its evaluations


def split_objectives(search: Search) -> Search:
    """Lists of metrics and directions as the first of each, and the others beside it.

    Raises BadInput where they do not go together, or the first is no metric.
    """
    metrics, directions = _listed(search.metric), _listed(search.direction)
    if len(metrics) != len(directions):
        raise BadInput(
            f"search.metric has {len(metrics)} objectives and search.direction {len(directions)} directions. Give one direction "
            "each: search.metric=[eval_reward,gpu_hours] search.direction=[maximize,minimize]."
        )
    if len(set(metrics)) < len(metrics) or metrics[0] == GPU_HOURS:
        raise BadInput(
            f"search.metric=[{','.join(metrics)}]: objectives are distinct, and the first is a metric that evaluations report. "
            "Set search.metric=[eval_reward,gpu_hours]."
        )
    for direction in (*directions[1:], *search.further.values()):
        if direction not in DIRECTIONS:
            raise BadInput(
                f"search.direction={direction}: nothing understands that. Set one of {', '.join(DIRECTIONS)}."
            )
    further = dict(zip(metrics[1:], directions[1:], strict=True))
    return replace(search, metric=metrics[0], direction=directions[0], further={**search.further, **further})


def _listed(value: Any) -> list[str]:
    found = [str(item) for item in (value if isinstance(value, list) else [value])]
    if not found:
        raise BadInput("search.metric=[]: there is nothing to search for. Set search.metric=eval_reward.")
    return found
