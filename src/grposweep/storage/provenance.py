"""Record the code, packages, machine and command of a result, compare runs, and keep a copy of the
code.

The copy is in the sweep folder. Jobs that start hours later run it, even if the source has changed.
"""

import hashlib
import os
import platform
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from grporecipe import __version__
from grporecipe.files import Config, Json, append_line, file_digest, text_sha256
from grporecipe.redaction import redact
from grporecipe.terminal import say
from grposweep.process import CONFIG_FLAGS, OWN_PACKAGES, PROJECT, SOURCE
from grposweep.storage import paths
from grposweep.storage.inputs import Inputs, drafted
from grposweep.storage.records import as_list, as_mapping

# a large checkout on a slow disk answers sooner
GIT_SECONDS = 10.0
# Fields of a metrics line that may differ between two runs of one trial. All others are
# bit-identical on a CPU.
TIMES = (
    "time",
    "attempt",
    "step_time",
    "eval_runtime",
    "eval_samples_per_second",
    "eval_steps_per_second",
    "time/step",
    "tokens_per_second",
    "memory/peak",
    "time_share/generation",
    "time_share/scoring",
    "time_share/training",
    "time_share/diversity",
)


def first_difference(before: Iterable[Config], after: Iterable[Config]) -> str | None:
    """Describe where two histories first differ; None if they are equal."""
    old = list(before)
    new = list(after)
    for old_line, new_line in zip(old, new, strict=False):
        for name in {**old_line, **new_line}:
            then = old_line.get(name)
            now = new_line.get(name)
            if then != now and name not in TIMES:
                return f"{name} {then} became {now} at step {old_line.get('step')}"
    if len(old) != len(new):
        return f"{len(old)} lines of metrics became {len(new)}"
    return None


PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "accelerate",
    "datasets",
    "peft",
    "optuna",
    "hydra-core",
    "omegaconf",
    "wandb",
)


def collect_provenance(inputs: Inputs) -> Json:
    """Collect git sha and diff of the project, package versions, the user's files, Python, host and
    folder.
    """
    commit = _git("rev-parse", "HEAD")
    diff = commit and _git("diff", "HEAD")
    # `grposweep run` hides its first word from Hydra
    is_own = Path(sys.argv[0]).name in ("grposweep", "__main__.py")
    started_as = ["-m", "grposweep", "run", *sys.argv[1:]] if is_own else sys.argv
    flags: list[str] = []
    for flag, value in pairwise(sys.argv):
        if flag in CONFIG_FLAGS:
            flags += (flag, value)
    return {
        "grposweep": __version__,
        "git_sha": commit,
        "git_diff": diff and redact(diff),
        "constraints_sha256": file_digest(PROJECT / "constraints.txt"),
        "packages": package_versions(),
        "files": inputs.digests,
        "copies": inputs.copies or "",
        "environment": environment_digest(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hostname": socket.gethostname(),
        "working_directory": str(Path.cwd()),
        "command": redact(shlex.join([Path(sys.executable).name, *started_as])),
        "configuration": flags,
    }


def note_command(sweep: Path, provenance: Config) -> None:
    """Append the present command to those that ran this sweep; ``grposweep retry`` repeats the last
    one.
    """
    command = {name: provenance.get(name) for name in ("command", "working_directory")}
    append_line(sweep / paths.COMMANDS, {**command, "sweep": str(sweep)})


def repeated_by(recorded: Config, command: str, *arguments: object) -> Json:
    """Return the provenance of a sweep that ``grposweep COMMAND ARGUMENTS`` starts again from any
    folder.

    Its trials are built on the configuration of the ``recorded`` trial.
    """
    argv = [Path(sys.executable).name, "-m", "grposweep", command, *map(str, arguments)]
    return {"command": redact(shlex.join(argv)), "configuration": configuration_of(recorded)}


def configuration_of(recorded: Config) -> list[str]:
    """Return Hydra's flags, with their values, that chose the configuration of a recorded sweep."""
    return list(map(str, as_list(recorded.get("configuration"))))


_VARIABLES = (
    r"(?:HF|HUGGING_FACE|WANDB|TRANSFORMERS|OPENAI|ANTHROPIC)_\w+|LD_LIBRARY_PATH|PYTHONPATH"
)
_LOGINS = ("~/.netrc", "~/.config/wandb/settings", "~/.cache/huggingface/token", "$HF_HOME/token")


def environment_digest() -> str:
    """Return a hash of what logins and libraries depend on. It reveals a change and nothing
    else.
    """
    named = sorted(
        (name, value) for name, value in os.environ.items() if re.fullmatch(_VARIABLES, name)
    )
    stats: list[tuple[int, int] | None] = []
    for name in _LOGINS:
        path = Path(os.path.expandvars(name)).expanduser()
        stat = path.stat() if path.is_file() else None
        stats.append(stat and (stat.st_size, stat.st_mtime_ns))
    return text_sha256(repr((named, stats)))[:16]


def package_versions() -> dict[str, str]:
    """Return installed versions without importing the packages."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def difference(before: Config, now: Config) -> str | None:
    """Describe how code, packages and the user's files differ between two provenances; None if they
    do not.
    """
    parts = []
    if before.get("git_sha") != now.get("git_sha"):
        parts.append(f"code {str(before.get('git_sha'))[:7]} -> {str(now.get('git_sha'))[:7]}")
    elif before.get("git_diff") != now.get("git_diff"):
        parts.append("uncommitted changes to the code")
    for name, old, new in _unlike(before, now, "packages"):
        parts.append(f"{name} {old} -> {new}")
    for path, old, new in _unlike(before, now, "files"):
        # A file in only one of them usually means another working directory, not a change.
        if None not in (old, new):
            parts.append(f"{path} has changed")
    return ", ".join(parts) or None


def _unlike(before: Config, now: Config, part: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the names in a part of two provenances whose values differ, with both values."""
    old = as_mapping(before.get(part))
    new = as_mapping(now.get(part))
    for name in sorted({*old, *new}, key=str):
        if old.get(name) != new.get(name):
            yield name, old.get(name), new.get(name)


def _git(*arguments: str) -> str | None:
    """Run git in the project's checkout and return its output; None if that fails, which is
    printed.
    """
    if not (PROJECT / ".git").exists() or shutil.which("git") is None:
        return None
    # GIT_DIR and others, as in a hook, would lead to another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(PROJECT), *arguments]
    try:
        answer = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=GIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        cause = f"it did not answer within {GIT_SECONDS:.0f} s"
    except OSError as error:
        cause = str(error)
    else:
        if answer.returncode == 0:
            return answer.stdout.strip()
        cause = next(iter(answer.stderr.splitlines()), f"exit code {answer.returncode}")
    say(
        f"git {arguments[0]} failed ({cause}), so the version of grposweep's code is not recorded.",
        sys.stderr,
    )
    return None


def snapshot_code(sweep: Path) -> Path:
    """Copy the package to ``code/<hash>`` unless it is there. Return that folder, for PYTHONPATH.

    The copy includes uncommitted changes; the sweep's provenance has the commit and the diff.
    """
    files, digest = _source()
    target = sweep / "code" / digest
    if not target.exists():
        with drafted(target) as draft:
            for path in files:
                copy = draft / path.relative_to(SOURCE)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
    return target


def is_present_code(snapshot: Path) -> bool:
    """Return whether a snapshot equals the running code."""
    return snapshot.name == _source()[1]


def _source() -> tuple[list[Path], str]:
    """Return the packages' files, and a short hash of their names and contents."""
    every = chain.from_iterable((SOURCE / package).rglob("*") for package in OWN_PACKAGES)
    files = sorted(path for path in every if path.is_file() and path.suffix not in (".pyc", ".new"))
    digest = hashlib.sha256()
    for path in files:
        digest.update(os.fsencode(path.relative_to(SOURCE)) + b"\0" + path.read_bytes() + b"\0")
    return files, digest.hexdigest()[:12]
