"""A sweep's controller, made of its judged space and of what lies in its folder."""

import logging
from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Any, cast

from rich.console import Console

from grposweep.check import errors
from grposweep.launchers.base import Launcher
from grposweep.report.tables import invalid_table
from grposweep.search.early_stopping import build_policy, choose_policy
from grposweep.search.journal import Direction
from grposweep.search.replication import build_replication
from grposweep.search.sampler import lists_points
from grposweep.search.space import freeze
from grposweep.search.study import RECORDED_INVALID, SweepStudy
from grposweep.storage.folders import SweepFolder
from grposweep.storage.lease import Lease
from grposweep.sweep.controller import Controller
from grposweep.sweep.early_stopping import EarlyStoppingMonitor
from grposweep.sweep.further import further_of
from grposweep.sweep.oom import known_oom
from grposweep.sweep.outcomes import OutcomeRecorder
from grposweep.sweep.recovery import open_study
from grposweep.sweep.start import ValidatedSpace, write_invalid
from grposweep.sweep.summary import invalid_rows
from grposweep.sweep.trial_queue import TrialQueue
from grposweep.sweep.warm_start import WarmStart, open_warm_start, words_of_warm_start

logger = logging.getLogger(__name__)


def build_controller(
    console: Console,
    folder: SweepFolder,
    judged: ValidatedSpace,
    launcher: Launcher,
    lease: Lease,
    overrides: list[str],
    provenance: Mapping[str, Any],
) -> Controller:
    """Open the study, tell it what is known, and hand everything to a controller; says what was found and repaired."""
    base, validator = judged.base, judged.validator
    study = _open(console, folder, judged)
    _record_invalid(console, folder, study, judged)
    warm = open_warm_start(folder, base, validator)
    _teach(study, folder, judged, warm)
    if warm.first:
        console.print(words_of_warm_start(warm), highlight=False)
    first = [*judged.enqueued, *warm.first]
    valid = list(judged.census.valid_points())
    queue = TrialQueue(study, validator, base.search, judged.sampler, valid, first, base.force)
    queue.known_oom = partial(known_oom, folder)
    outcomes = OutcomeRecorder(folder, study, validator, base.search, base.trainer.keep)
    outcomes.keep_best()  # an earlier controller may have died between an end and this
    stopping = build_policy(choose_policy(base.search.stopping, judged.sampler, 1 + len(base.search.further)))
    monitor = EarlyStoppingMonitor(folder, study, base.search, stopping)
    queue.foreseen = monitor.foreseen
    return Controller(folder, queue, outcomes, launcher, lease, overrides, dict(provenance), monitor)


def _open(console: Console, folder: SweepFolder, judged: ValidatedSpace) -> SweepStudy:
    """The study, its journal repaired or rebuilt where it has to be."""
    search = judged.base.search
    direction = cast(Direction, search.direction)  # check_words has seen it
    study, repairs = open_study(folder, judged.space, direction, search.metric)
    for repair in repairs:
        console.print(repair, style="yellow", markup=False, soft_wrap=True)
        logger.warning("repaired: %s", repair)
    return study


def _teach(study: SweepStudy, folder: SweepFolder, judged: ValidatedSpace, warm: WarmStart) -> None:
    """What the study cannot know of itself: further objectives, earlier sweeps, seeds."""
    base = judged.base
    if base.search.further:
        study.use_objectives(further_of(folder, base.search.further))
    else:  # what earlier sweeps were worth in further objectives is not taken over
        study.learn([(seen.point, seen.value) for seen in warm.observations])
    study.replication = build_replication(base.search.sampler, base.seed, base.search.seeds, base.search.leaders)


def _record_invalid(console: Console, folder: SweepFolder, study: SweepStudy, judged: ValidatedSpace) -> None:
    """Print the invalid points by rule, keep them in a file, and a grid's in the study."""
    census = judged.census
    if not census.invalid:
        return
    console.print(invalid_table(invalid_rows(census), census.invalid, census.total))
    never = [f"{d}={label}" for d, labels in census.valid_by_label().items() for label, n in labels.items() if not n[0]]
    if never:
        console.print(f"never valid with the other dials as they are: {', '.join(never)}", highlight=False)
    write_invalid(folder, map(census.validator.validate, census.invalid_points()), census.invalid)
    if lists_points(judged.sampler):
        known = {freeze(trial.params) for trial in study.trials if trial.user_attrs.get("invalid")}
        for point in islice(census.invalid_points(), RECORDED_INVALID):
            if freeze(point) in known:
                continue
            problems = errors(census.validator.validate(point).problems)
            study.add_invalid(point, [f"{problem.code} {problem.message}" for problem in problems])
