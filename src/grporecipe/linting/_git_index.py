"""Read which files git tracks from its index. Git itself is not started: the configuration of an
unknown repository may name programs that git then runs.
"""

import struct
from contextlib import suppress
from pathlib import Path

from grporecipe.files import read_bytes, read_text

# bytes of an entry before its path (gitformat-index): times, ids, sizes, object name, flags
FIXED = 62
EXTENDED = 0x4000


def tracked_paths(root: Path) -> frozenset[Path]:
    """Return the tracked files of the repository with this root, and the folders above them.

    Empty without a repository, and for an index that cannot be read.
    """
    found: set[Path] = set()
    git = root / ".git"
    with suppress(OSError, ValueError, struct.error, IndexError):
        if git.is_file():
            # a worktree or a submodule: gitdir: PATH
            git = root / read_text(git).partition("gitdir:")[2].strip()
        for name in _names(read_bytes(git / "index")):
            path = root / name
            found.add(path)
            found.update(path.parents)
    return frozenset(found)


def _names(index: bytes) -> list[str]:
    """Return the paths in an index of version 2 to 4. Source: git's gitformat-index."""
    signature, version, count = struct.unpack(">4sII", index[:12])
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("no index of git")
    names: list[str] = []
    name = b""
    at = 12
    for _ in range(count):
        (flags,) = struct.unpack(">H", index[at + 60 : at + FIXED])
        start = at + FIXED + 2 * bool(flags & EXTENDED)
        kept = b""
        if version == 4:
            dropped, start = _varint(index, start)
            kept = name[: len(name) - dropped]
        end = index.index(b"\0", start)
        name = kept + index[start:end]
        names.append(name.decode("utf-8", "surrogateescape"))
        if version == 4:
            at = end + 1
        else:
            # of 8 bytes, with one to eight zeros behind the path
            at += (end - at + 8) // 8 * 8
    return names


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number in git's offset encoding, and where it ends."""
    value = data[at] & 0x7F
    while data[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) | (data[at] & 0x7F)
    return value, at + 1
