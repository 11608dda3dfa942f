"""What this sweep has learned about GPU memory: a point at least as large as one that ran out is not tried."""

from dataclasses import asdict
from typing import Any

from grposweep.config.schema import Experiment
from grposweep.files import append_line, read_lines
from grposweep.healed import load_healed
from grposweep.plan import build_plan
from grposweep.search.judge import Verdict
from grposweep.sweep.folder import SweepFolder, TrialFolder

NAME = "memory.jsonl"


def note_too_large(sweep: SweepFolder, trial: TrialFolder, verdict: Verdict) -> None:
    """This trial ran out of GPU memory for good, in the micro-batches of its last attempt."""
    batch = load_healed(trial.path, verdict.experiment).batch
    size = batch.per_device_train_batch_size
    sizes = {**_sizes(verdict), **({"per_device_train_batch_size": size} if isinstance(size, int) else {})}
    append_line(sweep.path / NAME, {"trial": trial.number, "sizes": sizes, "same": _same(verdict.experiment)})


def too_large(sweep: SweepFolder, verdict: Verdict) -> int | None:
    """The trial that ran out of memory with the same model and no larger sizes; None where there is none."""
    for line in read_lines(sweep.path / NAME):
        if line["same"] == _same(verdict.experiment) and _holds(_sizes(verdict), line["sizes"]):
            return int(line["trial"])
    return None


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
