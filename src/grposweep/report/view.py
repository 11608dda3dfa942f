"""Read-only view of a sweep folder. Needs neither Optuna nor a running controller.

Everything that shows a sweep to the user renders a :class:`SweepView`: live display, end-of-run
summary, status, show, export, best and the HTML report. ``read_sweep`` reads a folder once; a
:class:`SweepReader` reads it again and again and skips trials whose files have not changed.
"""

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from grporecipe.errors import UserError
from grporecipe.files import Config, as_number, read_json, read_lines, whole_or_none
from grposweep.report._ranking import (
    FATES,
    Importance,
    RankedPoint,
    find_importance,
    rank_points,
    replication_ranking,
)
from grposweep.report._trial_cache import add_row, read_rows, recall, stamp_files
from grposweep.report._verdict import compare_points
from grposweep.report.trial_view import State, TrialView, formatted, grouped, read_trial
from grposweep.schema import sign_of
from grposweep.search.analysis import Comparison, Effect, compare_effects
from grposweep.search.replication import Ranking, build_replication
from grposweep.search.space import Direction
from grposweep.storage import paths
from grposweep.storage.damage import sweep_damage, trial_damage
from grposweep.storage.folders import SweepFolder, TrialFolder, find_sweep, is_sweep, newest_sweep
from grposweep.storage.records import SweepProgress, as_list, as_mapping, objects_in

# what names a trial of a sweep
TRIAL = r"best|\d{1,5}|\d{4,}-[0-9a-f]{6}|[0-9a-f]{6,64}"
# names a sweep's best trial on the command line
BEST = "best"


@dataclass(frozen=True)
class InvalidPoints:
    """The points that are invalid by one rule: their number, and the first one with its message and
    fixes.
    """

    code: str
    count: int
    point: Config
    message: str
    fixes: Sequence[str]


@dataclass(frozen=True)
class SweepView:
    """One sweep at one moment. ``trials`` are in the order of their numbers and include replicates
    on other seeds.
    """

    path: Path
    # sweep.yaml
    settings: Config
    trials: Sequence[TrialView]
    progress: SweepProgress
    prepared: Config
    # process and host of the running controller; empty if none runs
    controller: str

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def metric(self) -> str:
        """The metric of the objective."""
        return str(self._search.get("metric") or "eval_reward")

    @property
    def direction(self) -> Direction:
        """Whether a larger or a smaller objective is better."""
        return "minimize" if self._search.get("direction") == "minimize" else "maximize"

    @property
    def sign(self) -> int:
        """The factor that makes larger objectives better."""
        return sign_of(self.direction)

    @property
    def sampler(self) -> str:
        """The sampler's name; ``auto`` if only the configuration is known."""
        return self.progress.sampler or str(self._search.get("sampler") or "")

    @property
    def overrides(self) -> list[str]:
        """The overrides that all trials share."""
        return list(map(str, as_list(self.settings.get("overrides"))))

    @cached_property
    def provenance(self) -> Config:
        """Code, packages and machine at the sweep's start, and the latest command that ran it."""
        known = {**as_mapping(self.settings.get("provenance"))}
        for line in read_lines(self.path / paths.COMMANDS, command=str, working_directory=str):
            known["command"] = line["command"]
            known["working_directory"] = line["working_directory"]
        return known

    @property
    def baseline(self) -> Config:
        """The base configuration; empty if it is not recorded."""
        return as_mapping(self.settings.get("baseline"))

    @property
    def trainer(self) -> Config:
        """The base configuration's trainer."""
        return as_mapping(self.baseline.get("trainer"))

    @property
    def space(self) -> list[Config]:
        """The description of the space, an entry per parameter."""
        return objects_in(self.settings.get("space"))

    @cached_property
    def parameters(self) -> list[str]:
        """The names of the searched parameters, in the order of the space."""
        names = [str(entry["parameter"]) for entry in self.space if entry.get("parameter")]
        for trial in self.trials:
            names += trial.point
        return list(dict.fromkeys(names))

    @property
    def choices(self) -> dict[str, list[Any]]:
        """The labels of the finite parameters, in the order of the space."""
        return {
            str(e.get("parameter")): e["choices"]
            for e in self.space
            if isinstance(e.get("choices"), list)
        }

    @property
    def ranges(self) -> dict[str, Config]:
        """The numeric parameters with their bounds: ``low``, ``high``, and whether the scale is
        ``log``.
        """
        ranges = {}
        for entry in self.space:
            ends = (as_number(entry.get("low")), as_number(entry.get("high")))
            if "choices" not in entry and None not in ends:
                ranges[str(entry.get("parameter"))] = entry
        return ranges

    @property
    def planned(self) -> int:
        """How many trials the sweep runs in all; the number of trials so far if no controller wrote
        it down.
        """
        return max(self.progress.target or 0, len(self.trials))

    @property
    def ended(self) -> int:
        """Return the number of trials that have ended, or that stay paused because the effort is
        spent.
        """
        return self.count(State.FINISHED, State.PRUNED, State.FAILED) + len(self.resting)

    @property
    def resting(self) -> list[TrialView]:
        """The trials that stay paused because the effort is spent; a larger one continues them."""
        return self.select(State.PAUSED) if self.progress.rests else []

    @property
    def is_over(self) -> bool:
        """Return whether the sweep has nothing left to do."""
        return 0 < self.planned == self.ended

    @property
    def progress_text(self) -> str:
        """Whether the sweep runs, is done, or waits for its command, in a few words."""
        left = self.planned - self.ended
        if self.controller:
            return f"at work ({self.controller})"
        if self.is_dry:
            return "dry run: nothing was launched"
        if not self.planned:
            return "not started"
        if not left:
            failed = self.count(State.FAILED)
            if not failed:
                return "done"
            return f"done, {failed:,} failed" if self.leaderboard else "done, all failed"
        moving = sum(trial.is_open for trial in self.select(State.RUNNING, State.QUEUED))
        if moving:
            return f"{moving} running without a controller"
        return f"not running, with {left:,} to go"

    @property
    def is_fake(self) -> bool:
        """Whether the fake trainer made the results."""
        return self.trainer.get("kind") == "fake"

    @cached_property
    def is_dry(self) -> bool:
        """Whether the trials were only written: by ``cluster=dry_run``, and no other launcher has
        started one since.
        """
        if self.controller or any(trial.attempts for trial in self.trials):
            return False
        # only for a sweep that has started nothing
        from grposweep.launchers import launcher_class
        from grposweep.schema.registries import LAUNCHERS

        kind = as_mapping(self.baseline.get("cluster")).get("kind")
        return kind in LAUNCHERS and launcher_class(str(kind)).is_dry

    @property
    def searched(self) -> list[TrialView]:
        """The trials of the search itself, without replicates."""
        return [trial for trial in self.trials if not trial.is_replicate]

    @cached_property
    def ranked(self) -> list[TrialView]:
        """The finished trials with an objective, best first; of two equal ones the earlier
        first.
        """
        finished = [trial for trial in self.trials if trial.objective is not None]
        return sorted(
            finished, key=lambda trial: (-self.sign * (trial.objective or 0.0), trial.number)
        )

    @property
    def finished(self) -> list[TrialView]:
        """Those of `ranked` that are no replicates."""
        return [trial for trial in self.ranked if not trial.is_replicate]

    @cached_property
    def leaderboard(self) -> list[RankedPoint]:
        """The points, best first. Points confirmed on fresh seeds come before all others."""
        return rank_points(self.trials, self.direction, self.race)

    @property
    def compares(self) -> bool:
        """Whether the sweep varies one factor at a time: every point runs on the same seeds and
        nothing is chosen.
        """
        return self.sampler == "one_factor"

    @cached_property
    def replication(self) -> Ranking | None:
        """The ranking of points on several seeds; None if the sweep uses one seed."""
        seeds = self.progress.seeds
        leaders = self.progress.leaders
        if seeds is None:
            seeds = whole_or_none(self._search.get("seeds"))
        if leaders is None:
            leaders = whole_or_none(self._search.get("leaders"))
        base_seed = whole_or_none(self.baseline.get("seed"))
        replication = build_replication(self.sampler, base_seed or 0, seeds or 0, leaders or 0)
        return replication_ranking(self.trials, self.direction, replication)

    @property
    def race(self) -> Ranking | None:
        """The ranking on fresh seeds; None without one, and where nothing is chosen."""
        return None if self.compares else self.replication

    @cached_property
    def comparison(self) -> Comparison | None:
        """The effect of each change of one factor; None for other samplers."""
        if not self.compares or self.replication is None:
            return None
        points = {t.number: dict(t.point) for t in self.searched if t.state.is_over}
        return compare_effects(points, self.replication.alive, self.sign)

    @property
    def effects(self) -> Sequence[Effect]:
        """The effects of the comparison; none for other samplers."""
        return self.comparison.effects if self.comparison else ()

    @property
    def best_point(self) -> RankedPoint | None:
        """The best point: by its value on fresh seeds if leaders ran on some, otherwise by that of
        the search.
        """
        return next(iter(self.leaderboard), None)

    @property
    def comparisons(self) -> int:
        """The comparisons from which that of the best point and another one is chosen."""
        if self.race is not None:
            return self.race.comparisons
        points = len(self.leaderboard)
        return max(points * (points - 1) // 2, 1)

    @cached_property
    def tied(self) -> list[RankedPoint]:
        """The points that cannot be told apart from the best one; after a race, its leaders
        only.
        """
        if not self.leaderboard:
            return []
        first, *rest = self.leaderboard
        if first.fate:
            return [point for point in rest if point.fate == FATES["tied"]]
        return [p for p in rest if compare_points(first, p, self.comparisons).is_tie]

    @property
    def best(self) -> TrialView | None:
        """The trial that found the best point."""
        return self.best_point.first if self.best_point else None

    @cached_property
    def places(self) -> dict[int, tuple[int, RankedPoint]]:
        """The rank (from 1) and the point of each finished trial, by its number."""
        places = {}
        for rank, point in enumerate(self.leaderboard, 1):
            for trial in point.trials:
                places[trial.number] = (rank, point)
        return places

    @cached_property
    def gpu_hours(self) -> float:
        """Cost so far."""
        return math.fsum(trial.gpu_seconds for trial in self.trials) / 3600

    @property
    def spent_text(self) -> str:
        """GPU hours so far, and of how many."""
        budget = formatted(" of {:g}", self.progress.budget_hours)
        return f"{self.gpu_hours:.3g}{budget} {self.hours_unit}"

    @cached_property
    def hours_unit(self) -> str:
        """What the hours are of. Processes on CPUs count as GPUs do; a budget is always in GPU
        hours.
        """
        runs = (read_lines(trial.path / paths.RUNS, attempt=int) for trial in self.trials)
        first = next(chain.from_iterable(runs), {})
        is_cpu = first.get("gpu") is False and self.progress.budget_hours is None
        return "CPU hours" if is_cpu else "GPU hours"

    @property
    def unfinished(self) -> list[TrialView]:
        """The trials of the search without an objective: those with the best value so far first,
        then the others.
        """
        rest = [trial for trial in self.searched if trial.objective is None]
        return sorted(
            rest, key=lambda t: (t.reached is None, -self.sign * (t.reached or 0.0), t.number)
        )

    def select(self, *states: State) -> list[TrialView]:
        """Return the trials that are in one of these states."""
        return [trial for trial in self.trials if trial.state in states]

    def count(self, *states: State) -> int:
        """Return how many trials are in one of these states."""
        return sum(self._states[state] for state in states)

    @property
    def yet(self) -> str:
        """The word after what has not happened and still may; empty once the sweep is over."""
        return "" if self.is_over else " yet"

    @cached_property
    def _states(self) -> Counter[State]:
        return Counter(trial.state for trial in self.trials)

    def failures(self) -> dict[str, list[TrialView]]:
        """Return the failed trials by failure class."""
        return grouped(self.select(State.FAILED), lambda trial: trial.failure_class)

    def trial(self, wanted: str | int) -> TrialView:
        """Return a trial by its number, folder name or the head of its experiment id; the best one
        for ``best``.

        Raises UserError if no trial or several match.
        """
        text = str(wanted).strip().rstrip("/")
        if text == BEST:
            if self.best is None:
                raise UserError(
                    f"{self.name} has no finished trial{self.yet}, so none is the best. "
                    f"{self._instead()}"
                )
            return self.best
        if text.isdecimal() and len(text) < 6:
            trials = [trial for trial in self.trials if trial.number == int(text)]
        else:
            head = text.rsplit("/", 1)[-1]
            trials = [
                t for t in self.trials if head and (t.name == head or t.experiment.startswith(head))
            ]
        if len(trials) != 1:
            found = "several such trials" if trials else "no such trial"
            raise UserError(f"{text}: {self.name} has {found}. {self._instead()}")
        return trials[0]

    @cached_property
    def invalid_points(self) -> list[tuple[Config, Config]]:
        """Return each invalid point with a problem of it; a point with several problems comes
        several times.
        """
        pairs = []
        for line in read_lines(self.path / paths.INVALID, point=dict, problems=list):
            pairs += [(line["point"], problem) for problem in objects_in(line["problems"])]
        return pairs

    @cached_property
    def invalid_count(self) -> int:
        """The number of invalid points; one that breaks several rules counts once."""
        points = self.progress.points
        valid = self.progress.valid
        if points is not None and valid is not None:
            return points - valid
        return len(list(read_lines(self.path / paths.INVALID, point=dict, problems=list)))

    @cached_property
    def invalid(self) -> list[InvalidPoints]:
        """Return the invalid points by rule, most first. A point that breaks several rules counts
        for each.
        """
        first: dict[str, tuple[Config, Config]] = {}
        counts: Counter[str] = Counter()
        for pair in self.invalid_points:
            code = str(pair[1].get("code"))
            counts[code] += 1
            first.setdefault(code, pair)
        rules = []
        for code, number in counts.most_common():
            point, problem = first[code]
            message = str(problem.get("message", ""))
            rules.append(InvalidPoints(code, number, point, message, _fixes(problem)))
        return rules

    @cached_property
    def importance(self) -> Importance:
        """What decides about the objective, as far as the trials of the search tell."""
        return find_importance(self.searched, self.space, self.direction, self.metric)

    @cached_property
    def damage(self) -> list[str]:
        """A line for each damaged file, which every reader skips."""
        lines = list(sweep_damage(SweepFolder(self.path)))
        for trial in self.trials:
            if not trial.is_recalled:
                lines += trial_damage(TrialFolder(trial.path), logs_steps(self.settings))
        return lines

    @property
    def _search(self) -> Config:
        return as_mapping(self.settings.get("search"))

    def _instead(self) -> str:
        if not self.trials:
            return "It has started none yet."
        first = self.trials[0].number
        last = self.trials[-1].number
        number = f"its number ({first} to {last})"
        folder = f"its folder's name ({self.trials[-1].name})"
        if self.best:
            return f"Name one by {number}, {folder} or {BEST}."
        return f"Name one by {number} or {folder}."


@dataclass(frozen=True)
class _Known:
    """A trial as it was read last. ``files`` is None before its second look; a ``settled`` trial
    never changes.
    """

    view: TrialView
    files: object = None
    settled: bool = False


class SweepReader:
    """Read one sweep folder again and again. Trials whose files have not changed are not read
    again.
    """

    def __init__(self, sweep: SweepFolder | Path) -> None:
        """Raises UserError if the folder holds no sweep, or its sweep.yaml is damaged."""
        self._folder = sweep if isinstance(sweep, SweepFolder) else SweepFolder(sweep.resolve())
        settings = self._folder.settings()
        if settings is None:
            raise UserError(
                f"{self._folder.path} is no sweep: it has no sweep.yaml. Name a folder under "
                "outputs/."
            )
        self._settings = settings
        self._folders: dict[str, TrialFolder] = {}
        self._rows = read_rows(self._folder.path)
        self._known: dict[str, _Known] = {}

    def read(self, progress: SweepProgress | None = None) -> SweepView:
        """Return the sweep as it is now. ``progress`` replaces the content of outlook.json."""
        path = self._folder.path
        controller = _controller(path / paths.LEASE)
        trials = [self._look(folder, bool(controller)) for folder in self._trials()]
        progress = SweepProgress.read(path) if progress is None else progress
        return SweepView(
            path, self._settings, trials, progress, self._folder.prepared(), controller
        )

    def trial(self, folder: TrialFolder) -> TrialView:
        """Return one trial as it is now. For the controller's process, once the study holds the
        trial's end.

        The trial gets a row in summary.jsonl.
        """
        files = stamp_files(folder.path)
        view = read_trial(folder, controller_lives=True)
        if view.state.is_over and folder.open_attempt() is None:
            self._known[view.name], self._rows[view.name] = _Known(view, settled=True), {}
            # a convenience only
            with suppress(OSError):
                if any(trial_damage(folder, logs_steps(self._settings))):
                    return view
                add_row(self._folder.path, view, files)
        return view

    def complete_summary(self) -> None:
        """Add the ended trials to summary.jsonl that have no row which counts. For the controller's
        process.
        """
        for name, folder in self._folders.items():
            if name not in self._rows and self._known[name].view.state.is_over:
                self.trial(folder)

    def _trials(self) -> Iterator[TrialFolder]:
        """The trial folders by number; folders known already are not looked at again."""
        try:
            names = os.listdir(self._folder.path / paths.TRIALS)  # noqa: PTH208 - names only: twice a second, of thousands
        except (FileNotFoundError, NotADirectoryError):
            names = []
        if any(name not in self._folders for name in names) or len(names) < len(self._folders):
            self._folders = {folder.path.name: folder for folder in self._folder.trials()}
        yield from self._folders.values()

    def _look(self, folder: TrialFolder, controller_lives: bool) -> TrialView:
        name = folder.path.name
        cached = self._known.get(name)
        if cached is not None and cached.settled:
            return cached.view
        if cached is None and name in self._rows:
            recalled = recall(folder, self._rows[name])
            if recalled is not None:
                self._known[name] = _Known(recalled, settled=True)
                return recalled
            del self._rows[name]
        files = None
        if cached is not None:
            files = (controller_lives, stamp_files(folder.path))
            if files == cached.files and cached.view.state is not State.RUNNING:
                return cached.view
        view = read_trial(folder, controller_lives)
        settled = cached is not None and view.state.is_over and folder.open_attempt() is None
        self._known[name] = _Known(view, files, settled)
        return view


def logs_steps(settings: Config) -> bool:
    """Return whether the trainer of a recorded sweep logs every optimizer step; a program of the
    user's own may not.
    """
    from grposweep.schema.registries import OWN_TRAINERS

    trainer = as_mapping(as_mapping(settings.get("baseline")).get("trainer"))
    return trainer.get("kind") in OWN_TRAINERS


def read_sweep(sweep: SweepFolder | Path) -> SweepView:
    """Read a sweep folder once.

    Raises UserError if the folder holds no sweep, or its sweep.yaml is damaged.
    """
    return SweepReader(sweep).read()


def open_sweep(named: str | None, outputs: Path) -> SweepView:
    """Read the sweep that the user names: a name under ``outputs``, a path, or None for the newest
    there with results.
    """
    sweep = find_sweep(named, outputs) if named else newest_sweep(outputs)
    return read_sweep(sweep)


def find_names(
    names: Sequence[str], outputs: Path, reruns: bool = True
) -> list[tuple[SweepFolder, str]]:
    """Return what ``[SWEEP] [TRIAL]...`` names: a sweep and a trial's name for each, empty for the
    whole sweep.

    A trial may also be ``SWEEP/TRIAL`` or a path. Trials before any sweep's name are those of the
    newest, which is also meant without names. Raises UserError for a word that names neither.
    """
    pairs: list[tuple[SweepFolder, str]] = []
    sweep: SweepFolder | None = None
    for name in names:
        path = Path(name)
        (head, slash, trial) = name.rstrip("/").rpartition("/")
        is_trial = re.fullmatch(TRIAL, name) is not None
        if is_sweep(path.parent.parent) and (path / paths.CONFIG).is_file():
            pairs.append((SweepFolder(path.resolve().parent.parent), path.resolve().name))
        elif slash and not _is_known(name, outputs) and _is_known(head, outputs):
            pairs.append((find_sweep(head, outputs), trial))
        elif is_trial and (sweep is not None or not _is_known(name, outputs)):
            sweep = sweep or newest_sweep(outputs, reruns)
            if (sweep, "") in pairs:
                pairs.remove((sweep, ""))
            pairs.append((sweep, name))
        else:
            sweep = find_sweep(name, outputs)
            pairs.append((sweep, ""))
    return pairs or [(newest_sweep(outputs, reruns), "")]


def _is_known(name: str, outputs: Path) -> bool:
    return is_sweep(Path(name)) or is_sweep(outputs / name)


def open_trial(names: Sequence[str], outputs: Path) -> tuple[SweepView, TrialView]:
    """Read the one trial that ``[SWEEP] [TRIAL]`` names, the best by default.

    Raises UserError if several are named.
    """
    (folder, trial), *others = find_names(names, outputs)
    if others:
        raise UserError(
            f"{' '.join(names)}: this names several trials or sweeps. Name one, such as mine 3 "
            "or mine/3."
        )
    view = read_sweep(folder)
    return view, view.trial(trial or BEST)


def _controller(lease: Path) -> str:
    """Return who holds the lease. A process of this machine is checked; one of another machine is
    believed.
    """
    holder = read_json(lease)
    if holder is None:
        return ""
    # only for a sweep that a controller runs
    import socket

    from grposweep.process import exists

    pid = holder.get("pid")
    host = holder.get("host")
    if host == socket.gethostname() and not exists(pid):
        return ""
    return f"process {pid} on {host}"


def _fixes(problem: Config) -> list[str]:
    fixes = []
    for fix in objects_in(problem.get("fixes")):
        words = [f"{key}={plain_text(value)}" for key, value in fix.items()]
        fixes.append(" ".join(words))
    return fixes


def plain_text(value: Any) -> str:
    """Return a text as it is, and any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value)
