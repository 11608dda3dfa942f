"""Start a validated sweep: prepare models and data, and build its controller."""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import cache, partial
from itertools import islice
from typing import Any, cast

from optuna.trial import TrialState
from rich.console import Console
from rich.progress import Progress

from grporecipe.errors import ExitCode, UserError
from grporecipe.files import read_json, write_json, write_text
from grporecipe.model.rates import rates_for
from grporecipe.rules.check import errors
from grporecipe.terminal import redraws
from grposweep.command.any_program import stops_early
from grposweep.config.compose import escape, load_experiment, render_experiment
from grposweep.config.identity import ResolvedConfig
from grposweep.config.search_budget import Budget
from grposweep.launchers.base import Interrupted, Launcher
from grposweep.registries import is_opaque
from grposweep.report.space_summary import print_invalid
from grposweep.schema import GROUPS, Experiment
from grposweep.search.budget import buys
from grposweep.search.early_stopping import build_policy, choose_effort
from grposweep.search.replication import build_replication
from grposweep.search.sampler import lists_points, prior_points
from grposweep.search.sampling import Sampling, read_sampling
from grposweep.search.space import Direction, freeze
from grposweep.search.study import RECORDED_INVALID, SweepStudy
from grposweep.search.validity import ValidationResult, Validator
from grposweep.storage import paths
from grposweep.storage.folders import SweepFolder, TrialFolder
from grposweep.storage.lease import Lease
from grposweep.sweep._controller import Controller
from grposweep.sweep._early_stopping import EarlyStoppingMonitor
from grposweep.sweep._oom import known_oom
from grposweep.sweep._outcomes import OutcomeRecorder
from grposweep.sweep._resume import changed_keys, listed, open_study
from grposweep.sweep._spending import Spending
from grposweep.sweep._trial_queue import Outlook, TrialQueue
from grposweep.sweep._warm_start import open_warm_start, words_of_warm_start
from grposweep.sweep.retry import reopen_failed
from grposweep.sweep.validate import ValidatedSpace, plans_trials

logger = logging.getLogger(__name__)
KEPT_INVALID = 10_000


def prepare_sweep(
    folder: SweepFolder,
    experiments: Mapping[str, Experiment],
    launcher: Launcher,
    console: Console,
    interrupts: Interrupted,
) -> bool:
    """Prepare every model and task that is not prepared yet. Return False if the user interrupted
    it.

    Raises UserError with what preparation found wrong.
    """
    missing = {
        key: experiment for key, experiment in experiments.items() if key not in folder.prepared()
    }
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
    tail = (
        log.read_text(encoding="utf-8", errors="replace").splitlines()[-3:] if log.exists() else []
    )
    return (
        f"preparing model and data failed (exit code {code}): {' / '.join(tail)}. Its whole "
        f"output is in {log}."
    )


def build_controller(
    console: Console,
    folder: SweepFolder,
    judged: ValidatedSpace,
    launcher: Launcher,
    lease: Lease,
    overrides: list[str],
    provenance: Mapping[str, Any],
) -> Controller:
    """Build the controller of a sweep: build its study, add earlier results, and print what was
    found.
    """
    base, validator = judged.base, judged.validator
    for line in reopen_failed(folder, validator, provenance) if not launcher.is_dry else []:
        console.print(line, soft_wrap=True)
        logger.info("%s", line)
    # `check_space` has seen it
    direction = cast(Direction, base.search.direction)
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
    study.replication = build_replication(
        base.search.sampler, base.seed, base.search.seeds, base.search.leaders
    )
    if warm.first:
        console.print(words_of_warm_start(warm))
    valid = list(judged.validity.valid_points())
    finite = tuple(study.space.finite_part(point) for point in valid)
    first = [*judged.enqueued, *warm.first]
    if base.search.prior != "none":
        first += prior_points(
            study.space,
            finite,
            lambda p: rates_for(validator.fields.setting(p)).usual,
            base.search.seed,
        )
    outcomes = OutcomeRecorder(folder, study, validator, base.search, base.trainer.keep)
    # an earlier controller may have died before it did this
    outcomes.keep_best()
    budget = None if base.search.budget is None else Budget.parse(base.search.budget)
    spending = Spending(folder, study, None if budget is None else budget.hours)
    effort = choose_effort(base.search.effort, judged.sampler)
    if is_opaque(base.trainer.kind) and not stops_early(base):
        # no trial is paused
        effort = 1.0
    allowance = None
    if budget is not None and plans_trials(base, judged.sampler):
        allowance = partial(buys, budget, hours=spending.hours)
    stopping = build_policy(base.search.stopping, effort, allowance)
    monitor = EarlyStoppingMonitor(folder, study, base.search, stopping)
    outlook = Outlook(partial(known_oom, folder), monitor.budgeted, monitor.foreseen)
    sampled = judged.validity.is_sampled
    queue = TrialQueue(
        study, validator, base.search, judged.sampler, valid, first, base.force, sampled, outlook
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
    last = {item: trial for trial in trained for item in trial.params.items() if item[0] in GROUPS}
    for trial in [*unfinished, *last.values()]:
        verdict = validator.validate(dict(trial.params), trial.user_attrs.get("seed"))
        recorded = str(trial.user_attrs["experiment"])
        there = folder.trial(trial.number, recorded)
        if recorded not in _identities(verdict, there):
            point = " ".join(f"{name}={label}" for name, label in trial.params.items())
            config = there.path / paths.CONFIG
            keys = (
                changed_keys(escape(asdict(load_experiment(config))), verdict.experiment)
                if config.exists()
                else []
            )
            raise UserError(
                f"trial {trial.number} ({point}) was recorded with other values than the same "
                f"options have now{listed(keys)}, "
                "and results of both must not be mixed. Restore the options' files in conf/, or "
                "set another name=..."
            )


def _identities(verdict: ValidationResult, trial: TrialFolder) -> Iterator[str]:
    """Yield the ids that a point may be recorded under: as it is now, without preparation, on the
    recorded processes.
    """
    experiment = verdict.experiment
    yield verdict.config.identity
    # a dry run records trials without preparation
    yield ResolvedConfig.of(experiment).identity
    if (trial.path / paths.CONFIG).exists():
        cluster = replace(
            experiment.cluster,
            processes=load_experiment(trial.path / paths.CONFIG).cluster.processes,
        )
        yield ResolvedConfig.of(replace(experiment, cluster=cluster)).identity


def _record_invalid(
    console: Console, folder: SweepFolder, study: SweepStudy, judged: ValidatedSpace
) -> None:
    """Print the invalid points by rule, and write them to invalid.jsonl with problems and fixes; a
    grid's also to the study.

    A last line of the file counts those beyond the first ten thousand.
    """
    validity = judged.validity
    if not validity.invalid:
        # those of a former list are corrected
        if judged.space.points:
            (folder.path / paths.INVALID).unlink(missing_ok=True)
        return
    if validity.is_sampled:
        console.print(validity.describe())
    print_invalid(console, validity)
    by_label = validity.valid_by_label().items()
    if never := [
        f"{name}={label}"
        for name, labels in by_label
        for label, (valid, _) in labels.items()
        if not valid
    ]:
        console.print(f"never valid with the other parameters in this space: {', '.join(never)}")
    verdicts = map(validity.validator.validate, islice(validity.invalid_points(), KEPT_INVALID))
    lines: list[dict[str, Any]] = [
        {"point": verdict.point, "problems": verdict.reasons()} for verdict in verdicts
    ]
    lines += [{"more": validity.invalid - KEPT_INVALID}] if validity.invalid > KEPT_INVALID else []
    write_text(folder.path / paths.INVALID, "".join(json.dumps(line) + "\n" for line in lines))
    if lists_points(judged.sampler):
        known = {freeze(trial.params) for trial in study.trials if trial.user_attrs.get("invalid")}
        for point in islice(validity.invalid_points(), RECORDED_INVALID):
            if freeze(point) in known:
                continue
            problems = errors(validity.validator.validate(point).problems)
            study.add_invalid(point, [f"{problem.code} {problem.message}" for problem in problems])
