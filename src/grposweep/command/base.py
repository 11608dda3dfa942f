"""The recipe that an external trainer starts from."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from grporecipe.fields.recipes import read_recipe
from grporecipe.fields.writing import in_completions
from grporecipe.files import Json
from grporecipe.model.framework import FRAMEWORKS, Framework
from grporecipe.model.recipe import Recipe
from grporecipe.model.setting import ROWS, TRL, Setting
from grposweep.command._launched import find_launch, with_args
from grposweep.command.ask import Asked
from grposweep.command.asked import ask_base, asked_recipe, own_options
from grposweep.process.redaction import refuse_secrets
from grposweep.schema import Experiment, Trainer
from grposweep.schema.registries import is_external, is_opaque


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

    @cached_property
    def launch(self) -> Recipe | None:
        """The launch of a framework with ``trainer.args`` in it; None if the command has to be
        asked.
        """
        launch = find_launch(self.trainer)
        return None if launch is None else with_args(launch, self.trainer)

    @property
    def is_asked(self) -> bool:
        """Whether the command is asked what its trainer gets."""
        return not is_opaque(self.trainer) and self.launch is None

    @property
    def framework(self) -> Framework:
        """The framework of the program's recipes."""
        return FRAMEWORKS[self.recipe.framework]

    @cached_property
    def asked(self) -> Asked:
        """What the command's trainer would get."""
        return ask_base(self.trainer, self.processes, self.nodes, self.outputs)

    @cached_property
    def options(self) -> Json:
        """Those of ``trainer.args`` that are options of the command, or keys of its framework."""
        return own_options(self.trainer, self.asked) if self.is_asked else self.trainer.args

    @cached_property
    def recipe(self) -> Recipe:
        """The base recipe; empty if nothing is known of the program."""
        if is_opaque(self.trainer):
            return Recipe("trl", TRL, {})
        if self.launch is None:
            return asked_recipe(self.trainer, self.asked, self.processes)
        refuse_secrets(dict(self.launch.config))
        return replace(self.launch, processes=self.processes)

    @cached_property
    def setting(self) -> Setting:
        """The base's numbers with sizes in completions.

        No field counts as set by the user, because a point sets all. What a command's trainer takes
        from data, or only a running shell knows, is unknown. So is everything about a program of
        which only the command is known, apart from the length that the user states.
        """
        parsed = read_recipe(self.recipe)
        setting = in_completions(parsed.setting)
        changes: Json = {
            "given": frozenset(),
            "lines": {},
            "processes": self.processes,
            "unknown": parsed.unknown,
        }
        if self.launch is None and not self.recipe.version_source.known:
            changes["unknown"] |= {"version"}
        if is_opaque(self.trainer):
            changes |= {"processes": None, "unknown": frozenset(ROWS) - {"max_steps"}}
        return setting.replace(changes)


def is_asked(experiment: Experiment) -> bool:
    """Return whether an experiment's trainer is a command that is asked what its trainer gets."""
    return is_external(experiment.trainer) and Base.of(experiment).is_asked
