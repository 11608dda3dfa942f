"""Start a sweep: validate its space, prepare models and data, and build its controller."""

import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

from optuna.trial import TrialState
from rich.console import Console
from rich.progress import Progress

from grporecipe.errors import ExitCode, UserError
from grporecipe.files import VERSION, read_json, write_json, write_text
from grporecipe.frameworks.trl.keys import installed
from grporecipe.memory.estimate import GIB, estimate
from grporecipe.model.rates import rates_for
from grporecipe.model.setting import TRL
from grporecipe.rules.check import errors
from grporecipe.rules.fixes import render_problem
from grporecipe.terminal import redraws
from grposweep.config.compose import escape, load_experiment, override_name, render_experiment
from grposweep.config.identity import experiment_id, prepared_key
from grposweep.config.points import Points
from grposweep.config.search_budget import Budget
from grposweep.config.to_setting import read_gpu, read_setting
from grposweep.external.command import stops_early
from grposweep.launchers import launcher_class
from grposweep.launchers.base import Interrupted, Launcher
from grposweep.registries import TASKS, follows_effort, is_external, is_opaque, runs_trl
from grposweep.report.space_summary import print_invalid
from grposweep.schema import AUTO, GROUPS, Cluster, Experiment, Schedule, Task
from grposweep.search.early_stopping import build_policy, choose_effort
from grposweep.search.early_stopping.rank import choose_evaluations
from grposweep.search.grid import validate_one_factor, validate_points
from grposweep.search.replication import build_replication
from grposweep.search.sampler import check_prior, choose_sampler, continuous, lists_points, prior_points
from grposweep.search.sampling import Sampling, read_sampling
from grposweep.search.space import Direction, Point, Space, freeze
from grposweep.search.study import RECORDED_INVALID, SweepStudy
from grposweep.search.validity import SpaceValidity, ValidationResult, Validator
from grposweep.storage import paths
from grposweep.storage.folders import SweepFolder, TrialFolder
from grposweep.storage.lease import Lease
from grposweep.storage.records import as_mapping
from grposweep.sweep.budget import GpuHourBudget
from grposweep.sweep.controller import Controller
from grposweep.sweep.early_stopping import EarlyStoppingMonitor
from grposweep.sweep.oom import known_oom
from grposweep.sweep.outcomes import OutcomeRecorder
from grposweep.sweep.resume import changed_keys, listed, open_study
from grposweep.sweep.retry import reopen_failed
from grposweep.sweep.trial_queue import DEFAULT_TRIALS, Outlook, TrialQueue, read_enqueued
from grposweep.sweep.warm_start import open_warm_start, words_of_warm_start
from grposweep.train.hub import absence
from grposweep.train.rewards import NEEDS_CHAT, TRIED, early_problems, task_code_problems
from grposweep.train.tasks import LARGEST, split_rows
from grposweep.train.tasks.arithmetic import READ_BY_TINY
from grposweep.train.tasks.conversations import in_conversation

logger = logging.getLogger(__name__)
ESTIMATED_POINTS = 100  # valid points whose memory is estimated


@dataclass(frozen=True)
class ValidatedSpace:
    """A validated space, known before the sweep's folder exists and refined by preparation."""

    validator: Validator
    sampler: str  # resolved: grid, one_factor, tpe or random
    validity: SpaceValidity
    enqueued: Sequence[Point]  # to be tried first

    @property
    def base(self) -> Experiment:
        """Return the experiment with every parameter at its configured value."""
        return self.validator.points.base

    @property
    def space(self) -> Space:
        """Return the search space."""
        return self.validator.space

    def learn(self, prepared: dict[str, Any], console: Console) -> "ValidatedSpace":
        """Return the space judged again with the numbers that preparation counted."""
        self.validator.learn(prepared)
        return replace(self, validity=_evaluate(console, self.validator, self.sampler))

    def preparable(self) -> dict[str, Experiment]:
        """Return one experiment per model and task among the valid points that really train."""
        experiments = self.distinct("model", "task", "trainer")
        return {prepared_key(item): item for item in experiments if runs_trl(item.trainer.kind)}

    def distinct(self, *sections: str) -> list[Experiment]:
        """Return one experiment for each combination of the parameters in these sections, among the valid points."""
        return self.validity.distinct(*sections)


def validate_space(console: Console, space: Space, points: Points) -> ValidatedSpace:
    """Validate the points of a space that `check_space` has seen, before its folder exists.

    Raises UserError for an impossible enqueued point, for a sampler that does not fit the space, and for a space without a
    valid point.
    """
    sampler = _sampler(points.base, space)
    validator = Validator(space, points)
    validity = _evaluate(console, validator, sampler)
    return ValidatedSpace(validator, sampler, validity, read_enqueued(points.base.search.enqueue, space, validator))


def _sampler(base: Experiment, space: Space) -> str:
    """Return the sampler's name, with ``auto`` resolved.

    Raises UserError if it does not fit the space, or if ``force`` does not fit it.
    """
    if base.search.seeds and any(parameter.name == "seed" for parameter in space.parameters):
        raise UserError(
            "seed is a parameter and search.seeds is set: both would set the seed. "
            "Take seed out of the space, or set search.seeds=0."
        )
    sampler = choose_sampler(base.search.sampler, space)
    check_prior(base.search.prior, sampler, space)
    if base.force and not lists_points(sampler):
        raise UserError(
            f"force=true with search={sampler}: only a list of points can be run once more. "
            "Set a larger search.trials, or another name=..."
        )
    if sampler == "one_factor" and not space.parameters:
        raise UserError(
            "search=one_factor without parameters compares nothing. Give each parameter its alternatives: lr=1e-4,1e-3, or for a "
            "single one lr=choice(1e-3)."
        )
    if sampler == "one_factor" and not base.search.seeds:
        raise UserError(
            "search.seeds=0 with search=one_factor: intervals of effects need several seeds. Set search.seeds=5."
        )
    if sampler == "one_factor" and base.search.effort is not None and base.search.effort < 1:
        raise UserError(
            f"search.effort={base.search.effort} with search=one_factor: every point is compared, so every trial has to finish. "
            "Leave search.effort out, or set search=tpe."
        )
    if base.search.budget is not None and (
        lists_points(sampler) or (is_opaque(base.trainer.kind) and not stops_early(base))
    ):
        raise UserError(
            f"search.budget={base.search.budget} with search={sampler} and trainer={base.trainer.kind}: every trial finishes, so "
            "no number of trials follows from it. Set search=tpe, or search.budget_gpu_hours as a limit."
        )
    if lists_points(sampler) and not space.is_finite:
        parameters = ", ".join(continuous(space))
        raise UserError(
            f"search={sampler}: {parameters} has infinitely many values. List some (lr=1e-4,3e-4), or set search=tpe."
        )
    return sampler


def _evaluate(console: Console, validator: Validator, sampler: str) -> SpaceValidity:
    """Judge the whole space.

    Raises UserError if no point is valid: a single run's problems in words, a sweep's as a table.
    """
    validity: SpaceValidity = validate_one_factor(validator) if sampler == "one_factor" else validate_points(validator)
    only_baseline = sampler == "one_factor" and validity.valid == 1 < validity.total
    if validity.valid and not only_baseline:
        return validity
    if not validator.space.parameters:
        verdict = validator.validate({})
        raise UserError("\n".join(f"{p.code} {render_problem(verdict.setting, p)}" for p in errors(verdict.problems)))
    print_invalid(console, validity)
    if only_baseline:
        raise UserError(
            "None of the changes is valid, so there is nothing to compare with the base configuration. Change a parameter as the "
            "table above says."
        )
    raise UserError(
        f"None of the {validity.total} points of this space is valid, so there is nothing to search. "
        f"Change a parameter or the base configuration as the table above says."
    )


def choose_evaluations_of(path: Path, judged: ValidatedSpace, overrides: Iterable[str]) -> list[str]:
    """Return the override of ``schedule.evaluations`` that ``search.effort`` needs; empty where the usual number will do.

    A sweep that exists keeps the number that it began with.
    """
    base, usual = judged.base, Schedule().evaluations
    is_set = any(override_name(override) == "schedule.evaluations" for override in overrides)
    if is_set or base.schedule.evaluations != usual or is_external(base.trainer.kind):
        return []
    if path.exists():
        recorded = as_mapping(as_mapping((SweepFolder(path).settings() or {}).get("baseline")).get("schedule"))
        chosen = recorded.get("evaluations", usual)
    elif base.search.budget is not None:
        chosen = EVALUATIONS_OF_BUDGET
    elif base.search.effort is not None and base.search.effort < 1 and follows_effort(base.search.stopping):
        trials = base.search.trials or (judged.validity.valid if lists_points(judged.sampler) else DEFAULT_TRIALS)
        chosen = choose_evaluations(base.search.effort, trials, usual)
    else:
        return []
    return [f"schedule.evaluations={chosen}"] if isinstance(chosen, int) and chosen != usual else []


EVALUATIONS_OF_BUDGET = 10  # the first rung is then after a tenth of the training, not after a quarter
KEPT_INVALID = 10_000


def task_problems(experiments: Iterable[Experiment]) -> Iterator[str]:
    """Say what is wrong with data files and rewards: rows are read, code is parsed and not run, and torch is not imported.

    Only for TRL's own trainer in this environment. Preparation checks the same again, and more.
    """
    models, tasks = set[tuple[str, str | None]](), list[Task]()
    for experiment in filter(_runs_trl_here, experiments):
        model, task = (experiment.model.path, experiment.model.revision), experiment.task
        # of a sweep over other keys of the model or the trainer, each model is looked up and each task tried once
        if model not in models:
            yield from _model_problems(experiment)
        code = list(task_code_problems(experiment))
        yield from _data_problems(experiment, is_tried=not code and task not in tasks)
        yield from code
        models.add(model)
        tasks.append(task)


def _prepares_here(experiment: Experiment) -> bool:
    """Return whether a process of this machine prepares models and data."""
    cluster = experiment.cluster
    return not launcher_class(cluster.kind).is_dry and cluster.prepare == "here"


def _model_problems(experiment: Experiment) -> Iterator[str]:
    """Say if a path that can be no name on the hub is no folder, or if the hub does not have the model."""
    path = experiment.model.path
    if path.startswith((".", "/", "~")) and not Path(path).is_dir():
        yield (
            f"model.path={path}: there is no such folder, and a name on the hub begins with a letter. Set the folder with the "
            "model's config.json, or a name such as Qwen/Qwen2.5-0.5B-Instruct."
        )
    elif "/" in path and not Path(path).is_dir() and _prepares_here(experiment):  # the tiny models' names have no /
        yield from absence(experiment.model)


def _runs_trl_here(experiment: Experiment) -> bool:
    """Return whether the TRL of this environment trains."""
    cluster = experiment.cluster
    return runs_trl(experiment.trainer.kind) and not launcher_class(cluster.kind).has_own_environment(cluster)


def newer_trl(experiments: Iterable[Experiment]) -> str:
    """Return a sentence if the TRL that trains is newer than the newest that was tested; empty otherwise."""
    version = installed()
    if version is None or version <= TRL or not any(map(_runs_trl_here, experiments)):
        return ""
    newest = ".".join(map(str, TRL))
    return (
        f"TRL {'.'.join(map(str, version))} is installed, and the newest that grposweep was tested with is {newest}: "
        f"if a trial fails in TRL, run pip install trl=={newest}."
    )


def _data_problems(experiment: Experiment, is_tried: bool) -> Iterator[str]:
    """Yield the error of reading a task's files, and of its rewards on the first rows if they are to be tried.

    A dataset of the hub is left to preparation.
    """
    task = experiment.task
    files = [Path(name) for name in (task.path, task.eval_split) if name and Path(name).exists()]
    is_hub = TASKS[task.kind].path == "optional" and not files
    if is_hub or any(file.stat().st_size > LARGEST for file in files):
        return
    try:
        train, held_out, _ = split_rows(task)
    except UserError as error:
        yield from error.problems or [str(error)]
        return
    if (task.tools or task.environment_factory) and task.chat is False and isinstance(train[0]["prompt"], str):
        yield f"{'task.tools' if task.tools else 'task.environment_factory'} {NEEDS_CHAT}"
    known = READ_BY_TINY.get(experiment.model.path)
    prompts = (str(row["prompt"]) for row in (*train, *held_out))
    other = None if known is None else next((prompt for prompt in prompts if not set(prompt) <= set(known)), None)
    if other is not None:
        yield (
            f"model.path={experiment.model.path} reads {known} only, and task.kind={task.kind} has the prompt {other[:60]!r}. "
            "Set model=tiny_text for a first try with any text (it is untrained), or a model of the hub or a folder."
        )
    elif is_tried and task.environment_factory is None and _prepares_here(experiment):
        templates = dict.fromkeys([task.chat] if task.chat is not None else [True, False])
        columns = dict.fromkeys(chain.from_iterable(train))
        first = [{"prompt_id": n, **dict.fromkeys(columns), **row} for n, row in enumerate(train[:TRIED])]
        forms = [[{**row, "prompt": in_conversation(task, row["prompt"], has)} for row in first] for has in templates]
        yield from early_problems(task.rewards, forms)


def prepare_sweep(
    folder: SweepFolder,
    experiments: Mapping[str, Experiment],
    launcher: Launcher,
    console: Console,
    interrupts: Interrupted,
) -> bool:
    """Prepare every model and task that is not prepared yet. Return False if the user interrupted it.

    Raises UserError with what preparation found wrong.
    """
    missing = {key: experiment for key, experiment in experiments.items() if key not in folder.prepared()}
    if not missing:
        return True
    (folder.path / paths.PREPARE_FOLDER).mkdir(exist_ok=True)
    for key, experiment in missing.items():
        write_text(folder.path / paths.PREPARE_FOLDER / f"{key}.yaml", render_experiment(experiment))
    write_json(folder.path / paths.PREPARE, {"entries": {key: f"{paths.PREPARE_FOLDER}/{key}.yaml" for key in missing}})
    log = folder.path / paths.PREPARE_FOLDER / "log"
    log.unlink(missing_ok=True)
    (folder.path / paths.PREPARE_ERROR).unlink(missing_ok=True)
    (folder.path / paths.PREPARE_PROGRESS).unlink(missing_ok=True)
    preparer = launcher.preparation(next(iter(missing.values())).cluster)
    preparer.start(folder.path, log)
    console.print(f"preparing model and data ({preparer.where})")
    with Progress(console=console, transient=True, disable=not redraws(console)) as bar:
        task = bar.add_task("", total=None)
        while (code := preparer.poll()) is None:
            if interrupts.count:
                preparer.end()
                console.print("interrupted while preparing; the same command begins it again")
                return False
            now = {"what": "", "done": 0, "total": None, **(read_json(folder.path / paths.PREPARE_PROGRESS) or {})}
            bar.update(task, description=now["what"], completed=now["done"], total=now["total"])
    if code:
        raise UserError(_message(folder, code))
    return True


def _message(folder: SweepFolder, code: int) -> str:
    """Return preparation's error, or the path of its log."""
    error = folder.path / paths.PREPARE_ERROR
    if code == ExitCode.BAD_INPUT and error.exists():
        return error.read_text(encoding="utf-8").strip()
    log = folder.path / paths.PREPARE_FOLDER / "log"
    tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-3:] if log.exists() else []
    return f"preparing model and data failed (exit code {code}): {' / '.join(tail)}. Its whole output is in {log}."


def build_controller(
    console: Console,
    folder: SweepFolder,
    judged: ValidatedSpace,
    launcher: Launcher,
    lease: Lease,
    overrides: list[str],
    provenance: Mapping[str, Any],
) -> Controller:
    """Build the controller of a sweep: build its study, add earlier results, and print what was found."""
    base, validator = judged.base, judged.validator
    for line in reopen_failed(folder, validator, provenance) if not launcher.is_dry else []:
        console.print(line, soft_wrap=True)
        logger.info("%s", line)
    direction = cast(Direction, base.search.direction)  # `check_space` has seen it
    study = open_study(folder, judged.space, direction, base.search.metric)

    @cache
    def sampling_of(number: int, experiment: str) -> Sampling:
        trial = folder.trial(number, experiment)
        return read_sampling(trial.path, trial.result, base.task.eval_prompts)

    study.sampling_of = sampling_of
    check_recorded(folder, study, validator)
    _record_invalid(console, folder, study, judged)
    warm = open_warm_start(folder, base, validator)
    study.learn([(seen.point, seen.value) for seen in warm.observations])
    study.replication = build_replication(base.search.sampler, base.seed, base.search.seeds, base.search.leaders)
    if warm.first:
        console.print(words_of_warm_start(warm))
    valid = list(judged.validity.valid_points())
    finite = tuple(study.space.finite_part(point) for point in valid)
    first = [*judged.enqueued, *warm.first]
    if base.search.prior != "none":
        first += prior_points(
            study.space, finite, lambda p: rates_for(validator.fields.setting(p)).usual, base.search.seed
        )
    outcomes = OutcomeRecorder(folder, study, validator, base.search, base.trainer.keep)
    outcomes.keep_best()  # an earlier controller may have died before it did this
    spending = GpuHourBudget.of(folder, study, base.search, validator)
    effort = choose_effort(base.search.effort, judged.sampler)
    if is_opaque(base.trainer.kind) and not stops_early(base):
        effort = 1.0  # no trial is paused
    budget = base.search.budget
    allowance = None if budget is None else partial(Budget.parse(budget).completions, hours=spending.hours)
    stopping = build_policy(base.search.stopping, effort, allowance)
    monitor = EarlyStoppingMonitor(folder, study, base.search, stopping)
    outlook = Outlook(partial(known_oom, folder), monitor.budgeted, monitor.foreseen, spending.seconds)
    queue = TrialQueue(study, validator, base.search, judged.sampler, valid, first, base.force, outlook, launcher.slots)
    return Controller(folder, queue, outcomes, launcher, lease, overrides, dict(provenance), monitor, spending)


def check_recorded(folder: SweepFolder, study: SweepStudy, validator: Validator) -> None:
    """Raise UserError if a trial was recorded with other values than its point has now.

    A sweep's identity holds the names of a searched group's options, and not the keys that an option stands for. So
    ``model=qwen3_0_6b`` may have another precision after an edit of its file, or in another release. Every unfinished trial is
    checked, and the last trained one of each option. A trial on another number of processes is the user's choice.
    """
    unfinished = [trial for trial in study.started if not trial.state.is_finished()]
    trained = [trial for trial in study.started if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)]
    last = {item: trial for trial in trained for item in trial.params.items() if item[0] in GROUPS}
    for trial in [*unfinished, *last.values()]:
        verdict = validator.validate(dict(trial.params), trial.user_attrs.get("seed"))
        recorded = str(trial.user_attrs["experiment"])
        there = folder.trial(trial.number, recorded)
        if recorded not in _identities(verdict, there):
            point = " ".join(f"{name}={label}" for name, label in trial.params.items())
            config = there.path / paths.CONFIG
            keys = changed_keys(escape(asdict(load_experiment(config))), verdict.experiment) if config.exists() else []
            raise UserError(
                f"trial {trial.number} ({point}) was recorded with other values than the same options have now{listed(keys)}, "
                "and results of both must not be mixed. Restore the options' files in conf/, or set another name=..."
            )


def _identities(verdict: ValidationResult, trial: TrialFolder) -> Iterator[str]:
    """Yield the ids that a point may be recorded under: as it is now, without preparation, on the recorded processes."""
    experiment = verdict.experiment
    yield experiment_id(experiment, verdict.setting)
    yield experiment_id(experiment, read_setting(experiment))  # a dry run records trials without preparation
    if (trial.path / paths.CONFIG).exists():
        cluster = replace(experiment.cluster, processes=load_experiment(trial.path / paths.CONFIG).cluster.processes)
        moved = replace(experiment, cluster=cluster)
        yield experiment_id(moved, read_setting(moved))


def _record_invalid(console: Console, folder: SweepFolder, study: SweepStudy, judged: ValidatedSpace) -> None:
    """Print the invalid points by rule, and write them to invalid.jsonl with problems and fixes; a grid's also to the study.

    A last line of the file counts those beyond the first ten thousand.
    """
    validity = judged.validity
    if not validity.invalid:
        if judged.space.points:  # those of a former list are corrected
            (folder.path / paths.INVALID).unlink(missing_ok=True)
        return
    print_invalid(console, validity)
    by_label = validity.valid_by_label().items()
    if never := [f"{name}={label}" for name, labels in by_label for label, (valid, _) in labels.items() if not valid]:
        console.print(f"never valid with the other parameters in this space: {', '.join(never)}")
    verdicts = map(validity.validator.validate, islice(validity.invalid_points(), KEPT_INVALID))
    lines: list[dict[str, Any]] = [{"point": verdict.point, "problems": verdict.reasons()} for verdict in verdicts]
    lines += [{"more": validity.invalid - KEPT_INVALID}] if validity.invalid > KEPT_INVALID else []
    write_text(folder.path / paths.INVALID, "".join(json.dumps({"v": VERSION, **line}) + "\n" for line in lines))
    if lists_points(judged.sampler):
        known = {freeze(trial.params) for trial in study.trials if trial.user_attrs.get("invalid")}
        for point in islice(validity.invalid_points(), RECORDED_INVALID):
            if freeze(point) in known:
                continue
            problems = errors(validity.validator.validate(point).problems)
            study.add_invalid(point, [f"{problem.code} {problem.message}" for problem in problems])


def advise_mps(cluster: Cluster) -> str:
    """Return advice to start NVIDIA's Multi-Process Service for trials that share a GPU; empty if it runs or is not installed.

    Without it processes take turns on the GPU. Eight trials of 135 million weights on an H100 took 1.52 seconds a step
    without it, 0.89 with it (benchmarks/gpu/RESULTS.md).
    """
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    if cluster.trials_per_gpu == 1 or (pipe / "control").exists() or shutil.which("nvidia-cuda-mps-control") is None:
        return ""
    return (
        f"cluster.trials_per_gpu={cluster.trials_per_gpu}: the trials take turns on a GPU, because NVIDIA's MPS does not run. "
        "Start it with nvidia-cuda-mps-control -d, and eight small trials take 0.6 of the time (H100)."
    )


def share_gpus(judged: ValidatedSpace, console: Console) -> Experiment:
    """Return the sweep's base experiment with a number of trials per GPU instead of ``auto``; the number is printed.

    As many trials as fit with the upper end of the largest estimate, and not more than this machine has CPU cores.
    Raises UserError if the memory of the GPU or of the trials is not known.
    """
    base = judged.base
    if base.cluster.trials_per_gpu != AUTO:
        return base
    limit = read_gpu(base.cluster)
    if limit is None:
        raise UserError(
            "cluster.trials_per_gpu=auto: the GPU's memory is not known. Set cluster.gpu=A100 or the like, "
            "cluster.gpu_memory_gib=80, or a number of trials."
        )
    points = islice(judged.validity.valid_points(), ESTIMATED_POINTS)
    settings = (judged.validator.validate(point).setting for point in points)
    needs = [memory.high / GIB for setting in settings if (memory := estimate(setting)) is not None]
    if not needs:
        raise UserError(
            "cluster.trials_per_gpu=auto: the model's shape is not known, so its memory cannot be estimated. Set "
            "model.shape, or a number of trials."
        )
    share = max(min(int(limit / max(needs)), os.cpu_count() or 1), 1)
    console.print(
        f"cluster.trials_per_gpu=auto: {share}; the largest trial needs up to {max(needs):.1f} of {limit:g} GiB"
    )
    return replace(base, cluster=replace(base.cluster, trials_per_gpu=share))
