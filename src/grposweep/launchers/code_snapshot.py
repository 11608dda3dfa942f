"""The code at submission, kept in the sweep folder: jobs that start hours later run it, whatever is edited meanwhile."""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from grposweep.process import SOURCE

PACKAGE = "grposweep"


def snapshot_code(sweep: Path) -> Path:
    """A copy of the package as it is now, under ``code/<hash>``, made once; returns the folder for PYTHONPATH.

    Uncommitted changes are in it; the sweep's provenance has the commit and the difference.
    """
    files, digest = _source()
    target = sweep / "code" / digest
    if target.exists():
        return target
    target.parent.mkdir(exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=target.parent, prefix=".draft-"))
    draft.chmod(0o755)  # mkdtemp's 0700 would lock team mates out
    for path in files:
        copy = draft / path.relative_to(SOURCE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    draft.rename(target)
    return target


def is_present_code(snapshot: Path) -> bool:
    """Whether a snapshot holds what is running."""
    return snapshot.name == _source()[1]


def _source() -> tuple[list[Path], str]:
    """The package's files, and a short hash of their names and contents."""
    source = SOURCE / PACKAGE
    files = sorted(path for path in source.rglob("*") if path.is_file() and path.suffix not in (".pyc", ".new"))
    digest = hashlib.sha256()
    for path in files:
        digest.update(os.fsencode(path.relative_to(source)) + b"\0" + path.read_bytes() + b"\0")
    return files, digest.hexdigest()[:12]
