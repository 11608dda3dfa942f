"""The Python interface: judge a recipe, a file or the arguments of a training script, compute a
plan, and estimate memory.

``from grposweep import fit, lint, plan`` is the same.
"""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any, TypedDict, cast

from grporecipe.errors import BadSettings, UserError
from grporecipe.fields.memory import describe
from grporecipe.fields.recipes import read_recipe
from grporecipe.files import Json
from grporecipe.linting.command import Target, find_targets
from grporecipe.linting.linter import (
    Diagnostic,
    LintResult,
    RuleSelection,
    lint_recipe,
    select_rules,
)
from grporecipe.linting.output import place_of
from grporecipe.memory.catalog import memory_of
from grporecipe.memory.estimate import Memory, estimate
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.recipe import Recipe
from grporecipe.reading.load import Options, build_recipe, load_recipes

__all__ = ["Diagnostic", "LintResult", "Linted", "PlanNumbers", "fit", "lint", "plan"]

LIBRARIES = ("trl", "transformers")
PLAIN = (str, int, float, bool, type(None))


class PlanNumbers(TypedDict):
    """The numbers of a plan. A number is None if its inputs are unknown or if the batch is
    invalid.
    """

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
        lines = []
        for result in self.recipes:
            file = result.recipe.file or result.recipe.framework
            for problem in result.diagnostics:
                place = f"{file}{place_of(result.recipe, problem.line)}"
                lines.append(f"{place}: {problem.code} {problem.severity}: {problem.message}")
        return "\n".join(lines) or "no problems"

    @property
    def problems(self) -> tuple[Diagnostic, ...]:
        """Return every problem, with code, message, keys, line and fixes."""
        return tuple(chain.from_iterable(result.diagnostics for result in self.recipes))

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        """Return the problems that make training fail."""
        return self._of("error")

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """Return the problems that do not stop the training."""
        return self._of("warning")

    @property
    def notes(self) -> tuple[Diagnostic, ...]:
        """Return what was not checked, and what is without effect by choice."""
        return self._of("note")

    def _of(self, severity: str) -> tuple[Diagnostic, ...]:
        return tuple(problem for problem in self.problems if problem.severity == severity)

    @property
    def ok(self) -> bool:
        """Return whether there is no error."""
        return not self.errors


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
        source: a file (YAML, shell script, Python, notebook), a folder with such files, a mapping
            of keys, or an object such as TRL's GRPOConfig.
        framework: ``trl``, ``open-r1``, ``ms-swift``, ``easyr1``, ``verl``, ...; ``auto`` detects
            it from keys and paths.
        framework_version: the release to judge by; otherwise the one that the file's repository
            states, or the default.
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
    selection = select_rules(select, ignore)
    return Linted(tuple(lint_recipe(recipe, selection) for recipe in _recipes(source, options)))


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
    """Estimate the GPU memory of one rank of a recipe, in bytes: ``low``, ``peak`` and ``high``,
    and the parts of each phase.

    Arguments are those of `lint`. Of several recipes in a source, the first is used.

    Raises:
        UserError: the source cannot be read, or its model's shape is unknown.

    """
    gib = None if gpu is None else memory_of(gpu, "gpu")
    recipe = _first(
        source, Options(framework, None, processes, dataset_size, framework_version, gib, gpu)
    )
    memory = estimate(describe(recipe, read_recipe(recipe).setting))
    if memory is None:
        raise UserError(
            f"{recipe.file or recipe.framework}: the shape of its model is unknown, so its "
            "memory cannot be estimated. Name "
            "a folder with its config.json, or a model that is known (docs/guides/memory.md)."
        )
    return memory


def _recipes(source: Any, options: Options) -> list[Recipe]:
    if options.framework not in ("auto", *FRAMEWORKS):
        raise UserError(
            f"framework {options.framework!r}: grposweep reads {', '.join(sorted(FRAMEWORKS))}."
        )
    if isinstance(source, (str, Path)):
        targets = find_targets([Path(source)])
        return list(chain.from_iterable(_recipes_of(target, options) for target in targets))
    if isinstance(source, Mapping):
        return [build_recipe({str(key): value for key, value in source.items()}, options)]
    if is_dataclass(source) and not isinstance(source, type):
        return [build_recipe(_stated(source), options)]
    raise UserError(
        f"{type(source).__name__}: this is no recipe. Give a file's path, a mapping of keys, or "
        "TRL's GRPOConfig."
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


def _stated(args: Any) -> Json:
    """Return the fields of an object that differ from their defaults, and all fields that a
    subclass adds.
    """
    classes = [one for one in type(args).__mro__ if one.__module__.partition(".")[0] in LIBRARIES]
    known: set[str] = set()
    for one in filter(is_dataclass, classes):
        known.update(field.name for field in fields(one))
    stated: Json = {}
    for field in fields(args):
        value = _plain(getattr(args, field.name, None))
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        if (
            field.init
            and (not known or field.name in known)
            and isinstance(value, (*PLAIN, list, dict))
            and value != _plain(default)
        ):
            stated[field.name] = value
    if classes and stated.get("steps_per_generation") is not None:
        # TRL derives one from the other, and refuses both
        stated.pop("generation_batch_size", None)
    return stated


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value
