"""A copy-on-write view of a folder: what a command writes, moves or deletes there is gone when it
ends. Linux with overlayfs.

A mount namespace holds it, so nothing outside of the command's processes changes. A user namespace
gives the rights. Sources: kernel Documentation/filesystems/overlayfs.rst (``userxattr``),
util-linux unshare(1).
"""

import os
import shutil
import stat
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

# in a view's own folder: the user's folder as it was
KEPT = "kept"
_UPPER = "upper"
_WORK = "work"
_ENTER = """set -e
mount --bind "$1" "$2/kept"
cd "$1"
mount -t overlay -o "lowerdir=.,upperdir=$2/upper,workdir=$2/work,userxattr" overlay "$1"
cd "$1"
shift 2
exec "$@"
"""
# What an overlay needs its marks for: a folder that is deleted and made again is empty.
_TRIAL = (
    'rm -r full; mkdir full; test -z "$(ls full)"; test -e "$0/kept/full/file"; test ! -e '
    '"$0/upper/full/file"'
)


def make_view(view: Path) -> None:
    """Make the folders that `view_command` needs."""
    for name in (KEPT, _UPPER, _WORK):
        (view / name).mkdir()


def view_command(folder: Path, view: Path) -> list[str]:
    """Return the words in front of a command that runs it in a view of ``folder``, with ``view``
    for what it changes.
    """
    unshare = shutil.which("unshare") or "unshare"
    own = (
        []
        if os.getuid() == 0
        else [unshare, "-U", f"--map-user={os.getuid()}", f"--map-group={os.getgid()}"]
    )
    return [unshare, "-rm", "/bin/sh", "-c", _ENTER, "sh", str(folder), str(view), *own]


@cache
def can_view(folder: Path) -> bool:
    """Return whether this system can show a view of a folder. File systems that are mounted below
    it would not be in it.
    """
    temporary = Path(tempfile.gettempdir()).resolve()
    if shutil.which("unshare") is None or temporary.is_relative_to(folder) or _has_mounts(folder):
        return False
    with tempfile.TemporaryDirectory(prefix="grposweep-view-") as made:
        full = Path(made, "folder", "full")
        full.mkdir(parents=True)
        (full / "file").touch()
        return _runs(full.parent, Path(made, "1"), _TRIAL) and _runs(folder, Path(made, "2"), ":")


def _has_mounts(folder: Path) -> bool:
    """Return whether another file system is mounted below a folder. Source: proc(5), mountinfo."""
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return True
    places = [line.split()[4].decode("unicode_escape") for line in lines]
    return any(Path(place).is_relative_to(folder) and Path(place) != folder for place in places)


def _runs(folder: Path, view: Path, text: str) -> bool:
    view.mkdir()
    make_view(view)
    command = [*view_command(folder, view), "/bin/sh", "-ec", text, str(view)]
    try:
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
    finally:
        open_folders(view)


def open_folders(view: Path) -> None:
    """Make the kernel's own folder in a view's place removable."""
    with suppress(OSError):
        (view / _WORK / "work").chmod(stat.S_IRWXU)


def changed_in(view: Path, path: Path) -> Path:
    """Return where a changed or new file of the folder is, by its path relative to the folder."""
    return view / _UPPER / path
