"""Imported by every Python that a user's command starts, because its folder is on PYTHONPATH; does nothing without a request.

A ``sitecustomize`` of the user's own runs as well.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path


def _run_users() -> None:
    """Run the ``sitecustomize`` that Python would have imported without this one."""
    here = str(Path(__file__).parent)
    others = [folder for folder in sys.path if folder != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None or os.path.realpath(spec.origin or "") == os.path.realpath(__file__):
        return
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


_run_users()
if os.environ.get("GRPOSWEEP_ASK"):
    from grposweep.train.hook.probe import install

    install(os.environ["GRPOSWEEP_ASK"])
elif os.environ.get("GRPOSWEEP_ENTERS"):
    from grposweep.train.hook.trial import install

    install(os.environ["GRPOSWEEP_ENTERS"])
