"""Read-only view of one trial: its point, state, objective and cost. Curves and configuration are
read on first use.
"""

import re
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from grporecipe.files import (
    Config,
    count_or_none,
    finite_or_none,
    objects,
    parse_yaml,
    read_json,
    read_lines,
    read_tail,
    read_text,
    text_sha256,
)
from grporecipe.model.guards import unmoved
from grporecipe.model.metrics import translate
from grporecipe.terminal import first_of, short
from grposweep.schema import sign_of
from grposweep.search.replication import CHANCE, CONFIRM
from grposweep.search.sampling import Sampling, read_sampling, read_sampling_of_start
from grposweep.storage import paths
from grposweep.storage.folders import METRICS_TAIL_BYTES, TrialFolder
from grposweep.storage.records import (
    Action,
    AttemptEvent,
    Heartbeat,
    TrialRecord,
    as_mapping,
    read_provenance,
)
from grposweep.storage.results import (
    FailureReport,
    TrialResult,
    TrialStatus,
    failure_label,
    read_runs,
    run_cost,
    same_words,
)

# a running trial whose heartbeat stands still for so long is not charged until it moves again
SILENT_SECONDS = 600.0

EVAL_PROMPTS = r"(?m)^task:\n(?:  .*\n)*?  eval_prompts: (\d+)$"
# trials that failed alike
NAMED = 8


def formatted(form: str, number: float | None) -> str:
    """Return a number in a form such as ``± {:.4f}``; empty if there is none."""
    return "" if number is None else form.format(number)


# training lines that are held in memory, at least
MOST_STEPS = 20_000


class State(StrEnum):
    """State of a trial. ``stopped`` resumes with the sweep's command, ``paused`` when early
    stopping promotes it.
    """

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    FINISHED = "finished"
    PRUNED = "pruned"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Return whether the trial has ended finally."""
        return self in (State.FINISHED, State.PRUNED, State.FAILED)

    @property
    def label(self) -> str:
        """Return the name for users. The value is the word in files and JSON, where ``pruned``
        stays.
        """
        return "stopped early" if self is State.PRUNED else self.value


# evaluations, from which a peak is told
LEAST_CURVE = 4


class CurvePoint(NamedTuple):
    """One measurement with its standard error, after ``step`` optimizer steps and ``completions``
    generated.

    Where completions are not known, they count as steps.
    """

    step: int
    completions: int
    value: float
    error: float | None
    # clock time in seconds
    time: float


@dataclass(frozen=True)
class TrialView:
    """One trial at one moment. ``point`` maps parameters to labels; ``attributes`` are the study's
    attributes.
    """

    path: Path
    number: int
    # its id; the head of it where trial.json is missing
    experiment: str
    point: Config
    attributes: Config
    state: State
    # empty before it has ended
    result: TrialResult
    # optimizer steps done
    step: int
    # planned optimizer steps; 0: unknown
    total: int
    # run time of all attempts
    seconds: float
    # run time times the devices held; a rank without a GPU counts as one device
    gpu_seconds: float
    # seconds since the heartbeat of a running trial moved
    silent: float = 0.0
    # read from summary.jsonl, which has rows of undamaged trials only
    is_recalled: bool = field(default=False, compare=False)

    @property
    def name(self) -> str:
        """Its folder's name."""
        return self.path.name

    @property
    def title(self) -> str:
        """Its number and point: ``trial 3: lr=0.001``."""
        return f"trial {self.number}: {short(self.point)}"

    @property
    def role(self) -> str:
        """``search``, or ``confirm`` for a replicate on another seed."""
        return str(self.attributes.get("role") or "search")

    @cached_property
    def is_replicate(self) -> bool:
        """Whether it repeats another trial's point on a fresh seed."""
        return self.role == CONFIRM

    @property
    def seed(self) -> object:
        """The seed that tells it from its point's other trials; None for the sweep's own."""
        return self.attributes.get("seed", self.point.get("seed"))

    @cached_property
    def files(self) -> str:
        """A hash of the contents of the user's files that it read: rewards and data. Empty without
        such files.
        """
        if not (self.path.parent.parent / paths.INPUTS).exists():
            return ""
        files = as_mapping(read_provenance(self.path).get("files"))
        return text_sha256(str(sorted(files.items())))[:8] if files else ""

    @property
    def written(self) -> list[str]:
        """The paths outside of the sweep that its command wrote."""
        return self._text(paths.WRITTEN).splitlines()

    @cached_property
    def objective(self) -> float | None:
        """The objective; None unless the trial finished with a number."""
        return self.result.value

    @property
    def error(self) -> float | None:
        """The objective's standard error over the evaluation prompts."""
        if self.objective is None:
            return None
        error = finite_or_none(self.result.objective_se)
        return self.sampling.error if error == 0 else error

    @property
    def half(self) -> float | None:
        """Half of the objective's 95 % interval over the evaluation prompts; None if unknown."""
        return None if self.objective is None else self.sampling.margin(CHANCE)

    @cached_property
    def sampling(self) -> Sampling:
        """The sampling of the objective, or of the value that was reached."""
        return read_sampling(self.path, self.result, self._samples)

    @cached_property
    def _samples(self) -> int | None:
        """The number of held-out prompts asked for. Searched as text, because a table of thousands
        of trials may ask each.
        """
        match = re.search(EVAL_PROMPTS, self._text(paths.CONFIG))
        return int(match[1]) if match else None

    @property
    def reached(self) -> float | None:
        """The objective when the trial was paused or stopped early; None in any other state."""
        if self.state not in (State.PRUNED, State.PAUSED):
            return None
        return finite_or_none(self.result.objective)

    @property
    def value(self) -> float | None:
        """The objective, or what an unfinished trial has reached of it."""
        return self.reached if self.objective is None else self.objective

    @property
    def at_best(self) -> str:
        """At which step the objective was taken under ``search.at=best``, or that the last one is
        past the best; else empty.
        """
        step = self.result.best_step
        if self.objective is None:
            return ""
        if step is None:
            return self.past_peak
        noise = formatted("less {:.4f}, the noise in a maximum", self.result.optimism)
        noise = noise or "not corrected: its noise is not known"
        return f"best evaluation, at step {step:,} ({noise})"

    @property
    def past_peak(self) -> str:
        """That the objective fell after its best evaluation, by more than the errors of both last
        ones; empty otherwise.
        """
        search = as_mapping(self.config.get("search"))
        sign = sign_of(search.get("direction", ""))
        curve = self.curve(str(search.get("metric") or "eval_reward"))
        points = [point for point in curve if point.step > 0]
        if len(points) < LEAST_CURVE:
            return ""
        best = max(points, key=lambda point: sign * point.value)
        errors = [point.error for point in points]
        if None in errors:
            return ""
        for point in points[-2:]:
            if sign * (best.value - point.value) <= (point.error or 0.0):
                return ""
        last = points[-1]
        return (
            f"past its peak: {best.value:.4f} at step {best.step:,}, {last.value:.4f} at "
            f"step {last.step:,}. search.at=best with another name keeps the best step's "
            "model; less the noise in a maximum, it is a fair value"
        )

    @property
    def start(self) -> float | None:
        """The metric before training."""
        return finite_or_none(self.result.start)

    @cached_property
    def start_sampling(self) -> Sampling:
        """The sampling of ``start``."""
        return read_sampling_of_start(self.path, self.result)

    @property
    def gpu_hours(self) -> float:
        """Cost in GPU hours."""
        return self.gpu_seconds / 3600

    @property
    def failure(self) -> FailureReport:
        """Why the trial failed, was retried or collapsed; an empty report in any other case."""
        return self.result.failure or FailureReport()

    @property
    def failure_class(self) -> str:
        """The failure class (`storage.results.Failure`); empty unless the trial failed."""
        return self.failure.name or "unclassified" if self.state is State.FAILED else ""

    @property
    def reason(self) -> str:
        """Why it failed, is paused or was stopped early; empty in any other state."""
        if self.state is State.PAUSED:
            return TrialFolder(self.path).control.reason
        if self.state not in (State.FAILED, State.PRUNED):
            return ""
        return self.failure.message or self.result.reason or "no reason was written down"

    @property
    def failure_words(self) -> str:
        """By which failures are alike: the class and the reason without numbers."""
        return same_words(self.failure_class, self.reason)

    @cached_property
    def attempts(self) -> Sequence[AttemptEvent]:
        """The events in attempts.jsonl, in order."""
        return TrialFolder(self.path).attempts()

    @property
    def is_open(self) -> bool:
        """Whether its last attempt has no noted end."""
        return TrialFolder(self.path).open_attempt() is not None

    @property
    def ended(self) -> float | None:
        """When its last run ended, in seconds since the epoch; None while it runs."""
        last = read_runs(self.path)[-1:]
        return last[0].end if last else None

    @cached_property
    def lines(self) -> Sequence[Config]:
        """The lines of metrics.jsonl. Of very many training steps they are every second, fourth,
        ... and the last.
        """
        others: list[tuple[int, Config]] = []
        steps: list[tuple[int, Config]] = []
        every, seen, last = 1, 0, None
        for index, line in enumerate(read_lines(self.path / paths.METRICS, step=int)):
            if line.get("kind") != "train":
                others.append((index, line))
                continue
            last = (index, line)
            if seen % every == 0:
                steps.append(last)
            seen += 1
            if len(steps) == 2 * MOST_STEPS:
                steps = steps[::2]
                every *= 2
        if last is not None and steps[-1] is not last:
            steps.append(last)
        return [line for _, line in sorted(others + steps, key=itemgetter(0))]

    def curve(self, metric: str, most: int | None = None) -> list[CurvePoint]:
        """Return a metric over the trial's steps, without values that are not finite.

        Of more than ``most`` points these are evenly spread, with the first and the last.
        """
        found: Iterable[Config] = self.lines
        # evaluations are few among the lines of the steps
        if metric.startswith("eval_"):
            found = read_lines(self.path / paths.METRICS, step=int, **{metric: int | float})
        lines = [
            line
            for line in found
            if finite_or_none(line.get(metric)) is not None and line["step"] >= 0
        ]
        if most and len(lines) > most:
            lines = [lines[round(index * (len(lines) - 1) / (most - 1))] for index in range(most)]
        return [
            CurvePoint(
                line["step"],
                count_or_none(line.get("completions")) or line["step"],
                float(line[metric]),
                finite_or_none(line.get(f"{metric}_se")),
                finite_or_none(line.get("time")) or 0.0,
            )
            for line in lines
        ]

    @property
    def last_reward(self) -> float | None:
        """The latest training reward; reads only the end of metrics.jsonl."""
        tail = read_tail(self.path / paths.METRICS, METRICS_TAIL_BYTES).split(b"\n")
        for line in objects(reversed(tail)):
            reward = finite_or_none(line.get("reward"))
            if reward is not None:
                return reward
        return None

    @cached_property
    def unmoved(self) -> str:
        """Why no step has changed a weight so far; empty if one has. Reads metrics.jsonl until the
        first step that has.
        """
        rows = (
            {**translate(line), "step": line["step"]}
            for line in read_lines(self.path / paths.METRICS, step=int)
            if line.get("kind") == "train"
        )
        return unmoved(rows, self.total)

    @cached_property
    def trained(self) -> Config:
        """What the trainer of the user's command got; empty for other trainers, and before it has
        begun.
        """
        return read_json(self.path / paths.TRAINED_WITH) or {}

    @cached_property
    def config(self) -> Config:
        """The recorded configuration, with the values that the trainer got where it said so."""
        config = self.recorded
        if not config or not self.trained:
            return config
        # the whole schema
        from grposweep.report._trained_with import with_trained

        return with_trained(config, self.trained, self.path)

    @cached_property
    def recorded(self) -> Config:
        """The resolved configuration that grposweep gave; empty if it cannot be read."""
        try:
            return as_mapping(parse_yaml(self._text(paths.CONFIG)))
        except ValueError:
            return {}

    @cached_property
    def plan(self) -> Config:
        """The content of plan.json: batch sizes, steps, evaluations."""
        return read_json(self.path / paths.PLAN) or {}

    @property
    def command(self) -> str:
        """The shell command that repeats the trial as a single run; empty without command.sh."""
        # a value's own lines may begin with # too
        return re.sub(r"\A(?:#.*\n)+", "", self._text(paths.COMMAND, errors="replace")).strip()

    @property
    def rerun(self) -> str:
        """The command that trains it again, as a sweep of its own."""
        return f"grposweep rerun {shlex.quote(str(self.path))}"

    def _text(self, name: str, errors: str = "strict") -> str:
        """Return the text of one of its files; empty if that cannot be read."""
        try:
            return read_text(self.path / name, errors)
        except (OSError, ValueError):
            return ""


def group_failures(trials: Iterable[TrialView]) -> list[str]:
    """Return one line for trials that failed alike: their numbers, the failure class and the reason
    of the first.
    """
    lines = []
    for alike in grouped(trials, lambda trial: trial.failure_words).values():
        reason = alike[0].reason
        label = failure_label(alike[0].failure_class)
        if not reason.startswith(label):
            reason = f"{label}: {reason}"
        lines.append(f"{name_trials(alike)}: {reason}")
    return lines


def grouped(
    trials: Iterable[TrialView], key: Callable[[TrialView], str]
) -> dict[str, list[TrialView]]:
    """Return trials by a key, in the order of the first of each."""
    groups: dict[str, list[TrialView]] = {}
    for trial in trials:
        groups.setdefault(key(trial), []).append(trial)
    return groups


def name_trials(trials: Sequence[TrialView]) -> str:
    """Return trials by their numbers: ``trials 3, 5, 8``; of many only the first ones."""
    numbers = [trial.number for trial in trials]
    return f"trial{'s' * (len(numbers) > 1)} {first_of(numbers, NAMED)}"


def read_trial(folder: TrialFolder, controller_lives: bool) -> TrialView:
    """Read one trial. ``controller_lives``: attempts on this machine may still be running."""
    record = folder.record or TrialRecord({}, {})
    result = folder.result
    state = _state(folder, result, controller_lives)
    beat = Heartbeat() if state.is_over else folder.heartbeat()
    silent = 0.0
    if state is State.RUNNING:
        silent = _silence(folder.path)
    seconds, gpu_seconds = run_cost(folder.path, state is State.RUNNING and silent < SILENT_SECONDS)
    step = result.step
    if beat.step is not None:
        step = beat.step
    total = result.total_steps
    if beat.total is not None:
        total = beat.total
    return TrialView(
        path=folder.path,
        number=folder.number,
        experiment=str(record.attributes.get("experiment", folder.head)),
        point=record.point,
        attributes=record.attributes,
        state=state,
        result=result,
        step=step or 0,
        total=total or 0,
        seconds=finite_or_none(seconds) or 0.0,
        gpu_seconds=finite_or_none(gpu_seconds) or 0.0,
        silent=silent,
    )


def _silence(folder: Path) -> float:
    """Return the seconds since the heartbeat moved, by this machine's clock; 0 before the first
    beat.
    """
    try:
        return max(time.time() - (folder / paths.HEARTBEAT).stat().st_mtime, 0.0)
    except FileNotFoundError:
        return 0.0


def _state(folder: TrialFolder, result: TrialResult, controller_lives: bool) -> State:
    status = result.status
    if status in (TrialStatus.FINISHED, TrialStatus.PRUNED, TrialStatus.FAILED):
        return State(status.value)
    begun = folder.open_attempt()
    reported = result.attempt
    if begun is not None and (reported is None or reported < begun.number):
        if (begun.job_id or "local").startswith("local") and not controller_lives:
            # its attempt ended with the controller
            return State.STOPPED
        for run in read_runs(folder.path)[-1:]:
            if run.end is None and run.attempt >= begun.number:
                return State.RUNNING
        return State.QUEUED
    if status is not TrialStatus.STOPPED:
        return State.QUEUED
    return State.PAUSED if folder.control.action == Action.PAUSE else State.STOPPED


def axis_of(points: Sequence[CurvePoint]) -> str:
    """Return what a curve is drawn over: completions, or steps where completions are not known."""
    return "steps" if all(point.completions == point.step for point in points) else "completions"
