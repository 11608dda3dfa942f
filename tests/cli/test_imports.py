"""The heavy packages that each command imports: one that a command does not use costs every start
of it.
"""

import contextlib
import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import PROJECT, environment

pytestmark = pytest.mark.slow

RECIPE = str(PROJECT / "docs" / "recipe.yaml")
HEAVY = {
    "hydra",
    "jinja2",
    "numpy",
    "omegaconf",
    "optuna",
    "plotly",
    "pydantic",
    "rich",
    "scipy",
    "torch",
    "transformers",
    "trl",
    "wandb",
}
HYDRA = {"rich", "hydra", "omegaconf"}
RUN = "run.py"
COMMANDS = {
    ("--help",): set(),
    ("rules",): set(),
    ("lint", RECIPE): set(),
    ("plan", RECIPE, "--processes", "8"): {"rich"},
    ("fit", RECIPE, "--gpu", "A100"): {"rich"},
    ("list",): {"rich"},
    ("status", "measured"): {"rich"},
    # they check the commands that they advise
    ("best", "measured"): HYDRA,
    ("export", "measured"): {"rich"},
    ("show", "0"): HYDRA,
    ("space", "lr=1e-4,1e-3"): HYDRA,
    ("report", "measured"): {*HYDRA, "jinja2", "plotly"},
    (RUN, "--help"): {"hydra", "omegaconf"},
    (RUN, "lrr=1e-3"): {"hydra", "omegaconf"},
    (RUN, "lr=0"): {"hydra", "omegaconf"},
    (RUN, "batch.num_generations=5"): {"hydra", "omegaconf"},
    (RUN, "-m", "lr=1e-4,1e-3", "batch.num_generations=5"): HYDRA,
}


def imported_by(*words: str) -> None:
    """Run a command, and print the modules that it imported as JSON after all else."""
    from grposweep.cli import main

    with (
        Path(os.devnull).open("w") as null,
        contextlib.redirect_stdout(null),
        contextlib.suppress(SystemExit),
    ):
        if words[0] == RUN:
            sys.argv = [RUN, *words[1:]]
            runpy.run_path(str(PROJECT / "src" / RUN), run_name="__main__")
        else:
            sys.argv = ["grposweep", *words]
            main()
    print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_imports_only_what_it_uses(here: Path, command: tuple[str, ...]) -> None:
    """The sweep has one trial; what is not in the table is Python's own, typer's or YAML's."""
    shutil.copytree(PROJECT / "tests" / "fixtures" / "measured", here / "outputs" / "measured")
    done = subprocess.run(
        [sys.executable, __file__, *command],
        cwd=here,
        capture_output=True,
        text=True,
        check=True,
        env=environment(PYTHONPATH=f"{PROJECT / 'src'}:{PROJECT / 'tests'}"),
    )
    assert HEAVY & set(json.loads(done.stdout.splitlines()[-1])) == COMMANDS[command]


if __name__ == "__main__":
    imported_by(*sys.argv[1:])
