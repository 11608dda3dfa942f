"""What this sweep has learned about GPU memory: a point that must need more than one that ran out, or than a GPU has
by what its trials have reserved, is not tried.
"""

from dataclasses import asdict
from typing import Any

from grposweep.config.schema import Experiment
from grposweep.files import append_line, read_lines
from grposweep.healed import load_healed
from grposweep.memory.estimate import CONTEXT, GIB, estimate
from grposweep.plan import build_plan
from grposweep.search.judge import Verdict
from grposweep.sweep.folder import SweepFolder, TrialFolder

NAME = "memory.jsonl"
SMALLEST, LARGEST = 0.7, 1.5  # how far trials may move the estimate: beyond, something else is being measured


def note_too_large(sweep: SweepFolder, trial: TrialFolder, verdict: Verdict) -> None:
    """This trial ran out of GPU memory for good, in the micro-batches of its last attempt."""
    batch = load_healed(trial.path, verdict.experiment).batch
    size = batch.per_device_train_batch_size
    sizes = {**_sizes(verdict), **({"per_device_train_batch_size": size} if isinstance(size, int) else {})}
    append_line(sweep.path / NAME, {"trial": trial.number, "sizes": sizes, "same": _same(verdict.experiment)})


def note_peak(sweep: SweepFolder, trial: TrialFolder, verdict: Verdict) -> None:
    """This trial finished: what it reserved at most, beside what it was estimated to, where its GPU is known."""
    memory = estimate(verdict.setting)
    if memory is None or verdict.setting.gpu_memory_gib is None:
        return
    lines = read_lines(trial.path / "metrics.jsonl", **{"memory/peak": float})
    reserved = max((line["memory/peak"] for line in lines), default=None)
    if reserved is not None:
        seen = reserved + CONTEXT / GIB  # which torch does not count
        append_line(sweep.path / NAME, {"trial": trial.number, "seen_gib": seen, "estimate_gib": memory.peak / GIB})


def too_large(sweep: SweepFolder, verdict: Verdict) -> int | None:
    """The trial that ran out of memory with the same model and no larger sizes, or whose peak says that this one would."""
    for line in read_lines(sweep.path / NAME, sizes=dict):
        if line["same"] == _same(verdict.experiment) and _holds(_sizes(verdict), line["sizes"]):
            return int(line["trial"])
    memory, limit = estimate(verdict.setting), verdict.setting.gpu_memory_gib
    found = None if memory is None or limit is None else correction(sweep)
    if found is None or memory is None or limit is None:
        return None
    return found[1] if memory.peak * found[0] > limit * GIB else None


def correction(sweep: SweepFolder) -> tuple[float, int] | None:
    """What the estimate is to be multiplied with, and the trial that says so: the one that needed most for its estimate.

    The largest ratio, not the mean: calling a point safe that fails costs more than leaving one out.
    """
    lines = read_lines(sweep.path / NAME, seen_gib=float, estimate_gib=float, trial=int)
    ratios = [(line["seen_gib"] / line["estimate_gib"], line["trial"]) for line in lines if line["estimate_gib"] > 0]
    if not ratios:
        return None
    ratio, trial = max(ratios)
    return min(max(ratio, SMALLEST), LARGEST), trial


def _sizes(verdict: Verdict) -> dict[str, int]:
    """What a rank holds at once: completions in a backward pass, and tokens of one."""
    plan = build_plan(verdict.setting)
    return {
        "per_device_train_batch_size": plan.per_device_train_batch_size,
        "max_completion_length": verdict.setting.max_completion_length,
    }


def _same(experiment: Experiment) -> dict[str, Any]:
    content: dict[str, Any] = {name: asdict(getattr(experiment, name)) for name in ("model", "generation")}
    content["kl"] = experiment.kl.beta > 0  # a reference model, or none
    content["loss"] = experiment.loss.loss_type
    del content["generation"]["max_completion_length"]
    return content


def _holds(sizes: dict[str, int], failed: dict[str, int]) -> bool:
    return all(sizes[name] >= size for name, size in failed.items())
