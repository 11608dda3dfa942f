"""The recipe that an external trainer starts from."""

import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Self

from grporecipe.errors import UserError
from grporecipe.fields.recipes import read_recipe
from grporecipe.fields.writing import in_completions
from grporecipe.files import file_stamp
from grporecipe.frameworks.trl.keys import parse_version
from grporecipe.model.framework import FRAMEWORKS, Framework, version_of
from grporecipe.model.recipe import Recipe
from grporecipe.model.setting import ROWS, TRL, Setting, Version
from grporecipe.reading.load import Options, load_recipe
from grposweep.command.ask import Asked
from grposweep.command.asked import ask_base, asked_recipe, own_options
from grposweep.redaction import refuse_secrets
from grposweep.registries import EXTERNAL, asks, is_opaque
from grposweep.schema import Experiment, Trainer

ASKED = "from importlib.metadata import version; print(version('{package}'))"


@lru_cache(maxsize=16)
def _loaded(path: Path, stamp: tuple[int, int] | None, options: Options) -> Recipe:  # noqa: ARG001 - a key of the cache
    """Read a recipe under the program's keys.

    Raises UserError for a recipe of another framework.
    """
    theirs = load_recipe(path, replace(options, framework="auto", version=None))
    refuse_secrets(theirs.config)
    one, other = FRAMEWORKS[theirs.framework], FRAMEWORKS[options.framework]
    if one is other or (one.traits.follows_trl and other.traits.follows_trl):
        return load_recipe(path, options)
    raise UserError(
        f"it is a recipe of {one.name}, whose keys {other.name} does not read. Name a recipe of "
        f"{other.name}, or set the "
        f"trainer whose recipe it is."
    )


@lru_cache(maxsize=16)
def installed_version(python: str, framework: str) -> Version:
    """Return the TRL that an interpreter would import, for frameworks built on TRL; otherwise the
    framework's version.
    """
    known = version_of(framework)
    if not FRAMEWORKS[framework].traits.follows_trl:
        return known
    try:
        asked = [python, "-c", ASKED.format(package="trl")]
        answer = subprocess.run(
            asked, capture_output=True, text=True, errors="replace", check=False, timeout=60
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"trainer.python={python}: it gave no answer in 60 s. Name a Python interpreter "
            "that starts faster."
        ) from error
    except OSError as error:
        raise UserError(
            f"trainer.python={python}: it cannot be started ({error.strerror}). Name a Python "
            "interpreter."
        ) from error
    # a sitecustomize of that environment may print before it
    said = answer.stdout.split()
    return parse_version(said[-1]) if answer.returncode == 0 and said else known


@dataclass(frozen=True)
class Base:
    """What the points of an external trainer start from, read once: its recipe, its numbers, and
    what its command answers.
    """

    trainer: Trainer
    processes: int
    nodes: int = 1
    outputs: str = "outputs"

    @classmethod
    def of(cls, experiment: Experiment) -> Self:
        """Return the base of an experiment's trainer."""
        return cls(
            experiment.trainer,
            experiment.cluster.processes,
            experiment.cluster.nodes,
            experiment.outputs,
        )

    @property
    def framework(self) -> Framework:
        """The framework of the trainer's recipes."""
        return FRAMEWORKS[EXTERNAL[self.trainer.kind].framework]

    @cached_property
    def asked(self) -> Asked:
        """What the command's trainer would get."""
        return ask_base(self.trainer, self.processes, self.nodes, self.outputs)

    @cached_property
    def options(self) -> dict[str, Any]:
        """Those of ``trainer.args`` that are options of the command."""
        return own_options(self.trainer, self.asked)

    @cached_property
    def recipe(self) -> Recipe:
        """The base recipe; empty if there is none.

        Raises UserError if it cannot be read.
        """
        trainer, framework = self.trainer, self.framework.name
        if asks(trainer.kind):
            return asked_recipe(trainer, self.asked, self.processes)
        if is_opaque(trainer.kind):
            return Recipe(framework, TRL, {})
        version = installed_version(trainer.python or sys.executable, framework)
        if trainer.recipe is None:
            return Recipe(framework, version, dict(trainer.args), self.processes)
        path = Path(trainer.recipe)
        try:
            loaded = _loaded(path, file_stamp(path), Options(framework, version, self.processes))
            return (
                replace(loaded, config={**loaded.config, **trainer.args})
                if trainer.args
                else loaded
            )
        except UserError as error:
            # lint's option is no key of a sweep, whose trainer decides whose recipe it is
            program = self.framework.traits.display_name
            advice = (
                f"It is read as a recipe of {program}: set a key of GRPO in it, such as "
                "num_generations."
            )
            said = str(error).replace("Name its framework with --framework if it is one.", advice)
            raise UserError(f"trainer.recipe={trainer.recipe}: {said}") from error

    @cached_property
    def setting(self) -> Setting:
        """The base's numbers with sizes in completions.

        No field counts as set by the user, because a point sets all. What a command's trainer takes
        from data is unknown. So is everything about a program of which only the command is known,
        apart from the length that the user states.
        """
        parsed = read_recipe(self.recipe)
        setting = in_completions(parsed.setting)
        changes: dict[str, Any] = {
            "given": frozenset(),
            "lines": {},
            "processes": self.processes,
            "unknown": frozenset(),
        }
        if is_opaque(self.trainer.kind):
            changes |= {"processes": None, "unknown": frozenset(ROWS) - {"max_steps"}}
        elif asks(self.trainer.kind):
            changes["unknown"] = parsed.unknown | (
                set() if self.recipe.version_source.known else {"version"}
            )
        return setting.replace(changes)
