"""The code at submission, kept in the sweep folder. Jobs that start hours later run it, even if the source has changed."""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from grposweep.process import SOURCE

PACKAGE = "grposweep"


def snapshot_code(sweep: Path) -> Path:
    """Copy the package as it is now to ``code/<hash>``, once; return that folder, for PYTHONPATH.

    It includes uncommitted changes; the sweep's provenance has the commit and the difference.
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
    """Return whether a snapshot equals the code that is running."""
    return snapshot.name == _source()[1]


def _source() -> tuple[list[Path], str]:
    """Return the package's files, and a short hash of their names and contents."""
    source = SOURCE / PACKAGE
    files = sorted(path for path in source.rglob("*") if path.is_file() and path.suffix not in (".pyc", ".new"))
    digest = hashlib.sha256()
    for path in files:
        digest.update(os.fsencode(path.relative_to(source)) + b"\0" + path.read_bytes() + b"\0")
    return files, digest.hexdigest()[:12]
