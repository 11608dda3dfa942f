"""The default tier in environments of other versions: python tests/versions.py PYTHON ... (`make
environments`).

For each interpreter three environments under .venvs: the lowest versions that pyproject.toml
allows, those of constraints.txt, and the newest. Prints a row per environment. Exit code 1 if any
of them fails.
"""

import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
UV = PROJECT / ".venvs" / "uv" / "bin" / "uv"
KINDS = ("lowest", "locked", "newest")
EXTRAS = os.environ.get("EXTRAS", "train,dev")
# Tests marked ``locked`` show what the versions of constraints.txt print or declare.
OTHERS = "not locked and not slow and not thorough and not slurm and not gpu and not gpu_stack"


def lower_bounds() -> Iterator[str]:
    """Yield every lower bound of pyproject.toml as an exact version. If they do not fit together, a
    bound is wrong.
    """
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    for wanted in chain(project["dependencies"], *project["optional-dependencies"].values()):
        if bound := re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", wanted):
            yield f"{bound[1]}=={bound[2]}"


def resolve(kind: str, python: str, folder: Path) -> Path:
    """Write the exact versions of an environment into its folder; return the file."""
    found = folder / "versions.txt"
    limits = folder / "limits.txt"
    known = {
        "locked": (PROJECT / "constraints.txt").read_text().splitlines(),
        "lowest": [*lower_bounds()],
    }
    lines = known.get(kind, [kind] if "==" in kind else [])
    if torch := os.environ.get("TORCH"):
        lines = [*(line for line in lines if not line.startswith("torch==")), f"torch=={torch}"]
    limits.write_text("\n".join(lines))
    extras = [f"--extra={name}" for name in EXTRAS.split(",")]
    how = [
        f"--python={python}",
        f"--constraint={limits}",
        "--no-header",
        "--upgrade",
        f"--output-file={found}",
    ]
    command = [UV, "pip", "compile", "--quiet", *how, *extras, "pyproject.toml"]
    subprocess.run(command, cwd=PROJECT, check=True)
    return found


def build(kind: str, python: str) -> Path:
    """Make an environment of a kind, or with one release (``trl==1.17.0``) and the newest of all
    else; return its interpreter.

    pip installs, because it knows where this machine has a CPU build.
    """
    version = subprocess.run(
        [python, "--version"], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    folder = PROJECT / ".venvs" / f"{kind.replace('==', '-')}-{'.'.join(version.split('.')[:2])}"
    subprocess.run([python, "-m", "venv", folder], check=True)
    own = folder / "bin" / "python"
    versions = resolve(kind, python, folder)
    install = [
        own,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-compile",
        "--disable-pip-version-check",
    ]
    subprocess.run([*install, "-c", versions, "-e", f".[{EXTRAS}]"], cwd=PROJECT, check=True)
    return own


def main(pythons: list[str]) -> int:
    """Test each environment; return the exit code."""
    kinds = os.environ.get("VERSIONS", " ".join(KINDS)).split()
    failed = 0
    for python in pythons:
        for kind in kinds:
            own = build(kind, python)
            start = time.monotonic()
            marks = [] if kind == "locked" else ["-m", OTHERS]
            workers = ["-n", os.environ.get("WORKERS", "1")]
            command = [
                own,
                "-m",
                "pytest",
                *workers,
                *marks,
                *shlex.split(os.environ.get("TESTS", "")),
            ]
            done = subprocess.run(
                command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=False
            )
            tail = done.stdout.splitlines()[-40:]
            if done.returncode:
                print(*tail, sep="\n")
            said = next(
                (line for line in reversed(tail) if re.search(r"\d+ (passed|failed)", line)),
                "see above",
            )
            print(
                f"| {own.parent.parent.name} | {said.strip('= ')} | "
                f"{time.monotonic() - start:.0f} s |",
                flush=True,
            )
            failed += done.returncode != 0
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [sys.executable]))
