"""The launch commands of ``commands/``: read as data, staged in a folder with the programs that
they name, asked and swept.

A file is one command. ``kind`` says what it shows and ``from`` where such a command was seen; the
files are written for this project. ``given`` is what its trainer gets, ``unknown`` what depends on
data, ``refused`` a part of the message with which it is refused (``in_trial``: after it was asked,
before the first step), ``real``: it trains with the installed TRL, the others with
``tests/stub_trl``.
"""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from support import PROJECT, Ended, run_in

COMMANDS = PROJECT / "tests" / "command" / "commands"
STUB = PROJECT / "tests" / "stub_trl"
REWARDS = """
from pathlib import Path
from datasets import load_dataset

def right(completions, answer=(), **columns):
    return [float(a == b) for a, b in zip(completions, answer)]

def rows():
    return load_dataset("json", data_files=str(Path(__file__).with_name("train.jsonl")), split="train")
"""
PYTHON = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
# As pip installs them, and what a cluster has: each runs the rest of its words, or ends as such a
# program would.
PROGRAMS = {
    "python": PYTHON,
    "python3": PYTHON,
    "accelerate": (
        "#!/usr/bin/env python\nfrom accelerate.commands.accelerate_cli import main\nmain()\n"
    ),
    "torchrun": "#!/usr/bin/env python\nfrom torch.distributed.run import main\nmain()\n",
    "trl": "#!/usr/bin/env python\nfrom trl.cli import main\nmain()\n",
    "papermill": "#!/usr/bin/env python\nfrom papermill.__main__ import papermill\npapermill()\n",
    "deepspeed": (
        '#!/bin/sh\nshift 2\nRANK=0 LOCAL_RANK=0 WORLD_SIZE=1 exec python -u "$@" --local_rank=0\n'
    ),
    "uv": '#!/bin/sh\nshift 2\nexec "$@"\n',
    "srun": '#!/bin/sh\nexec "$@"\n',
    "conda": "#!/bin/sh\nexit 1\n",
    "docker": "#!/bin/sh\nsleep 0.2\n",
    "nvidia-smi": '#!/bin/sh\necho "GPU 0"\necho "GPU 1"\n',
    "sbatch": "#!/bin/sh\ntouch submitted\n",
    "ray": '#!/bin/sh\n[ "$1" != job ] || touch submitted\n',
}
# The stub hides what real launchers import, so they are staged as well.
STAGED = """#!/usr/bin/env python
import os, sys
script = next(n for n, word in enumerate(sys.argv) if word.endswith(".py"))
os.execv(sys.executable, [sys.executable, *sys.argv[script:]])
"""


@dataclass(frozen=True)
class OwnCommand:
    """One file of ``commands/``."""

    name: str
    kind: str
    source: str
    command: str
    files: Mapping[str, str]
    given: Mapping[str, Any] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    refused: str = ""
    in_trial: bool = False
    real: bool = False
    how: str = "stand-ins"
    needs: str = ""
    sweep: list[str] = field(default_factory=lambda: ["lr=1e-4,3e-4"])

    @property
    def rates(self) -> list[float]:
        """Return the learning rates of its sweep."""
        (values,) = [word for word in self.sweep if word.startswith("lr=")]
        return [float(value) for value in values.removeprefix("lr=").split(",")]

    @property
    def is_installed(self) -> bool:
        """Return whether what it needs is there."""
        return not self.needs or find_spec(self.needs) is not None


def read_commands() -> list[OwnCommand]:
    """Return all commands by name."""
    found = [
        (path.stem, yaml.safe_load(path.read_text())) for path in sorted(COMMANDS.glob("*.yaml"))
    ]
    return [OwnCommand(name, source=row.pop("from"), **row) for name, row in found]


def stage(one: OwnCommand, folder: Path) -> dict[str, str]:
    """Write a command's files into a folder. Return the variables with which it is typed."""
    programs = folder.parent / "bin"
    programs.mkdir(exist_ok=True)
    staged = {} if one.real else dict.fromkeys(("accelerate", "torchrun"), STAGED)
    for name, text in (PROGRAMS | staged).items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    rows = [{"prompt": f"{a}+{a}=", "answer": str(2 * a)} for a in range(10, 42)]
    common = {"rewards.py": REWARDS, "train.jsonl": "".join(json.dumps(row) + "\n" for row in rows)}
    for name, text in (common | dict(one.files)).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    if one.real:
        from grposweep.train._tiny import tiny_folder

        shutil.copytree(tiny_folder(), folder / "tiny")
    return {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}


def sweep(one: OwnCommand, folder: Path, variables: Mapping[str, str]) -> Ended:
    """Sweep a staged command over its learning rates."""
    stub = (
        ()
        if one.real
        else (
            f"+trainer.environment.PYTHONPATH='{STUB}'",
            "+trainer.environment.GRPOSWEEP_ASK_MODE=real",
        )
    )
    words = ("name=s", "search.metric=reward", *stub, "-m", *one.sweep)
    return run_in(folder, *words, "--", one.command, **variables)
