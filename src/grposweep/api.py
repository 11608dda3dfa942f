"""The Python interface: judge a recipe, a file or the arguments of a training script, compute a plan, and run a sweep.

``from grposweep import lint, plan, sweep, validate`` is the same.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, TypedDict, cast

from grporecipe.errors import BadSettings, ExitCode, UserError
from grporecipe.fields.memory import describe
from grporecipe.fields.recipes import read_recipe
from grporecipe.frameworks.trl.keys import installed, releases
from grporecipe.linting.command import Target, find_targets
from grporecipe.linting.linter import Diagnostic, LintResult, RuleSelection, lint_recipe, select_rules
from grporecipe.linting.output import place_of
from grporecipe.memory.catalog import memory_of
from grporecipe.memory.estimate import Memory, estimate
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.recipe import Recipe
from grporecipe.reading.load import Options, build_recipe, load_recipes
from grposweep.process import die_with, run_command

if TYPE_CHECKING:
    from grposweep.report.frames import LoadedSweep

__all__ = [
    "Diagnostic", "InvalidRecipe", "LintResult", "Linted", "PlanNumbers", "SweepFailed", "fit", "lint", "plan", "sweep",
    "validate",
]  # fmt: skip

LIBRARIES = ("trl", "transformers")
PLAIN = (str, int, float, bool, type(None))


class PlanNumbers(TypedDict):
    """The numbers of a plan. A number is None if its inputs are unknown or if the batch is invalid."""

    completions_per_rollout: int | None
    prompts_per_rollout: int | None
    completions_per_step: int | None
    prompts_per_step: float | None
    steps_per_rollout: float | None
    rollouts_per_epoch: int | None
    dropped_prompts: int | None
    total_steps: int | None


@dataclass(frozen=True)
class Linted:
    """What the rules found in each recipe of a source. Most sources hold one recipe."""

    recipes: tuple[LintResult, ...]

    def __str__(self) -> str:
        """Return one line for each problem: place, code, severity and message."""
        lines = [
            f"{result.recipe.file or result.recipe.framework}{place_of(result.recipe, problem.line)}: "
            f"{problem.code} {problem.severity}: {problem.message}"
            for result in self.recipes
            for problem in result.diagnostics
        ]
        return "\n".join(lines) or "no problems"

    @property
    def problems(self) -> tuple[Diagnostic, ...]:
        """Return every problem, with code, message, keys, line and fixes."""
        return tuple(problem for result in self.recipes for problem in result.diagnostics)

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        """Return the problems that make training fail."""
        return tuple(problem for problem in self.problems if problem.severity == "error")

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """Return the problems that do not stop the training."""
        return tuple(problem for problem in self.problems if problem.severity == "warning")

    @property
    def notes(self) -> tuple[Diagnostic, ...]:
        """Return what was not checked, and what is without effect by choice."""
        return tuple(problem for problem in self.problems if problem.severity == "note")

    @property
    def ok(self) -> bool:
        """Return whether there is no error."""
        return not self.errors


class InvalidRecipe(ValueError):
    """Raised for arguments with which training cannot work. The message has a line for each problem; ``problems`` holds them."""

    def __init__(self, problems: tuple[Diagnostic, ...]) -> None:
        self.problems = problems
        super().__init__("\n".join(f"{problem.code} {problem.message}" for problem in problems))


def lint(
    source: Any,
    *,
    framework: str = "auto",
    framework_version: str | None = None,
    processes: int | None = None,
    dataset_size: int | None = None,
    gpu: str | None = None,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
) -> Linted:
    """Judge a recipe as ``grposweep lint`` does.

    Args:
        source: a file (YAML, shell script, Python, notebook), a folder with such files, a mapping of keys, or an object such as
            TRL's GRPOConfig.
        framework: ``trl``, ``open-r1``, ``ms-swift``, ``easyr1``, ``verl``, ...; ``auto`` detects it from keys and paths.
        framework_version: the release to judge by; otherwise the one that the file's repository states, or the default.
        processes: training processes, without those of a vLLM server.
        dataset_size: training prompts.
        gpu: name of a GPU (``A100``), on which memory is judged.
        select: only these rules or families (``GB101``, ``GB``).
        ignore: rules or families to leave out.

    Raises:
        UserError: the source cannot be read, or an option names something that does not exist.

    """
    gib = None if gpu is None else memory_of(gpu, "gpu")
    options = Options(framework, None, processes, dataset_size, framework_version, gib, gpu)
    return _lint(source, options, select_rules(select, ignore))


def plan(
    source: Any,
    *,
    framework: str = "auto",
    framework_version: str | None = None,
    processes: int | None = None,
    dataset_size: int | None = None,
) -> PlanNumbers:
    """Return the numbers that follow from a recipe: completions, prompts and steps.

    Arguments are those of `lint`. Of several recipes in a source, the first is used.

    Raises:
        UserError: the source cannot be read.

    """
    options = Options(framework, None, processes, dataset_size, framework_version)
    return cast(PlanNumbers, lint_recipe(_first(source, options), RuleSelection()).plan)


def fit(
    source: Any,
    *,
    gpu: str | None = None,
    framework: str = "auto",
    framework_version: str | None = None,
    processes: int | None = None,
    dataset_size: int | None = None,
) -> Memory:
    """Estimate the GPU memory of one rank of a recipe, in bytes: ``low``, ``peak`` and ``high``, and the parts of each phase.

    Arguments are those of `lint`. Of several recipes in a source, the first is used.

    Raises:
        UserError: the source cannot be read, or its model's shape is unknown.

    """
    gib = None if gpu is None else memory_of(gpu, "gpu")
    recipe = _first(source, Options(framework, None, processes, dataset_size, framework_version, gib, gpu))
    memory = estimate(describe(recipe, read_recipe(recipe).setting))
    if memory is None:
        raise UserError(
            f"{recipe.file or recipe.framework}: the shape of its model is unknown, so its memory cannot be estimated. Name "
            "a folder with its config.json, or a model that is known (docs/guides/memory.md)."
        )
    return memory


def validate(
    args: Any,
    *,
    processes: int | None = None,
    framework: str = "auto",
    framework_version: str | None = None,
    dataset_size: int | None = None,
    ignore: Iterable[str] = (),
) -> tuple[Diagnostic, ...]:
    """Check the arguments of a training script before it loads a model, and return the warnings.

    Args:
        args: TRL's GRPOConfig, another dataclass, or a mapping of keys.
        processes: training processes; otherwise ``WORLD_SIZE`` of the environment, which torchrun and accelerate set.
        framework: as in `lint`.
        framework_version: the release to judge by; otherwise the TRL that is installed.
        dataset_size: training prompts.
        ignore: rules or families to leave out.

    Raises:
        InvalidRecipe: training cannot work.
        UserError: an option names something that does not exist.

    """
    world = os.environ.get("WORLD_SIZE", "")
    count = processes if processes is not None or not world.isdigit() else max(int(world), 1)
    installed = framework_version or (_installed() if framework in ("auto", "trl") else None)
    result = _lint(args, Options(framework, None, count, dataset_size, installed), select_rules((), ignore))
    if result.errors:
        raise InvalidRecipe(result.errors)
    return result.warnings


class SweepFailed(RuntimeError):
    """Raised for a sweep that ended without a result or stopped itself. ``sweep`` is what it left, or None."""

    def __init__(self, message: str, sweep: "LoadedSweep | None" = None) -> None:
        self.sweep = sweep
        super().__init__(message)


def sweep(
    values: Mapping[str, Any],
    *,
    name: str | None = None,
    outputs: str | Path = "outputs",
    config_dir: str | Path | None = None,
) -> "LoadedSweep":
    """Run, resume or extend a sweep as ``grposweep sweep`` does, and load it.

    The sweep runs in its own process, and its lines are printed here. Ctrl-C (or the kernel's interrupt) stops the trials at
    their next rollout boundary; a second Ctrl-C ends them at once. The same call resumes the sweep.

    Args:
        values: configuration keys and groups. A list holds the values to compare (``"lr": [1e-5, 1e-4]``), text is in the
            syntax of sweep files (``"lr": "tag(log, interval(1e-5, 1e-3))"``), anything else is one value.
        name: the folder under ``outputs``; otherwise it is derived from what is swept.
        outputs: the folder that holds sweeps.
        config_dir: your own copy of conf/ (``grposweep init``).

    Raises:
        UserError: the sweep cannot start, or nothing is to be run; the message is that of the command.
        SweepFailed: the sweep ended without a result.
        KeyboardInterrupt: the sweep was interrupted.

    """
    if not isinstance(values, Mapping) or not values:
        raise UserError(
            f"sweep({values!r:.80}): the argument must be a mapping with at least one configuration key. Set the values "
            'to compare as a list: sweep({"lr": [1e-5, 1e-4], "model": "qwen3_0_6b"}). Or name a study: '
            'sweep({"sweeps": "lr_batch"}).'
        )
    for key in ("outputs", "name"):
        if key in values:
            raise UserError(f"{key} is a separate argument: sweep(..., {key}=...). Leave it out of the values.")
    if values.get("cluster.controller") == "job":
        raise UserError(
            "cluster.controller=job: sweep() waits for the results, and the command ends when the job is submitted. Leave it out."
        )
    given = {**values, "outputs": Path(outputs)} | ({} if name is None else {"name": [name]})
    words = [f"{key}={_words(key, value)}" for key, value in given.items()]
    words += [] if config_dir is None else ["--config-dir", str(config_dir)]
    with TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        code, last = _run([sys.executable, *run_command(), "-m", *words], errors)
        errors.seek(0)
        message = errors.read(MOST_READ).strip()
    if code == ExitCode.BAD_INPUT:
        raise UserError(message.removeprefix("error: "))
    if code == ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    from grposweep.report.frames import load_sweep  # Hydra, which lint does not need

    loaded = load_sweep(last) if last is not None else None
    if code or loaded is None:
        raise SweepFailed(message or f"the sweep ended with exit code {code}; its output above says why", loaded)
    return loaded


MOST_READ = 1 << 16  # characters of what a sweep writes to its error stream
RESULTS = "results in "  # begins the line that names the sweep's folder


def _words(key: str, value: Any) -> str:
    """Return a value in Hydra's override syntax: text unchanged, a list as the values to compare."""
    from grposweep.config.compose import override_text

    plain = _plain(value)
    if isinstance(value, str) or not isinstance(plain, list):
        return value if isinstance(value, str) else override_text(plain)
    if not plain:
        raise UserError(f"{key}=[]: the list has no value to compare. Give at least one.")
    return ",".join(map(override_text, plain))


def _plain(value: Any) -> Any:
    """Return a value without numpy's types, tuples and paths."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    value = value.tolist() if hasattr(value, "tolist") else value  # numpy's arrays and numbers
    return [_plain(item) for item in value] if isinstance(value, list | tuple | range) else value


def _run(command: list[str], errors: IO[str]) -> tuple[int, str | None]:
    """Run a sweep's command and print its lines. Return its exit code and the last folder that it names.

    The command runs in its own session: a Ctrl-C is passed on, so it must not arrive twice. It ends with this process.
    """
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, text=True, encoding="utf-8",
        errors="replace", start_new_session=True, preexec_fn=partial(die_with, os.getpid()),
    )  # fmt: skip
    folder: str | None = None
    assert process.stdout is not None  # a pipe
    with process:
        while True:
            try:
                for line in process.stdout:
                    print(line, end="", flush=True)
                    folder = line.removeprefix(RESULTS).rstrip("\n") if line.startswith(RESULTS) else folder
                return process.wait(), folder
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)
            except BaseException:
                process.send_signal(signal.SIGTERM)
                raise


def _lint(source: Any, options: Options, selection: RuleSelection) -> Linted:
    return Linted(tuple(lint_recipe(recipe, selection) for recipe in _recipes(source, options)))


def _recipes(source: Any, options: Options) -> list[Recipe]:
    if options.framework not in ("auto", *FRAMEWORKS):
        raise UserError(f"framework {options.framework!r}: grposweep reads {', '.join(sorted(FRAMEWORKS))}.")
    if isinstance(source, (str, Path)):
        return [recipe for target in find_targets([Path(source)]) for recipe in _recipes_of(target, options)]
    if isinstance(source, Mapping):
        return [build_recipe({str(key): value for key, value in source.items()}, options)]
    if is_dataclass(source) and not isinstance(source, type):
        return [build_recipe(_stated(source), options)]
    raise UserError(
        f"{type(source).__name__}: this is no recipe. Give a file's path, a mapping of keys, or TRL's GRPOConfig."
    )


def _first(source: Any, options: Options) -> Recipe:
    recipes = _recipes(source, options)
    if not recipes:
        raise UserError(f"{source}: this folder has no recipe. Name a file.")
    return recipes[0]


def _recipes_of(target: Target, options: Options) -> list[Recipe]:
    """Return the recipes in a file; of a folder's file that is none, nothing."""
    try:
        return load_recipes(target.path, options)
    except UserError as error:
        if target.in_folder and not isinstance(error, BadSettings):
            return []
        raise type(error)(f"{target.path}: {error}") from None


def _stated(args: Any) -> dict[str, Any]:
    """Return the fields of an object that differ from their defaults, and all fields that a subclass adds."""
    classes = [one for one in type(args).__mro__ if one.__module__.partition(".")[0] in LIBRARIES]
    known = {field.name for one in classes if is_dataclass(one) for field in fields(one)}
    stated: dict[str, Any] = {}
    for field in fields(args):
        value = getattr(args, field.name, None)
        value = value.value if isinstance(value, Enum) else value
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        default = default.value if isinstance(default, Enum) else default
        if (
            field.init
            and (not known or field.name in known)
            and isinstance(value, (*PLAIN, list, dict))
            and value != default
        ):
            stated[field.name] = value
    if classes and stated.get("steps_per_generation") is not None:
        stated.pop("generation_batch_size", None)  # TRL derives one from the other, and refuses both
    return stated


def _installed() -> str | None:
    """Return the installed TRL, or the newest known release if that is older."""
    version = installed()
    return None if version is None else ".".join(map(str, min(version, releases()[-1])))
