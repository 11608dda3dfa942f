"""Sweep any Hydra application: what ``hydra/sweeper=grposweep`` does outside of grposweep's own commands.

The application's Hydra launcher runs the jobs, a batch at a time. Each job writes what it returned to ``results/``. So a job
that ended is never run again, even if its batch, the launcher or this process was killed.
"""

import json
import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import update_wrapper
from itertools import islice
from pathlib import Path
from typing import Any, cast

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from hydra.utils import get_method
from omegaconf import DictConfig, OmegaConf, open_dict
from optuna.trial import FrozenTrial, TrialState

from grposweep.config.compose import DIRECTIONS
from grposweep.errors import ExitCode, UserError
from grposweep.files import append_line, read_json, text_sha256, write_json, write_text
from grposweep.search.journal import Direction
from grposweep.search.parse import override_text, parse_space
from grposweep.search.sampler import ADAPTIVE, ValidPoints, continuous
from grposweep.search.space import Point, Space, freeze
from grposweep.search.study import SweepStudy
from grposweep.storage import paths
from grposweep.storage.lease import Lease
from grposweep.terminal import printable

logger = logging.getLogger(__name__)

SAMPLERS = ("auto", "grid", "tpe", "random")
N_TRIALS = 20  # without a list of points
REPEATED = 3  # jobs in a row that fail in the same way stop the sweep
LISTED = 10_000  # points of a finite space that are tried once the sampler finds no valid one
ASKS = 10  # requests to the sampler, each of many draws, before it counts as exhausted
DEFAULT_DIR = "multirun/${now:%Y-%m-%d}/${now:%H-%M-%S}"  # Hydra's default, which a second command would not find again
IDENTITY = "app_sweep.json"
RESULTS = "results"

Check = Callable[
    [DictConfig], Sequence[str] | str | None
]  # the application's validator: what is wrong with a configuration


class Recorded:
    """The application's function; what a job returned or raised is on disk before the launcher knows.

    Launchers pickle it: a job may run on another machine.
    """

    def __init__(self, function: TaskFunction, results: Path) -> None:
        update_wrapper(self, function)
        self.function, self.results = function, results

    def __call__(self, config: DictConfig) -> Any:
        path = self.results / f"{HydraConfig.get().job.num}.json"
        try:
            returned = self.function(config)
        except Exception as error:
            write_json(path, {"error": f"{type(error).__name__}: {error}"})
            raise
        except SystemExit as error:  # Hydra's launchers would let it end the whole sweep
            if error.code not in (0, None):
                reason = f"it called sys.exit({error.code!r})"
                write_json(path, {"error": reason})
                raise RuntimeError(reason) from error
            returned = None
        write_json(path, {"value": _number(returned), "returned": repr(returned)[:200]})
        return returned


def _number(returned: Any) -> float | None:
    """Return a finite number that a job returned, including scalars of NumPy and torch; None for anything else."""
    try:
        value = float(returned)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Options:
    """The keys of ``hydra.sweeper`` apart from ``params``."""

    sampler: str = "auto"
    n_trials: int | None = None
    n_jobs: int | None = None
    direction: str = "maximize"
    seed: int = 0
    validator: str | None = None

    @classmethod
    def of(cls, keys: Mapping[str, Any]) -> "Options":
        """Raise UserError for a key that the sweeper lacks."""
        known = [field.name for field in fields(cls)]
        for key in keys:
            if key not in known:
                raise UserError(
                    f"hydra.sweeper.{key}: the sweeper has no such key. Set one of params, {', '.join(known)}."
                )
        return cls(**keys)

    def resolved(self, space: Space) -> "Options":
        """Return the options with ``auto`` and None decided.

        Raises UserError for a value that cannot be.
        """
        for key, value, known in (("sampler", self.sampler, SAMPLERS), ("direction", self.direction, DIRECTIONS)):
            if value not in known:
                raise UserError(f"hydra.sweeper.{key}={value}: set one of {', '.join(known)}.")
        for key, count in (("n_trials", self.n_trials), ("n_jobs", self.n_jobs)):
            if count is not None and count < 1:
                raise UserError(f"hydra.sweeper.{key}={count}: this would run no job. Set 1 or more.")
        sampler = ("grid" if space.is_finite else ADAPTIVE) if self.sampler == "auto" else self.sampler
        if sampler == "grid" and not space.is_finite:
            raise UserError(
                f"hydra.sweeper.sampler=grid: {', '.join(continuous(space))} is an interval, which no grid lists. "
                "Give values (a,b,c), or set hydra.sweeper.sampler=tpe."
            )
        trials = self.n_trials if self.n_trials or sampler == "grid" else N_TRIALS
        return replace(self, sampler=sampler, n_trials=trials)


def sweep_app(
    context: HydraContext, task_function: TaskFunction, config: DictConfig,
    arguments: list[str], params: Mapping[str, Any], options: Mapping[str, Any],
) -> int:  # fmt: skip
    """Run or resume an application's sweep, and return the exit code. Hydra's errors of the application's conf pass through."""
    try:
        space, fixed = parse_space(arguments, params, context.config_loader)
        chosen = Options.of(options).resolved(space)
        folder = open_folder(config, space, [text for text in fixed if text not in arguments], chosen)
        with Lease(folder / paths.LEASE, "hydra.sweep.dir=..."):
            function = Recorded(task_function, folder / RESULTS)
            launcher = Plugins.instance().instantiate_launcher(
                hydra_context=context, task_function=function, config=config
            )
            points = Points(context.config_loader, config, space, [*fixed], _keys(arguments), chosen.validator)
            return AppSweep(folder, points, launcher, chosen, batch_size(config, chosen)).run()
    except UserError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return ExitCode.BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted; run the same command to continue", file=sys.stderr)
        return ExitCode.INTERRUPTED


def open_folder(config: DictConfig, space: Space, fixed: list[str], options: Options) -> Path:
    """Return the sweep's folder, new or existing. Hydra's default is replaced by one that the same command finds again.

    ``fixed``: the single values in ``hydra.sweeper.params``, which ``config`` lacks (it has the typed ones).
    Raises UserError for a folder with another sweep.
    """
    plain = cast("dict[str, Any]", OmegaConf.to_container(config))
    hydra = plain.pop("hydra")
    asked = [space.describe(), options.direction, hydra["job"]["config_name"], plain]
    asked += [sorted(fixed)] if fixed else []  # folders of sweeps without such values keep their identity
    identity = text_sha256(json.dumps(asked, default=str, sort_keys=True))
    if hydra["sweep"]["dir"] == DEFAULT_DIR:
        config.hydra.sweep.dir = f"multirun/{config.hydra.job.name}-{identity[:8]}"
        config.hydra.overrides.hydra.append(f"hydra.sweep.dir={override_text(config.hydra.sweep.dir)}")
    folder = Path(str(config.hydra.sweep.dir)).resolve()
    (folder / RESULTS).mkdir(parents=True, exist_ok=True)
    if (read_json(folder / IDENTITY) or {"identity": identity}).get("identity") != identity:
        raise UserError(
            f"hydra.sweep.dir={folder} holds a sweep of other parameters, or of another configuration. Its results would be "
            "mixed with these. Set another hydra.sweep.dir."
        )
    write_json(folder / IDENTITY, {"identity": identity, "space": space.describe()})
    OmegaConf.save(config, folder / "multirun.yaml")
    return folder


def batch_size(config: DictConfig, options: Options) -> int | None:
    """Return how many jobs the launcher gets at once; None for all.

    Hydra's basic launcher runs them one by one, and TPE learns from each.
    """
    is_basic = str(config.hydra.launcher.get("_target_")).endswith(".BasicLauncher")
    return options.n_jobs or (1 if is_basic or options.sampler == ADAPTIVE else None)


def _keys(arguments: list[str]) -> dict[str, str]:
    """Return each typed parameter's name with its ``+``, which a space does not keep."""
    typed = [argument.partition("=")[0] for argument in arguments]
    return {key.lstrip("+"): key for key in typed}


class Points:
    """The overrides of each point, and the findings of the application's validator."""

    def __init__(
        self, loader: ConfigLoader, config: DictConfig, space: Space, fixed: list[str], keys: Mapping[str, str],
        validator: str | None,
    ) -> None:  # fmt: skip
        """Raise UserError for a validator that cannot be imported."""
        self.space = space
        self._loader, self._config, self._fixed, self._keys = loader, config, fixed, keys
        self._validator = validator
        self._check = None if validator is None else _imported(validator)
        self._judged: dict[object, list[str]] = {}

    def overrides(self, point: Point) -> list[str]:
        """Return a job's overrides."""
        values = self.space.values(point).items()
        return [*self._fixed, *(f"{self._keys.get(name, name)}={override_text(value)}" for name, value in values)]

    def compose(self, point: Point) -> DictConfig:
        """Return the configuration of a job, Hydra's section included. Raises Hydra's errors."""
        return self._loader.load_sweep_config(self._config, self.overrides(point))

    def problems(self, point: Point) -> list[str]:
        """Return the validator's findings on a point. Raises Hydra's errors for one that cannot be composed."""
        key = freeze(point)
        if key not in self._judged:
            config = self.compose(point)
            with open_dict(config):
                del config["hydra"]
            try:
                found = None if self._check is None else self._check(config)
            except Exception as error:
                error.add_note(f"hydra.sweeper.validator={self._validator} raised this at {text_of(point)}")
                raise
            self._judged[key] = [found] if isinstance(found, str) else [str(problem) for problem in found or ()]
        return self._judged[key]

    def folder_name(self, point: Point, job: int) -> str:
        """Return the folder of a job below the sweep's."""
        config = self.compose(point)
        with open_dict(config):
            config.hydra.job.num, config.hydra.job.id = job, str(job)
        return str(config.hydra.sweep.subdir)


def _imported(name: str) -> Check:
    try:
        return cast(Check, get_method(name))
    except Exception as error:  # importing a module of the application may raise any exception
        reason = str(error).strip().splitlines()[0].removesuffix(":")
        raise UserError(
            f"hydra.sweeper.validator={name}: {reason}. Name a function that can be imported, as package.module.function."
        ) from error


def text_of(point: Point) -> str:
    """Return a point as it is typed."""
    return " ".join(f"{name}={label}" for name, label in point.items()) or "the configuration as it is"


class AppSweep:
    """One run of a sweep's command: record what earlier runs left, then ask, launch and record until nothing is left.

    A job is a trial of the study. Its attribute ``origin`` is the number of the first job at its point, whose folder it has.
    """

    def __init__(self, folder: Path, points: Points, launcher: Launcher, options: Options, size: int | None) -> None:
        self.folder, self.points, self.launcher, self.options, self.size = folder, points, launcher, options, size
        self.study = SweepStudy(folder / paths.JOURNAL, points.space, cast(Direction, options.direction))
        self.invalid = set[object]()  # the sampler asks for the same points again and again
        self.reasons = set[str]()  # why points are invalid, as far as it was logged
        self.failures: list[str] = []  # since the last job that finished
        (folder / paths.INVALID).unlink(missing_ok=True)

    @property
    def jobs(self) -> dict[int, FrozenTrial]:
        """The newest job at each point, by the number of the first one there."""
        return {trial.user_attrs["origin"]: trial for trial in self.study.started}

    @property
    def is_halted(self) -> bool:
        """Return whether the last failures in a row are the same."""
        return len(self.failures) >= REPEATED and len(set(self.failures[-REPEATED:])) == 1

    def run(self) -> int:
        """Work until nothing is left, and return the exit code."""
        again, new = self._unfinished(), self._new_points()
        while batch := self._batch(again, new):
            self._launch(batch)
            if self.is_halted:
                logger.error(
                    "stopped: %d jobs in a row failed in the same way. The same command tries them again.", REPEATED
                )
                break
        return self._report()

    def _unfinished(self) -> list[tuple[Point, int]]:
        """Record jobs that ended unseen. Return the points and first jobs of all others that did not finish."""
        for trial in self.jobs.values():
            if trial.state == TrialState.RUNNING:
                self._record(trial.number, "it was interrupted")
        self.failures.clear()  # of earlier runs
        failed = {origin: trial for origin, trial in self.jobs.items() if trial.state == TrialState.FAIL}
        return [
            (dict(trial.params), origin) for origin, trial in failed.items() if not self.points.problems(trial.params)
        ]

    def _new_points(self) -> Iterator[Point]:
        """Yield valid points that no job has had, each once the one before is in the study."""
        known = {freeze(trial.params) for trial in self.jobs.values()}
        listed = (point for point in self.points.space.finite_points() if freeze(point) not in known)
        while self.options.n_trials is None or len(self.jobs) < self.options.n_trials:
            if self.options.sampler == "grid":
                point = next((point for point in listed if self._is_valid(point)), None)
            else:
                point = self._ask()
            if point is None:
                return
            yield point

    def _ask(self) -> Point | None:
        """Return a valid point of the sampler; None if it finds none."""
        space = self.points.space
        finite = tuple(islice(space.finite_points(), LISTED)) if space.is_finite else ()
        valid = ValidPoints(self._is_valid, finite)
        asks = range(1 if space.is_finite else ASKS)
        found = (self.study.ask(valid, self.options.sampler, self.options.seed, ahead=ahead) for ahead in asks)
        return next((point for point in found if point is not None), None)

    def _is_valid(self, point: Point) -> bool:
        problems = self.points.problems(point)
        if problems and (key := freeze(point)) not in self.invalid:
            self.invalid.add(key)
            append_line(self.folder / paths.INVALID, {"point": point, "problems": problems})
            said = printable("; ".join(problems))
            if said not in self.reasons:  # an interval has endless points that are invalid for one reason
                self.reasons.add(said)
                logger.info("invalid: %s: %s (others like it are only in %s)", text_of(point), said, paths.INVALID)
        return not problems

    def _batch(self, again: list[tuple[Point, int]], new: Iterator[Point]) -> list[int]:
        """Start the next jobs in the study; return their trials' numbers."""
        batch: list[int] = []
        while self.size is None or len(batch) < self.size:
            point, origin = again.pop(0) if again else (next(new, None), None)
            if point is None:
                break
            number = len(self.study.trials)
            batch.append(self.study.add(point, {"origin": number if origin is None else origin}))
        return batch

    def _launch(self, batch: list[int]) -> None:
        """Run a batch of jobs to its end, and record it."""
        failure = "it left no result"
        try:
            self.launcher.launch([self._overrides(number) for number in batch], initial_job_idx=batch[0])
        except Exception as error:  # noqa: BLE001 - a launcher may raise anything for a job that was killed; the others count
            failure = f"the launcher failed ({type(error).__name__}: {error})"
        for number in batch:
            self._record(number, failure)

    def _overrides(self, number: int) -> list[str]:
        trial = self.study.trials[number]
        point, origin = dict(trial.params), trial.user_attrs["origin"]
        same = (
            [f"hydra.sweep.subdir={override_text(self.points.folder_name(point, origin))}"] if origin != number else []
        )
        return [*self.points.overrides(point), *same]

    def _record(self, number: int, failure: str) -> None:
        """Record a job's result in the study; ``failure`` is the reason for a job without one."""
        found = read_json(self.folder / RESULTS / f"{number}.json") or {"error": failure}
        value, error = found.get("value"), found.get("error")
        if error is None and value is None and self.options.sampler == ADAPTIVE:
            error = f"it returned {found.get('returned')}, and sampler=tpe needs a finite number"
        trial = self.study.trials[number]
        point, origin = text_of(trial.params), trial.user_attrs["origin"]
        job = f"job {number}" if origin == number else f"job {number} (job {origin} again)"  # whose folder it has
        if error is not None:
            self.failures.append(str(error))
            where = self._folder_of(trial)
            logger.error("%s failed: %s: %s (in %s)", job, point, printable(str(error)), where)
            self.study.tell(number, None)
            return
        self.failures.clear()
        logger.info("%s finished: %s: %s", job, point, found.get("returned"))
        self.study.tell(number, value, pruned=value is None)  # Optuna has no finished trial without a value

    def _folder_of(self, trial: FrozenTrial) -> Path:
        return self.folder / self.points.folder_name(dict(trial.params), trial.user_attrs["origin"])

    def _report(self) -> int:
        """Log the sweep's result, write Hydra's usual file of the best point, and return the exit code."""
        jobs, best = self.jobs.values(), self.study.best
        finished = sum(trial.state in (TrialState.COMPLETE, TrialState.PRUNED) for trial in jobs)
        logger.info(
            "%d of %d jobs finished, %d points were invalid; results in %s",
            finished,
            len(jobs),
            len(self.invalid),
            self.folder,
        )
        if best is not None:
            job = best.user_attrs["origin"]  # whose folder it has
            logger.info("best: job %d: %s: %s (in %s)", job, text_of(best.params), best.value, self._folder_of(best))
            content = {
                "name": "grposweep",
                "best_params": best.params,
                "best_value": best.value,
                "best_job": job,
            }
            write_text(self.folder / "optimization_results.yaml", OmegaConf.to_yaml(OmegaConf.create(content)))
        return ExitCode.FAILED if self.is_halted or not finished else ExitCode.FINISHED
