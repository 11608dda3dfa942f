"""Imported by every Python that a user's command starts, because its folder is on PYTHONPATH; does
nothing without a request.

A ``sitecustomize`` of the user's own runs as well. Little is imported here: a script's own
``random.py`` must not be too late.
"""

import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType


def _run_users() -> None:
    """Run the ``sitecustomize`` that Python would have imported without this one."""
    here = os.path.dirname(__file__)  # noqa: PTH120 - pathlib imports more
    spec = importlib.machinery.PathFinder.find_spec(
        "sitecustomize", [folder for folder in sys.path if folder != here]
    )
    if (
        spec is None
        or spec.loader is None
        or os.path.realpath(spec.origin or "") == os.path.realpath(__file__)
    ):
        return
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _enter(module: ModuleType) -> None:
    """Change a module of TRL or transformers that the trial's program has imported."""
    from grposweep.command.inside.trial import change

    change(module, os.environ["GRPOSWEEP_ENTERS"])


_run_users()
_PACKAGE = os.path.dirname(__file__)  # noqa: PTH120 - as above
# A program may start Python with variables of its own choice. So the copy of the package has a file
# that says of which question or trial it is.
if "GRPOSWEEP_TRIAL" not in os.environ and os.path.exists(f"{_PACKAGE}/variables.json"):  # noqa: PTH110 - as above
    import json

    with open(f"{_PACKAGE}/variables.json", encoding="utf-8") as _variables:  # noqa: PTH123 - as above
        os.environ.update(json.load(_variables))
    # again, so that what ends a trial's processes finds it by its variables
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
if os.path.exists(f"{_PACKAGE}/question.json"):  # noqa: PTH110 - as above
    from grposweep.command.inside.probe import install

    install(_PACKAGE)
elif trial := os.environ.get("GRPOSWEEP_TRIAL"):
    # the program's own Python may be older than this package takes
    if sys.version_info >= (3, 11):  # noqa: UP036 - as it says
        from grposweep.command.inside.written import note_written

        note_written(trial)
    if "GRPOSWEEP_ENTERS" in os.environ:
        from grposweep.command.inside.imports import CONFIGS, TRAINERS, after_import
        from grposweep.storage import paths

        open(f"{trial}/{paths.HOOKED}", "w").close()  # noqa: PTH123 - as above
        after_import(dict.fromkeys((*CONFIGS, TRAINERS), _enter))
    elif launch := os.environ.get("GRPOSWEEP_LAUNCH"):
        from grposweep.command.inside.argv import enter

        enter(launch)
