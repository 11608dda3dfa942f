"""Print the summary before a sweep starts: invalid points, number of trials, warnings, and disk
space.
"""

import os
import shutil
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from grporecipe.errors import UserError
from grporecipe.files import Config, Json, without
from grporecipe.model.planning import steps_per_epoch, total_completions, total_steps
from grporecipe.model.setting import Setting
from grporecipe.rules.registry import Problem
from grporecipe.terminal import count, short
from grposweep.config.evaluation import is_of_evaluation
from grposweep.config.identity import sizes
from grposweep.config.precision import read_precision
from grposweep.config.trial_plan import known_part
from grposweep.report.tables import FOLD, Row, build_table, print_lines
from grposweep.report.view import InvalidPoints
from grposweep.schema import Experiment
from grposweep.schema.registries import runs_trl
from grposweep.schema.running import KEEPS_MODEL
from grposweep.search.early_stopping.rungs import describe_least
from grposweep.search.evaluate import SpaceValidity
from grposweep.search.sampling import describe_shares
from grposweep.search.space import freeze
from grposweep.search.validity import DISK

# of a checkpointed parameter: float32 weight and AdamW's two moments
BYTES_TRAINED = 12
# metrics, logs and tracker files of a trial, generously
LOG_BYTES = 2_000_000
SHOWN_WARNINGS = 5
# what a batch of a fixed size is split among
SPLITS = ("batch.per_device_train_batch_size", "batch.gradient_accumulation_steps")


def print_invalid(console: Console, validity: SpaceValidity) -> None:
    """Print the invalid points by rule, each with its first one and the verified fixes there."""
    rows = [_invalid_points(validity, code, number) for code, number in validity.by_rule().items()]
    console.print(invalid_table(rows, validity.invalid, validity.total))


def print_what_differs(console: Console, validity: SpaceValidity) -> None:
    """Print which keys change nothing, and how many points are one training."""
    lines = validity.describe_lacks()
    if validity.repeated and not validity.is_sampled:
        left = validity.valid - validity.repeated
        lines.append(
            f"{count(validity.valid, 'valid point')} are {count(left, 'different training')}. "
            "Points that are one training are one trial."
        )
    print_lines(console, *lines, *_describe_splits(validity), style="yellow")


def _describe_splits(validity: SpaceValidity) -> Iterator[str]:
    """Yield how many trainings split the batch of another one among other micro-steps. ``bnpo``
    averages within a micro-step, and a mask takes its quantile there, so that a split changes what
    is learned.
    """
    validator = validity.validator
    names = set(validator.space.names)
    if validity.is_sampled or not names.issuperset(SPLITS):
        return
    trainings: set[Hashable] = set()
    batches: set[Hashable] = set()
    for point in validity.valid_points():
        s = validator.fields.setting(point)
        others = without(point, SPLITS)
        batch = freeze({**others, **sizes(s)})
        split = (batch, s.per_device_train_batch_size, s.gradient_accumulation_steps)
        trainings.add(split)
        if s.loss_type == "bnpo" or (s.top_entropy_quantile or 1.0) < 1:
            batches.add(split)
        else:
            batches.add(batch)
    if len(batches) < len(trainings):
        yield (
            f"{len(trainings) - len(batches):,} of {count(len(trainings), 'training')} have the "
            f"batch of another one, split otherwise ({', '.join(SPLITS)}): they differ by rounding "
            "alone"
        )


def space_as_json(validity: SpaceValidity) -> Json:
    """Return the counts of a space, its dead parameters each with the reason, and what decides the
    measure. Of a large space or one with ranges the counts are those of sampled points.
    """
    counts = validity.by_rule()
    valid = validity.valid
    points: int | None = validity.size
    if validity.ranges:
        counts = {**validity.ranges}
        valid = counts.pop("", 0)
        points = None
    parameters = validity.validator.space.parameters
    rewarding = validity.validator.fields.rewarding
    dead = {name: lack for name, lack in validity.lacks.items() if lack.is_dead}
    return {
        "points": points,
        "valid": valid,
        "invalid": counts,
        "dead": {name: f"{lack.why}. {lack.revived}." for name, lack in dead.items()},
        "repeated": validity.repeated,
        "measures": [
            item.name
            for item in parameters
            if is_of_evaluation(item.name) or item.name in rewarding
        ],
    }


def print_invalid_points(console: Console, validity: SpaceValidity) -> None:
    """Print the invalid points by rule, and the values that are never valid."""
    if not validity.invalid:
        return
    if validity.is_sampled:
        console.print(validity.describe())
    print_invalid(console, validity)
    never = []
    for name, labels in validity.valid_by_label().items():
        never += [f"{name}={label}" for label, (valid, _) in labels.items() if not valid]
    if never:
        console.print(f"never valid with the other parameters in this space: {', '.join(never)}")


def _invalid_points(validity: SpaceValidity, code: str, number: int) -> InvalidPoints:
    verdict = validity.first(code)
    problem, fixes = next((p, fixes) for p, fixes in verdict.fixes() if p.code == code)
    point = validity.validator.space.finite_part(verdict.point)
    changes = list(map(str, fixes))
    return InvalidPoints(code, number, point, problem.message, changes or [problem.broken.instead])


def invalid_table(rows: Iterable[InvalidPoints], invalid: int, total: int) -> Table:
    """Return the invalid points by rule as a table."""
    wide = {"ratio": 1, **FOLD}
    columns = (("rule", {"no_wrap": True}), ("why (at one point)", wide), ("valid changes", wide))
    title = f"{invalid} of {total} points invalid: they are not started"
    return build_table(columns, map(_invalid_row, rows), show_lines=True, title=title)


def _invalid_row(row: InvalidPoints) -> Row:
    reason = Text(row.message)
    if row.point:
        reason.append(f"\n({short(row.point)})", style="dim")
    return f"{row.code}\n{count(row.count, 'point')}", reason, "\nor ".join(row.fixes)


def describe_chance(base: Experiment, prompts: int) -> str:
    """Return which differences of two points can be chance, for rewards of 0 and 1; empty without
    evaluations of our own, and if points are means over seeds.
    """
    if not base.schedule.evaluations or not runs_trl(base.trainer) or base.search.seeds:
        return ""
    return describe_shares(prompts)


@dataclass(frozen=True)
class SpaceSummary:
    """The size of a sweep that is about to start."""

    # of the search
    trials: int
    # on fresh seeds, at most
    replicates: int
    # ended under earlier controllers
    recorded: int
    at_once: int
    # empty for a single run
    sampler: str
    # trials share the CPU cores of this machine
    is_local: bool
    # Trials are launched, for the first time: a sweep that continues waits for a full disk.
    is_new: bool = False
    # what search.budget is for; empty without one
    plan: str = ""
    # below 1 trials are paused, with a checkpoint each
    effort: float = 1.0
    # of the first points
    settings: Sequence[Setting] = ()

    @property
    def left(self) -> int:
        """How many trials are still to run."""
        return max(self.trials + self.replicates - self.recorded, 0)


def print_space_summary(
    console: Console,
    summary: SpaceSummary,
    base: Experiment,
    problems: Iterable[Problem],
    prepared: Config,
    folder: Path,
) -> None:
    """Print the number and length of trials, warnings of the rules (each once), ignored rules, and
    disk and CPU use.

    Raises UserError if the disk is too small for a new sweep.
    """
    console.print(_size(summary, base))
    print_length(console, summary.settings)
    fewest = _fewest(base, prepared)
    print_lines(console, _held_out(base, fewest))
    # the points of a sweep over seeds are means
    has_seeds = len({one.seed for one in summary.settings}) > 1
    if summary.trials > 1 and not has_seeds:
        print_lines(console, describe_chance(base, fewest["eval_prompts"]))
    notes: list[str] = []
    for entry in prepared.values():
        notes += entry.get("notes", ())
    print_lines(console, *dict.fromkeys(notes), style="yellow")
    print_lines(console, summary.plan)
    if summary.effort < 1 and not summary.plan:
        evaluations = base.schedule.evaluations or _stated_evaluations(summary.settings)
        if evaluations:
            impossible = describe_least(summary.effort, summary.trials, evaluations)
            print_lines(console, impossible, style="yellow")
    warnings = {(p.code, p.message): p for p in problems if p.severity == "warning"}
    for (code, message), problem in islice(warnings.items(), SHOWN_WARNINGS):
        console.print(f"warning {code} {message}. {problem.broken.instead}", style="yellow")
    if base.rules.ignore:
        console.print(f"rules switched off: {', '.join(base.rules.ignore)}", style="yellow")
    if not summary.left:
        return
    counted = [entry.get("model", {}).get("parameters", 0) for entry in prepared.values()]
    parameters = max([*counted, base.model.shape.parameters])
    needed = estimate_bytes(base, parameters, summary.left, summary.at_once)
    paused = 0
    # others keep checkpoints anyway
    if summary.effort < 1 and base.trainer.keep in ("none", *KEEPS_MODEL):
        paused = checkpoint_bytes(base, parameters) * max(summary.left - summary.at_once, 0)
    report = disk_report(needed, folder, paused)
    if summary.is_new and needed > shutil.disk_usage(folder).free and DISK not in base.rules.ignore:
        raise UserError(f"{report}. To start anyway, set rules.ignore=[{DISK}].")
    console.print(report)
    if summary.sampler and runs_trl(base.trainer) and base.trainer.keep == "best":
        every = replace(base, trainer=replace(base.trainer, keep="all"))
        size = _gib(estimate_bytes(every, parameters, summary.left, summary.at_once))
        console.print(
            "to continue finished trials from any checkpoint, keep all: trainer.keep=all "
            f"(about {size})"
        )
    busy = summary.at_once * base.cluster.processes * base.cluster.threads
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    if summary.is_local and busy > cores:
        console.print(
            f"{busy} busy threads on {cores} cores: trials will slow each other down. Set less of "
            "search.parallel, cluster.processes or cluster.threads.",
            style="yellow",
        )


def _size(summary: SpaceSummary, base: Experiment) -> str:
    what = "one run"
    if summary.plan:
        what = summary.sampler
    elif summary.sampler:
        what = f"{count(summary.trials, 'trial')} ({summary.sampler})"
    if summary.replicates:
        what += f", then up to {summary.replicates} on fresh seeds"
    if summary.recorded:
        what += f", {summary.recorded} of them recorded already"
    what += f", {summary.at_once} at once, {count(base.cluster.processes, 'process')} each"
    if base.generation.vllm_shared_gpus:
        what += ", one vLLM server for all"
    return what


def _fewest(base: Experiment, prepared: Config) -> Config:
    """Return the counts of the model and task with the fewest held-out prompts."""
    counted = [entry for entry in prepared.values() if "eval_prompts" in entry]
    unknown = {"eval_prompts": base.task.eval_prompts}
    return min(counted, key=lambda entry: int(entry["eval_prompts"]), default=unknown)


def _held_out(base: Experiment, fewest: Config) -> str:
    """Return how many prompts are held out if fewer than the task wants, or over a third of the
    data; empty otherwise.
    """
    wanted = base.task.eval_prompts
    held_out = fewest["eval_prompts"]
    trained = fewest.get("train_prompts", 0)
    if (held_out >= wanted and 2 * held_out <= trained) or not trained:
        return ""
    distinct = fewest["distinct_prompts"]
    left = f"{count(trained, 'prompt')} to train on"
    if distinct < trained:
        left = (
            f"{count(trained, 'row')} of {count(distinct, 'other prompt')} to train on. Rows with "
            "the same prompt stay on one side, and a held-out prompt is used once"
        )
    if held_out >= wanted:
        return f"held out: {count(held_out, 'prompt')} (task.eval_prompts); {left}"
    reason = "at most half of the data"
    if base.task.eval_split is not None:
        reason = f"all of {base.task.eval_split}"
    return f"held out: {held_out} of task.eval_prompts={wanted} prompts ({reason}); {left}"


def _stated_evaluations(settings: Sequence[Setting]) -> int:
    """Return how often a command's own recipe evaluates; 0 if it does not say it in steps."""
    for setting in settings:
        every = setting.eval_steps or 0
        if every >= 1:
            return int((total_steps(setting) or 0) / every)
    return 0


def print_length(console: Console, settings: Iterable[Setting]) -> None:
    """Print the optimizer steps, completions and epochs of a trial; ranges where points differ,
    nothing if they are unknown.
    """
    stated = list(map(known_part, settings))
    parts = []
    for unit, digits, count_of in (
        ("optimizer steps", 0, total_steps),
        ("completions", 0, total_completions),
        ("epochs", 2, _epochs),
    ):
        values = [value for value in map(count_of, stated) if value is not None]
        if values:
            texts = dict.fromkeys(f"{value:,.{digits}f}" for value in (min(values), max(values)))
            parts.append(f"{' to '.join(texts)} {unit}")
    if parts:
        console.print(f"each trial: {', '.join(parts)}")


def _epochs(s: Setting) -> float | None:
    total = total_steps(s)
    epoch = steps_per_epoch(s)
    return total / epoch if total is not None and epoch else None


def estimate_bytes(experiment: Experiment, parameters: int, trials: int, slots: int) -> int:
    """Return the peak bytes in the sweep folder: checkpoints of running trials, what
    ``trainer.keep`` leaves, and logs.
    """
    weight_bytes = 4 if read_precision(experiment.model).weights == "float32" else 2
    checkpoint = checkpoint_bytes(experiment, parameters)
    model = parameters * weight_bytes
    at_best = 0
    if experiment.search.at == "best" and experiment.trainer.keep != "none":
        at_best = model
    # the next one is written before the last is deleted
    running = 2 * (checkpoint + at_best) * slots
    kept = {
        "none": 0,
        # a new winner is saved before the old one is deleted
        "best": 2 * model,
        "best_checkpoint": checkpoint + 2 * model,
        "last": (checkpoint + at_best) * trials,
        "all": (checkpoint * max(experiment.schedule.checkpoints, 1) + at_best) * trials,
    }[experiment.trainer.keep]
    return running + kept + LOG_BYTES * trials


def checkpoint_bytes(experiment: Experiment, parameters: int) -> int:
    """Return the bytes of one checkpoint: trained weights and the optimizer's moments."""
    if experiment.model.lora.enabled:
        parameters //= 100
    return parameters * BYTES_TRAINED


def disk_report(needed: int, folder: Path, paused: int = 0) -> str:
    """Return one line: the bytes needed and free, with advice if they do not suffice.

    ``paused``: the bytes of paused trials' checkpoints, at most.
    """
    free = shutil.disk_usage(folder).free
    pausing = f" (up to {_gib(paused)} for checkpoints of paused trials)" if paused else ""
    line = f"disk: about {_gib(needed + paused)} needed{pausing}, {_gib(free)} free"
    if needed > free:
        line += (
            " - not enough: set trainer.keep=none, fewer schedule.checkpoints, or another "
            "outputs=... folder"
        )
    elif needed + paused > free:
        line += (
            " - not enough: set search.effort=1 (no trial is paused), or another outputs=... folder"
        )
    return line


def _gib(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
