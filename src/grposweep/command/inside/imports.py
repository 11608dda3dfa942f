"""Call a function on a module right after a program has imported it, whichever module imports it
first.
"""

import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

# the modules that hold a configuration of GRPO, or the base of one that a program derives itself
CONFIGS = {
    "trl.trainer.grpo_config": "GRPOConfig",
    "trl.experimental.async_grpo.async_grpo_config": "AsyncGRPOConfig",
    "transformers.training_args": "TrainingArguments",
}
# the module of the class that all of TRL's trainers derive from
TRAINERS = "transformers.trainer"
Change = Callable[[ModuleType], None]


class AfterImport:
    """Finds the modules named in ``changes`` as usual, and calls their change once they have
    run.
    """

    def __init__(self, changes: Mapping[str, Change]) -> None:
        self.changes = changes

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.changes:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            change = self.changes[name]

            def execute_and_change(module: ModuleType) -> None:
                execute(module)
                change(module)

            spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]  # each spec has a loader of its own
        return spec


def after_import(changes: Mapping[str, Change]) -> None:
    """Have ``changes[name]`` called on each module that is imported from now on."""
    sys.meta_path.insert(0, AfterImport(changes))
