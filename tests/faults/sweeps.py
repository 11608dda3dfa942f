"""A sweep whose controller dies at a chosen moment and is started again; what must hold at its end.

Everything is imported and composed once; each controller is a fork, so that a death costs a
fraction of a second.
"""

import gc
import io
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna

from grposweep.cli.composed import composer
from grposweep.config.compose import load_experiment, open_session
from grposweep.config.points import Compose, Points
from grposweep.launchers.local import Local
from grposweep.schema import Experiment
from grposweep.search.early_stopping import CONTINUE, Action, Curve, Decision, State, StoppingPolicy
from grposweep.search.evaluate import validate_points
from grposweep.search.parse import parse_space, split_tokens
from grposweep.search.space import Space
from grposweep.search.validity import Validator
from grposweep.storage import lease
from grposweep.storage.damage import trial_damage
from grposweep.storage.folders import SweepFolder
from grposweep.sweep import _start as start
from grposweep.sweep import run
from grposweep.sweep.validate import validate_sweep
from grposweep.train import attempt
from support import is_running

from .calls import Calls
from .places import Elsewhere, Forks, fork, ledger

EASY = (
    "trainer=fake",
    "name=s",
    "schedule.budget_completions=null",
    "schedule.max_steps=2",
    "schedule.evaluations=1",
)
# of an attempt that is not judged, because it has been judged before
PATIENCE_SECONDS = 30.0
# the fatal moment never came: this run made fewer calls
LATE = "late"


@dataclass(frozen=True)
class Scenario:
    """A command line, and where its attempts run; ``taken`` and ``deaf`` as Elsewhere has them."""

    arguments: Sequence[str]
    outlives: bool = False
    taken: dict[str, int] = field(default_factory=dict)
    deaf: dict[str, int] = field(default_factory=dict)
    slots: int = 1
    stopping: StoppingPolicy = field(default_factory=StoppingPolicy)


@dataclass(frozen=True)
class Stage:
    """A scenario ready to be run again and again."""

    scenario: Scenario
    here: Path
    space: Space
    fixed: list[str]
    points: "Remembered"

    @property
    def sweep(self) -> Path:
        """Where the sweep is."""
        return self.here / "outputs" / "s"

    def controller(self, fatal: int | None = None) -> int:
        """Run one controller as a process of its own; its exit code, or minus the signal that ended
        it.
        """
        return os.waitstatus_to_exitcode(os.waitpid(fork(partial(self._run, fatal)), 0)[1])

    def calls(self) -> list[str]:
        """The calls of the last controller that came to its end."""
        return list(json.loads((self.here / "calls").read_text()))

    def clear(self) -> None:
        """Begin from nothing."""
        shutil.rmtree(self.here, ignore_errors=True)
        (self.here / "state").mkdir(parents=True)

    def _run(self, fatal: int | None) -> int:
        """The command as ``run.py`` gives it, here and now."""
        os.chdir(self.here)
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(io.FileIO(number, "w"), write_through=True) for number in (1, 2)
        )
        calls = Calls(self.sweep, fatal)
        self._stand_in(calls)
        calls.install()
        code = run.run_sweep(validate_sweep(self.space, self.points, self.fixed), self.fixed, "s")
        assert calls.audited == calls.numbered, "something writes past the numbering"
        (self.here / "calls").write_text(json.dumps(calls.made))
        return code

    def _stand_in(self, calls: Calls) -> None:
        """This process only: our launcher, and no waiting."""
        state = self.here / "state"
        place: Any = Elsewhere(state, self.scenario.slots, self.scenario.taken, self.scenario.deaf)
        if not self.scenario.outlives:
            place = Local(Forks(state), [], self.scenario.slots)
        for name in ("submit", "cancel"):
            setattr(place, name, calls.around(name, getattr(place, name)))
        run.build_launcher = lambda *_: place
        run.collect_provenance = lambda _base: {"packages": {}}
        attempt.load_experiment = self.points.read
        if type(self.scenario.stopping) is not StoppingPolicy:
            start.build_policy = lambda *_: self.scenario.stopping
            attempt.Attempt.log = _patient(attempt.Attempt.log)  # type: ignore[method-assign]
        run.POLL_SECONDS = 0.002
        # a beat of the clock's is no call of the sweep's
        lease.HEARTBEAT_SECONDS = 3600.0
        optuna.samplers.TPESampler = EarlyTpe  # type: ignore[misc]


class EarlyTpe(optuna.samplers.TPESampler):
    """Learns after two trials, so that a sweep of a handful is an adaptive one."""

    def __init__(self, **given: Any) -> None:
        super().__init__(n_startup_trials=2, **given)


class ByRate(StoppingPolicy):
    """A way of stopping that decides by the learning rate alone, at the first evaluation: 1e-3
    continues, 2e-3 is paused and promoted at the end, 3e-3 is stopped, 4e-3 is paused and never
    promoted.
    """

    def decide(self, curve: Curve, others: Sequence[Curve], more: bool) -> Decision:  # noqa: ARG002 - the contract's arguments
        """The same whenever it is asked."""
        rate = curve.point["lr"]
        if rate == 1e-3 or len(curve.held_out) > 1:
            return CONTINUE
        return (
            Decision(Action.STOP, "as staged")
            if rate == 3e-3
            else Decision(Action.PAUSE, "as staged")
        )

    def promote(self, curves: Sequence[Curve], more: bool) -> int | None:
        """When nothing else is left to start."""
        waiting = [
            curve.number
            for curve in curves
            if curve.state is State.PAUSED and curve.point["lr"] == 2e-3
        ]
        return waiting[0] if waiting and not more else None

    def predict(self, curves: Sequence[Curve]) -> dict[int, float]:  # noqa: ARG002 - the contract's arguments
        """Nothing."""
        return {}


def _patient(log: Callable[..., None]) -> Callable[..., None]:
    """Attempts that wait at their first evaluation for what the controller makes of it, so that its
    speed is no matter.
    """

    def logged(trial: attempt.Attempt, kind: str, step: int, values: dict[str, Any]) -> None:
        log(trial, kind, step, values)
        if kind == "eval" and step == 2 and trial.experiment.lr > 1e-3:
            until = time.monotonic() + PATIENCE_SECONDS
            while not (trial.folder / "control.json").exists() and time.monotonic() < until:
                time.sleep(0.002)

    return logged


class Remembered(Points):
    """Points that compose each experiment once, for all processes forked from here on."""

    def __init__(self, compose: Compose, overrides: list[str]) -> None:
        super().__init__(compose, overrides)
        self._known: dict[str, Experiment] = {}

    def experiment(self, values: Mapping[str, Any]) -> Experiment:
        name = repr(sorted(values.items()))
        if name not in self._known:
            self._known[name] = super().experiment(values)
        return self._known[name]

    def read(self, config: Path) -> Experiment:
        """An attempt's own way to its experiment."""
        text = config.read_text()
        if text not in self._known:
            self._known[text] = load_experiment(config)
        return self._known[text]


@contextmanager
def staged(scenario: Scenario, here: Path) -> Iterator[Stage]:
    """The scenario with everything imported."""
    with open_session() as session:
        space, fixed = parse_space(list(split_tokens(scenario.arguments)), {}, session.loader)
        stage = Stage(
            scenario, here, space, fixed, Remembered(composer(session.loader, "config"), fixed)
        )
        stage.clear()
        yield stage


def known(sweep: Path) -> list[tuple[Any, ...]]:
    """All that the study knows of each trial, but the times."""
    backend = optuna.storages.journal.JournalFileBackend(str(sweep / "study.journal"))
    study = optuna.load_study(study_name=None, storage=optuna.storages.JournalStorage(backend))
    return [
        (t.number, t.state.name, t.values, t.params, t.user_attrs, t.intermediate_values)
        for t in study.get_trials(deepcopy=False)
    ]


def wrong(stage: Stage, undisturbed: list[tuple[Any, ...]]) -> list[str]:
    """What must not be at the end of a sweep, in words."""
    sweep = stage.sweep
    notes = ledger(stage.here / "state")
    found = [f"another study: {known(sweep)}"] if known(sweep) != undisturbed else []
    started = [trial for trial in undisturbed if not trial[4].get("invalid")]
    folders = [folder.path.name for folder in SweepFolder(sweep).trials()]
    if folders != [f"{trial[0]:04d}-{trial[4]['experiment'][:6]}" for trial in started]:
        found.append(f"lost or duplicated folders: {folders}")
    whole = Counter(line["trial"] for line in notes if line["event"] == "end" and line["code"] == 0)
    if max(whole.values()) > 1 or any(line.get("done") for line in notes):
        found.append(f"trials ran again that had finished: {notes}")
    if together := [line for line in notes if line.get("alongside")]:
        found.append(f"two attempts of a trial at once: {together}")
    if still := {line["pid"] for line in notes} - {
        line["pid"] for line in notes if line["event"] == "end"
    }:
        found += [f"attempt {pid} still runs" for pid in still if is_running(pid)]
    for trial in SweepFolder(sweep).trials():
        # A line that was torn is read past.
        found += [line for line in trial_damage(trial, logs_steps=True) if "torn line" not in line]
        found += (
            [f"an attempt of {trial.path.name} is open, and nothing runs"]
            if trial.open_attempt()
            else []
        )
    if models := [
        path.parent.name
        for path in sweep.glob("trials/*/model")
        if path.parent.name != _best(stage)
    ]:
        found.append(f"models of losers: {models}")
    return found


def _best(stage: Stage) -> str:
    """The folder of the best trial: by its replicates on fresh seeds, where there are any."""
    trials = [trial for trial in known(stage.sweep) if trial[1] == "COMPLETE"]
    again = [(trial[4]["of"], trial[2][0]) for trial in trials if trial[4].get("role") == "confirm"]
    sums = {of: sum(value for other, value in again if other == of) for of, _ in again}
    best = max(trials, key=lambda trial: (sums.get(trial[0], 0.0), trial[2][0], -trial[0]))
    return f"{best[0]:04d}-{best[4]['experiment'][:6]}"


def attempts(stage: Stage) -> list[tuple[str, int]]:
    """Which attempts of which trials have begun, in no order."""
    notes = ledger(stage.here / "state")
    return sorted((line["trial"], line["attempt"]) for line in notes if line["event"] == "begin")


def survive(stage: Stage, fatal: int, undisturbed: list[tuple[Any, ...]], code: int) -> list[str]:
    """Kill the controller at a moment, run the command again, and look; what is wrong then."""
    stage.clear()
    first = stage.controller(fatal)
    if first != -9:
        return [LATE] if first == code else [f"exit code {first} before the fatal moment"]
    last = stage.controller()
    if last != code:
        return [f"exit code {last} after continuing: {(stage.here / 'log').read_text()[-600:]}"]
    return wrong(stage, undisturbed)


Report = dict[int, list[str]]


def survive_all(
    scenario: Scenario, here: Path, choose: Callable[[list[str]], Sequence[int]], workers: int = 2
) -> tuple[list[str], Report]:
    """The calls of an undisturbed sweep, and what was wrong after a death at each chosen one."""
    with staged(scenario, here / "undisturbed") as stage:
        code = stage.controller()
        assert code in (0, 1), (stage.here / "log").read_text()
        undisturbed = known(stage.sweep)
        calls = stage.calls()
        assert not wrong(stage, undisturbed)
        for config in stage.sweep.glob("trials/*/config.yaml"):
            stage.points.read(config)
        gc.freeze()
        validator = Validator(stage.space, stage.points)
        validate_points(validator)
        for trial in undisturbed:
            assert validator.validate(trial[3], trial[4].get("seed")).experiment
        chosen = choose(calls)

        def share(worker: int) -> int:
            own = replace(stage, here=here / str(worker))
            report = {
                fatal: survive(own, fatal, undisturbed, code) for fatal in chosen[worker::workers]
            }
            (here / f"{worker}.json").write_text(json.dumps(report))
            return 0

        for pid in [fork(partial(share, worker)) for worker in range(workers)]:
            os.waitpid(pid, 0)
    found: Report = {}
    for worker in range(workers):
        found |= {int(k): v for k, v in json.loads((here / f"{worker}.json").read_text()).items()}
    return calls, found
