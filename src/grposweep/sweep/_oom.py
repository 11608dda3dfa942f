"""Recover from running out of GPU memory: the same optimizer steps in smaller micro-batches.

Which ends these are, and whether one by main memory or signal 9 is tried again, is decided in
sweep/_failures.py (`RETRIES`).

A loss that is a mean of equal parts can be split further; which ones are says ``compute_loss`` in
trl 1.16 trainer/grpo_trainer.py. ``grpo`` and ``sapo`` average over completions, ``dr_grpo`` and
``luspo`` divide by their number, ``dapo``, ``cispo`` and ``vespo`` by the tokens of the whole
accumulation; ``bnpo`` divides by the tokens of one micro-batch.

A sweep also records what its trials needed. A point is left out if it needs more than one that ran
out of memory, or more than the GPU has according to the measured peaks.
"""

from collections.abc import Collection
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from grporecipe.files import Json, append_line, file_stamp, read_lines, whole_or_none
from grporecipe.memory.calibration import (
    SHAPE,
    find_factors,
    find_trial_too_large,
    peak_line,
    share,
)
from grporecipe.memory.estimate import CONTEXT, GIB, estimate
from grporecipe.model import planning
from grporecipe.model.planning import build_plan
from grporecipe.model.setting import Setting
from grporecipe.rules.check import check, errors
from grposweep.schema import Experiment
from grposweep.search.validity import ValidationResult
from grposweep.storage import paths
from grposweep.storage.folders import SweepFolder, TrialFolder
from grposweep.storage.records import OomFix, apply_oom_fix, read_metrics

SPLITTABLE = frozenset({"grpo", "sapo", "dr_grpo", "luspo", "dapo", "cispo", "vespo"})

# of the batch: its fields and ours have the same names
Changes = dict[str, int]


def halve_batch(s: Setting, ignore: Collection[str] = ()) -> Changes | None:
    """Half the per-device size (a third of 3, a fifth of 5, ...) and as many times the accumulation
    and an explicit ``steps_per_generation``; None if that is impossible, invalid, or another loss.

    ``s`` is realised. A rollout's completions stay what they were, and so does the memory that
    generating them needs.
    """
    if s.loss_type not in SPLITTABLE or s.use_liger_kernel:
        return None
    factor = next(
        (
            n
            for n in range(2, s.per_device_train_batch_size + 1)
            if not s.per_device_train_batch_size % n
        ),
        1,
    )
    if factor == 1:
        return None
    changes = {
        "per_device_train_batch_size": s.per_device_train_batch_size // factor,
        "gradient_accumulation_steps": s.gradient_accumulation_steps * factor,
    }
    if s.steps_per_generation is not None:
        changes["steps_per_generation"] = s.steps_per_generation * factor
    healed = s.replace({**changes, "auto": s.auto - planning.TRAIN_SIZES})
    before = {problem.code for problem in errors(check(s, ignore))}
    after = {problem.code for problem in errors(check(healed, ignore))}
    return changes if after <= before else None


def record_oom(sweep: SweepFolder, trial: TrialFolder, verdict: ValidationResult) -> None:
    """Record that this trial ran out of GPU memory even in the micro-batches of its last
    attempt.
    """
    batch = apply_oom_fix(trial.path, verdict.experiment).batch
    size = batch.per_device_train_batch_size
    sizes = _sizes(verdict)
    if isinstance(size, int):
        sizes["per_device_train_batch_size"] = size
    append_line(
        sweep.path / paths.MEMORY,
        {"trial": trial.number, "sizes": sizes, "same": _same(verdict.experiment)},
    )


def record_peak(sweep: SweepFolder, trial: TrialFolder, verdict: ValidationResult) -> None:
    """Record how much memory a finished trial reserved at most, and the estimate, if its GPU is
    known.
    """
    memory = estimate(verdict.setting)
    if memory is None or verdict.setting.gpu_memory_gib is None:
        return
    peaks = (row.line.get("memory/peak") for row in read_metrics(trial.path))
    reserved = max((peak for peak in peaks if isinstance(peak, float)), default=None)
    if reserved is not None:
        # which torch does not count
        line = peak_line(memory, reserved + CONTEXT / GIB)
        append_line(sweep.path / paths.MEMORY, {"trial": trial.number, **line})
        share(verdict.setting, line)


def find_needs(trial: TrialFolder, verdict: ValidationResult) -> tuple[float | None, bool]:
    """Return the GiB of a GPU that a trial is known to need, and whether others have ended an
    attempt of it by holding them.

    The largest of: the lower end of the estimate as measured peaks correct it, its own peaks, and
    what it held and asked for when it was crowded out. None: none of these is known. What attempts
    needed before their micro-batches were halved does not count.
    """
    fix = OomFix.find(trial.path)
    first = 0 if fix is None else fix.attempt + 1
    crowded = [
        event.needs_gib
        for event in trial.attempts()
        if event.needs_gib is not None and event.attempt >= first
    ]
    rows = (
        row
        for row in read_metrics(trial.path)
        if (whole_or_none(row.line.get("attempt")) or 0) >= first
    )
    peaks = (row.number("memory/peak") for row in rows)
    needs = [*crowded, *(peak + CONTEXT / GIB for peak in peaks if peak is not None)]
    if fix is None and (memory := estimate(verdict.setting)) is not None:
        factors = corrections(trial.sweep)
        needs.append(memory.low / GIB)
        needs += [
            size * factors[phase][0] / GIB
            for phase, size in memory.phases.items()
            if phase in factors
        ]
    return max(needs, default=None), bool(crowded)


def known_oom(sweep: SweepFolder, verdict: ValidationResult) -> int | None:
    """Return the trial that ran out of memory at sizes no larger than these, or whose peak shows
    that this one would.
    """
    for line in read_lines(sweep.path / paths.MEMORY, sizes=dict, same=dict):
        sizes = _sizes(verdict)
        if line["same"] == _same(verdict.experiment) and all(
            sizes[name] >= n for name, n in line["sizes"].items()
        ):
            return int(line["trial"])
    memory = estimate(verdict.setting)
    limit = verdict.setting.gpu_memory_gib
    if memory is None or limit is None:
        return None
    return find_trial_too_large(memory, corrections(sweep), limit * GIB)


def corrections(sweep: SweepFolder) -> dict[str, tuple[float, int]]:
    """Return, for each phase, the factor between measured peaks and estimate, and the trial that
    measured it.
    """
    path = sweep.path / paths.MEMORY
    return _read_factors(path, file_stamp(path))


# A request for a point looks at many candidates, and each finished trial has a line.
@lru_cache(maxsize=1)
def _read_factors(path: Path, stamp: object) -> dict[str, tuple[float, int]]:  # noqa: ARG001 - the stamp is part of the cache's key
    return find_factors(read_lines(path, **SHAPE, trial=int))


def _sizes(verdict: ValidationResult) -> dict[str, int]:
    """Return the completions of one backward pass on a rank, and the tokens of each."""
    plan = build_plan(verdict.setting)
    return {
        "per_device_train_batch_size": plan.per_device_train_batch_size,
        "max_completion_length": verdict.setting.max_completion_length,
    }


def _same(experiment: Experiment) -> Json:
    content: Json = {name: asdict(getattr(experiment, name)) for name in ("model", "generation")}
    # a reference model, or none
    content["kl"] = experiment.kl.beta > 0
    content["loss"] = experiment.loss.loss_type
    del content["generation"]["max_completion_length"]
    return content
