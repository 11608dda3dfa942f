"""The environment of a user's command: these packages without those of this environment, and what
Python imports first.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from grposweep.process import OWN_PACKAGES, SOURCE

# the variable that names the trial whose values enter
ENTERS = "GRPOSWEEP_ENTERS"
# the variable that holds the words for a framework's own process
LAUNCH = "GRPOSWEEP_LAUNCH"
# the variable that names the checkpoint to resume from
RESUME = "GRPOSWEEP_RESUME"
SHELL = ("bash", "-c") if shutil.which("bash") else ("sh", "-c")
_SCRIPT = r"[^\s;&|'\"]+\.(?:sh|bash|slurm|sbatch)\b"
_HOOK = SOURCE / "grposweep" / "command" / "inside" / "sitecustomize.py"


# runs in the place of rm, mv and rmdir while a command is asked
HARM = _HOOK.with_name("harm.py")


def launch_texts(command: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the texts of a command and of the shell scripts that it names, and that these name,
    each after its name.
    """
    waiting = [("", command)]
    seen = {""}
    while waiting:
        name, text = waiting.pop(0)
        yield name, text
        for found in re.findall(_SCRIPT, text):
            if found not in seen:
                seen.add(found)
                with contextlib.suppress(OSError, ValueError):
                    waiting.append((found, (folder / found).read_text(encoding="utf-8")))


def package_folder(folder: Path, node: int = 0) -> Path:
    """Return a folder for PYTHONPATH that holds only these packages and the hook: others must not
    leak into a program's own. Each node of a trial has its own.
    """
    path = folder / f"package{node or ''}"
    path.mkdir(exist_ok=True)
    for target in (*(SOURCE / package for package in OWN_PACKAGES), _HOOK):
        with contextlib.suppress(FileExistsError):
            (path / target.name).symlink_to(target)
    return path


def foreign_path(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the user's PYTHONPATH without the entry of this package; that of ``environment`` if it
    has one.
    """
    given = environment.get("PYTHONPATH", os.environ.get("PYTHONPATH", "")).split(os.pathsep)
    return [part for part in given if part and Path(part).resolve() != SOURCE]
