"""The Callback in an environment that is not ours."""

import subprocess
import sys

from support import PROJECT, environment

WITHOUT_PACKAGES = """
import sys, types
names = ("TrainerCallback", "TrainerControl", "TrainerState", "TrainingArguments")
sys.modules["transformers"] = types.SimpleNamespace(**{name: type(name, (), {}) for name in names})
from grposweep.command import Callback
Callback()
"""


def test_the_callback_needs_no_package_but_transformers() -> None:
    """A script's own environment has neither Hydra nor PyYAML nor Optuna for us."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", WITHOUT_PACKAGES],
        env=environment(PYTHONPATH=str(PROJECT / "src")),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
