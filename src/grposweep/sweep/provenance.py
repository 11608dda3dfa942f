"""Where a result came from: code, packages, machine and command, so that it can be repeated."""

import hashlib
import platform
import shlex
import shutil
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from grposweep import __version__
from grposweep.config.compose import PROJECT
from grposweep.redaction import redact

PACKAGES = (
    "torch", "transformers", "trl", "accelerate", "datasets", "peft", "optuna", "hydra-core", "omegaconf", "wandb",
)  # fmt: skip


def collect_provenance() -> dict[str, Any]:
    """Code version (git sha and diff of the project), package versions, Python, host and working directory."""
    diff = _git("diff", "HEAD")
    constraints = PROJECT / "constraints.txt"
    return {
        "grposweep": __version__,
        "git_sha": _git("rev-parse", "HEAD"),
        "git_diff": None if diff is None else redact(diff),
        "constraints_sha256": hashlib.sha256(constraints.read_bytes()).hexdigest() if constraints.exists() else None,
        "packages": package_versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hostname": socket.gethostname(),
        "working_directory": str(Path.cwd()),
        "command": redact(shlex.join([Path(sys.executable).name, *sys.argv])),
    }


def package_versions() -> dict[str, str]:
    """Installed versions, without importing anything."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """What of code and packages differs between two provenances, in words; None for nothing."""
    parts = []
    if before.get("git_sha") != now.get("git_sha"):
        parts.append(f"code {str(before.get('git_sha'))[:7]} -> {str(now.get('git_sha'))[:7]}")
    elif before.get("git_diff") != now.get("git_diff"):
        parts.append("uncommitted changes to the code")
    old, new = (found if isinstance(found := said.get("packages"), dict) else {} for said in (before, now))
    parts += [
        f"{name} {old.get(name)} -> {new.get(name)}"
        for name in sorted({*old, *new}, key=str)
        if old.get(name) != new.get(name)
    ]
    return ", ".join(parts) or None


def _git(*arguments: str) -> str | None:
    """What git says about the project's own checkout; None where there is none."""
    if not (PROJECT / ".git").exists() or shutil.which("git") is None:
        return None
    answer = subprocess.run(["git", "-C", str(PROJECT), *arguments], capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else None
