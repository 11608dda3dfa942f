"""The parts of a sweep's start: preparation, the study, invalid points, and the controller."""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import cache, partial
from itertools import islice
from typing import cast

from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.progress import Progress

from grporecipe.errors import ExitCode, UserError
from grporecipe.files import Config, Json, only, read_json, without, write_json, write_text
from grporecipe.rules.check import errors
from grporecipe.terminal import redraws
from grposweep.command.any_program import stops_early
from grposweep.config.compose import escape, load_experiment, render_experiment
from grposweep.config.identity import ResolvedConfig
from grposweep.config.search_budget import Budget
from grposweep.launchers.base import Launcher
from grposweep.schema import GROUPS, Experiment
from grposweep.schema.registries import is_opaque
from grposweep.search.budget import buys
from grposweep.search.early_stopping import build_policy, choose_effort
from grposweep.search.replication import build_replication
from grposweep.search.sampler import lists_points
from grposweep.search.sampling import Sampling, read_sampling
from grposweep.search.space import Direction, freeze
from grposweep.search.study import RECORDED_INVALID, SweepStudy
from grposweep.search.validity import ValidationResult, Validator
from grposweep.storage import paths
from grposweep.storage.folders import SweepFolder, TrialFolder
from grposweep.storage.lease import Lease
from grposweep.sweep._controller import Controller
from grposweep.sweep._early_stopping import EarlyStoppingMonitor
from grposweep.sweep._interrupts import SignalCounter
from grposweep.sweep._oom import known_oom
from grposweep.sweep._outcomes import OutcomeRecorder
from grposweep.sweep._resume import changed_keys, listed, open_study
from grposweep.sweep._spending import Spending
from grposweep.sweep._trial_queue import TrialQueue
from grposweep.sweep._warm_start import WarmStart
from grposweep.sweep.validate import ValidatedSpace, plans_trials

logger = logging.getLogger(__name__)
KEPT_INVALID = 10_000


def prepare_sweep(
    folder: SweepFolder,
    experiments: Mapping[str, Experiment],
    launcher: Launcher,
    console: Console,
    interrupts: SignalCounter,
) -> bool:
    """Prepare every model and task that is not prepared yet. Return False if the user interrupted
    it.

    Raises UserError with what preparation found wrong.
    """
    missing = without(experiments, folder.prepared())
    if not missing:
        return True
    (folder.path / paths.PREPARE_FOLDER).mkdir(exist_ok=True)
    for key, experiment in missing.items():
        write_text(
            folder.path / paths.PREPARE_FOLDER / f"{key}.yaml", render_experiment(experiment)
        )
    write_json(
        folder.path / paths.PREPARE,
        {"entries": {key: f"{paths.PREPARE_FOLDER}/{key}.yaml" for key in missing}},
    )
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
            now = {
                "what": "",
                "done": 0,
                "total": None,
                **(read_json(folder.path / paths.PREPARE_PROGRESS) or {}),
            }
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
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    tail = text.splitlines()[-3:]
    return (
        f"preparing model and data failed (exit code {code}): {' / '.join(tail)}. Its whole "
        f"output is in {log}."
    )


def build_study(folder: SweepFolder, space: ValidatedSpace) -> SweepStudy:
    """Return the study of a sweep with all its trials.

    Raises UserError if one was recorded with other values than it has now.
    """
    base = space.base
    search = space.base.search
    # `check_space` has seen the direction.
    study = open_study(folder, space.space, cast(Direction, search.direction), search.metric)

    @cache
    def sampling_of(number: int, experiment: str) -> Sampling:
        trial = folder.trial(number, experiment)
        return read_sampling(trial.path, trial.result, base.task.eval_prompts)

    study.sampling_of = sampling_of
    study.replication = build_replication(search.sampler, base.seed, search.seeds, search.leaders)
    check_recorded(folder, study, space.validator)
    return study


def build_controller(
    folder: SweepFolder,
    study: SweepStudy,
    space: ValidatedSpace,
    warm: WarmStart,
    launcher: Launcher,
    lease: Lease,
    overrides: list[str],
    provenance: Config,
) -> Controller:
    """Build the controller of a sweep from its study and earlier results."""
    base = space.base
    study.learn([(seen.point, seen.value) for seen in warm.observations])
    valid = list(space.validity.valid_points())
    first = [*space.enqueued, *warm.first]
    outcomes = OutcomeRecorder(
        folder, study, space.validator, base.search, launcher, base.trainer.keep
    )
    # an earlier controller may have died before it did this
    outcomes.keep_best()
    budget = None if base.search.budget is None else Budget.parse(base.search.budget)
    hours = None if budget is None else budget.hours
    spending = Spending(folder, study, hours)
    effort = choose_effort(base.search.effort, space.sampler)
    if is_opaque(base.trainer) and not stops_early(base):
        # no trial is paused
        effort = 1.0
    allowance = None
    if budget is not None and plans_trials(base, space.sampler):
        allowance = partial(buys, budget, hours=spending.hours)
    stopping = build_policy(base.search.stopping, effort, allowance)
    monitor = EarlyStoppingMonitor(folder, study, base.search, stopping)
    queue = TrialQueue(
        study,
        space.validator,
        base.search,
        space.sampler,
        valid,
        first,
        base.force,
        space.validity.is_sampled,
        partial(known_oom, folder),
        monitor.budgeted,
        monitor.foreseen,
    )
    return Controller(
        folder, queue, outcomes, launcher, lease, overrides, dict(provenance), monitor, spending
    )


def check_recorded(folder: SweepFolder, study: SweepStudy, validator: Validator) -> None:
    """Raise UserError if a trial was recorded with other values than its point has now.

    A sweep's identity holds the names of a searched group's options, and not the keys that an
    option stands for. So ``model=qwen3_0_6b`` may have another precision after an edit of its file,
    or in another release. Every unfinished trial is checked, and the last trained one of each
    option. A trial on another number of processes is the user's choice.
    """
    unfinished = [trial for trial in study.started if not trial.state.is_finished()]
    trained = [
        trial for trial in study.started if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
    ]
    last: dict[tuple[str, object], FrozenTrial] = {}
    for trial in trained:
        options = only(trial.params, GROUPS)
        last |= dict.fromkeys(options.items(), trial)
    for trial in [*unfinished, *last.values()]:
        verdict = validator.validate(dict(trial.params), trial.user_attrs.get("seed"))
        recorded = str(trial.user_attrs["experiment"])
        there = folder.trial(trial.number, recorded)
        if recorded not in _identities(verdict, there):
            point = " ".join(f"{name}={label}" for name, label in trial.params.items())
            config = there.path / paths.CONFIG
            keys = list[str]()
            if config.exists():
                keys = changed_keys(escape(asdict(load_experiment(config))), verdict.experiment)
            raise UserError(
                f"trial {trial.number} ({point}) was recorded with other values than the same "
                f"options have now{listed(keys)}, and results of both must not be mixed. Restore "
                "the options' files in conf/, or set another name=..."
            )


def _identities(verdict: ValidationResult, trial: TrialFolder) -> Iterator[str]:
    """Yield the ids that a point may be recorded under: as it is now, without preparation, on the
    recorded processes.
    """
    experiment = verdict.experiment
    yield verdict.config.identity
    # a dry run records trials without preparation
    yield ResolvedConfig.of(experiment).identity
    if trial.has(paths.CONFIG):
        cluster = replace(
            experiment.cluster,
            processes=load_experiment(trial.path / paths.CONFIG).cluster.processes,
        )
        yield ResolvedConfig.of(replace(experiment, cluster=cluster)).identity


def record_invalid(folder: SweepFolder, study: SweepStudy, space: ValidatedSpace) -> None:
    """Write the invalid points to invalid.jsonl with problems and fixes; a grid's to the study too.

    A last line of the file counts those beyond the first ten thousand.
    """
    validity = space.validity
    if not validity.invalid:
        # Those of a former list are corrected.
        if space.space.points:
            (folder.path / paths.INVALID).unlink(missing_ok=True)
        return
    lines: list[Json] = []
    for point in islice(validity.invalid_points(), KEPT_INVALID):
        problems = validity.validator.validate(point).reasons()
        lines.append({"point": point, "problems": problems})
    if validity.invalid > KEPT_INVALID:
        lines.append({"more": validity.invalid - KEPT_INVALID})
    write_text(folder.path / paths.INVALID, "".join(json.dumps(line) + "\n" for line in lines))
    if lists_points(space.sampler):
        invalid = [trial.params for trial in study.trials if trial.user_attrs.get("invalid")]
        recorded = set(map(freeze, invalid))
        for point in islice(validity.invalid_points(), RECORDED_INVALID):
            if freeze(point) not in recorded:
                broken = errors(validity.validator.validate(point).problems)
                study.add_invalid(point, [f"{item.code} {item.message}" for item in broken])
