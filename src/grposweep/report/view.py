"""The points that rules pruned before they cost anything, from a sweep's folder.

A sweep as its folder tells it, for whoever looks: nothing is written, repaired or asked of a controller; no Optuna.

``read_sweep`` takes one look at the small files, so that a sweep under way reads like one that has ended, here or on
another machine. Everything that is shown is drawn from what it returns.
"""

import json
import math
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from grposweep.errors import UserError
from grposweep.files import read_json, read_lines
from grposweep.process import exists
from grposweep.report.ranking import Standing, race_of, standings
from grposweep.report.trial_view import Direction, State, TrialView, read_trial
from grposweep.search.pareto import pareto_front, signs_of
from grposweep.search.replication import Comparison, build_replication, compare
from grposweep.search.replication import Ranking as Race
from grposweep.storage import paths
from grposweep.storage.folders import SweepFolder, find_sweep
from grposweep.storage.records import SweepProgress


@dataclass(frozen=True)
class InvalidPoints:
    """The points that one rule prunes: how many, the first of them, why, and what would mend it."""

    code: str
    count: int
    point: Mapping[str, Any]
    message: str
    fixes: Sequence[str]


def read_invalid(sweep: Path) -> list[InvalidPoints]:
    """What invalid.jsonl says, by rule; a point that breaks several counts for each."""
    first: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
    counts: Counter[str] = Counter()
    for point, problem in _problems(sweep / paths.INVALID):
        code = str(problem.get("code"))
        counts[code] += 1
        first.setdefault(code, (point, problem))
    return [
        InvalidPoints(code, count, first[code][0], str(first[code][1].get("message", "")), _fixes(first[code][1]))
        for code, count in counts.most_common()
    ]


def _problems(path: Path) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for line in read_lines(path, point=dict, problems=list):
        for problem in line["problems"]:
            if isinstance(problem, dict):
                yield line["point"], problem


def _fixes(problem: Mapping[str, Any]) -> list[str]:
    fixes = problem.get("fixes")
    return [
        " ".join(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in fix.items())
        for fix in (fixes if isinstance(fixes, list) else [])
        if isinstance(fix, dict)
    ]


BEST = "best"  # names a sweep's winner wherever a trial is named


@dataclass(frozen=True)
class SweepView:
    """One sweep at one moment; ``trials`` by number, replicates on other seeds among them."""

    path: Path
    settings: Mapping[str, Any]  # sweep.yaml
    trials: Sequence[TrialView]
    outlook: SweepProgress
    prepared: Mapping[str, Any]
    controller: str  # who works on it: a process and its host; empty for nobody

    @property
    def name(self) -> str:
        """Its folder's name."""
        return self.path.name

    @property
    def metric(self) -> str:
        """What it optimises."""
        return str(self._search.get("metric") or "eval_reward")

    @property
    def direction(self) -> Direction:
        """Which of two objectives is the better one."""
        return "minimize" if self._search.get("direction") == "minimize" else "maximize"

    @property
    def sign(self) -> int:
        """What an objective is multiplied with so that less is better."""
        return 1 if self.direction == "minimize" else -1

    @property
    def sampler(self) -> str:
        """How it searches: grid, tpe, random, gp; ``auto`` where only the configuration is known."""
        return self.outlook.sampler or str(self._search.get("sampler") or "")

    @property
    def overrides(self) -> list[str]:
        """What all its trials share."""
        found = self.settings.get("overrides")
        return [str(text) for text in found] if isinstance(found, list) else []

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Code, packages, machine and command of its start."""
        return _mapping(self.settings.get("provenance"))

    @property
    def baseline(self) -> Mapping[str, Any]:
        """The base configuration, with no dial turned; empty where an older version began the sweep."""
        return _mapping(self.settings.get("baseline"))

    @property
    def dials(self) -> list[str]:
        """The names of its dials, in the order of the space."""
        space = self.settings.get("space")
        listed = [entry.get("dial") for entry in space if isinstance(entry, dict)] if isinstance(space, list) else []
        seen = [name for trial in self.trials for name in trial.point]
        return list(dict.fromkeys([str(name) for name in listed if name] + seen))

    @property
    def choices(self) -> dict[str, list[Any]]:
        """The labels of its finite dials, in the order of the space."""
        space = self.settings.get("space")
        entries = [entry for entry in space if isinstance(entry, dict)] if isinstance(space, list) else []
        return {str(e.get("dial")): e["choices"] for e in entries if isinstance(e.get("choices"), list)}

    @cached_property
    def ranked(self) -> list[TrialView]:
        """The finished trials with an objective, best first; of two equal ones the earlier first."""
        finished = [trial for trial in self.trials if trial.objective is not None]
        return sorted(finished, key=lambda trial: (self.sign * (trial.objective or 0.0), trial.number))

    @cached_property
    def standings(self) -> list[Standing]:
        """Its points, best first; those first that were confirmed on other seeds, or are on the Pareto front."""
        return standings(self.trials, self.direction, None if self.compares else self.race, self.front)

    @property
    def compares(self) -> bool:
        """Whether it turns one factor at a time, so that every point runs on the same seeds and nothing is chosen."""
        return self.sampler == "one_factor"

    @cached_property
    def race(self) -> Race | None:
        """Its points on several seeds; None where it has but one."""
        seeds, leaders = (_whole(self._search.get(name)) for name in ("seeds", "leaders"))
        seed = _whole(self.baseline.get("seed"))
        return race_of(self.trials, self.direction, build_replication(self.sampler, seed, seeds, leaders))

    @cached_property
    def comparison(self) -> Comparison | None:
        """What each turn of a dial does; None where it does not turn one factor at a time."""
        if not self.compares or self.race is None:
            return None
        points = {t.number: dict(t.point) for t in self.trials if t.role == "search" and t.state.is_over}
        return compare(points, self.race.alive, -self.sign)

    @property
    def further(self) -> dict[str, str]:
        """Its objectives beside the first one, with their directions."""
        return {str(name): str(direction) for name, direction in _mapping(self._search.get("further")).items()}

    @cached_property
    def front(self) -> list[int]:
        """The numbers of the trials that no other equals or beats in all objectives; none where there is but one."""
        if not self.further:
            return []
        signs = [-self.sign, *signs_of(self.further)]
        known = {
            t.number: (t.objective or 0.0, *more) for t in self.ranked if (more := t.further(self.further)) is not None
        }
        return pareto_front(known, signs)

    @property
    def best(self) -> TrialView | None:
        """The trial that found the best point."""
        return self.standings[0].first if self.standings else None

    @property
    def gpu_hours(self) -> float:
        """What it has cost so far."""
        return math.fsum(trial.gpu_seconds for trial in self.trials) / 3600

    def count(self, *states: State) -> int:
        """How many trials are in one of these states."""
        return sum(trial.state in states for trial in self.trials)

    def failures(self) -> Counter[str]:
        """Failed trials by class."""
        return Counter(trial.failure_class for trial in self.trials if trial.state is State.FAILED)

    def trial(self, wanted: str | int) -> TrialView:
        """A trial by its number, its folder's name, or the head of its experiment id; the winner by ``best``.

        Raises UserError where there is none, or several.
        """
        text = str(wanted).strip().rstrip("/")
        if text == BEST:
            return self._winner()
        if text.isdecimal() and len(text) < 6:
            found = [trial for trial in self.trials if trial.number == int(text)]
        else:
            head = text.rsplit("/", 1)[-1]
            found = [
                trial for trial in self.trials if head and (trial.name == head or trial.experiment.startswith(head))
            ]
        if len(found) != 1:
            raise UserError(
                f"{text}: {self.name} has {'no such trial' if not found else 'several such trials'}. {self._instead()}"
            )
        return found[0]

    @cached_property
    def invalid(self) -> list[InvalidPoints]:
        """The points that rules pruned, by rule, most first."""
        return read_invalid(self.path)

    @property
    def _search(self) -> Mapping[str, Any]:
        return _mapping(self.settings.get("search"))

    def _winner(self) -> TrialView:
        if self.best is None:
            raise UserError(f"{self.name} has no finished trial yet, so none is the best. {self._instead()}")
        return self.best

    def _instead(self) -> str:
        if not self.trials:
            return "It has started none yet."
        first, last = self.trials[0].number, self.trials[-1].number
        ways = [f"its number ({first} to {last})", f"its folder's name ({self.trials[-1].name})"]
        return f"Name one by {', '.join(ways)} or {BEST}." if self.best else f"Name one by {' or '.join(ways)}."


def read_sweep(sweep: SweepFolder | Path) -> SweepView:
    """The sweep in a folder, now.

    Raises UserError where the folder holds no sweep, or one whose sweep.yaml is damaged.
    """
    folder = sweep if isinstance(sweep, SweepFolder) else SweepFolder(sweep.resolve())
    settings = folder.settings()
    if settings is None:
        raise UserError(f"{folder.path} is no sweep: it has no sweep.yaml. Name a folder under outputs/.")
    controller = _controller(folder.path / paths.LEASE)
    trials = [read_trial(trial, bool(controller)) for trial in folder.trials()]
    return SweepView(folder.path, settings, trials, SweepProgress.read(folder.path), folder.prepared(), controller)


def open_sweep(named: str | None, outputs: Path) -> SweepView:
    """The sweep that a person means, now: a name under ``outputs``, a path, or None for the newest there."""
    return read_sweep(find_sweep(named, outputs))


def _controller(lease: Path) -> str:
    """Who holds the lease, as far as one look can tell: a process of this machine is asked for, another's is believed."""
    found = read_json(lease)
    if found is None:
        return ""
    pid, host = found.get("pid"), found.get("host")
    if host == socket.gethostname() and not exists(pid):
        return ""
    return f"process {pid} on {host}"


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
