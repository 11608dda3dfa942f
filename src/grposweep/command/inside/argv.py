"""In a trial of a framework that reads its own command line: the trial's values become the last
words of its process.

The command stays as it is. Only the standard library is imported, because every Python that the
command starts asks here.
"""

import json
import os
import sys
from collections.abc import Collection, Sequence
from typing import Any


def enter(text: str) -> None:
    """Change the words of this process if it is the program of a launch; ``text`` is the launch as
    JSON.

    ``program`` is a module, a file, or the words of a command. ``words`` are added, and each option
    that ``without`` names is removed.
    """
    launch: dict[str, Any] = json.loads(text)
    if not _is_program(launch["program"]):
        return
    # after the check: most processes are not the program
    from grposweep.storage import paths

    sys.argv[1:] = [*without(sys.argv[1:], launch["without"]), *launch["words"]]
    file = os.path.join(os.environ["GRPOSWEEP_TRIAL"], paths.ENTERED)  # noqa: PTH118 - pathlib imports more
    entered = {"attempt": int(os.environ["GRPOSWEEP_ATTEMPT"]), "words": sys.argv[1:]}
    with open(f"{file}.{os.getpid()}", "w", encoding="utf-8") as opened:  # noqa: PTH123 - as above
        json.dump(entered, opened)
    os.replace(opened.name, file)  # noqa: PTH105 - as above


def _is_program(name: str) -> bool:
    """Return whether this process runs a module, a file of this name, or a command with these
    words.
    """
    if sys.argv[0] == "-m":
        return sys.orig_argv[sys.orig_argv.index("-m") + 1] == name
    first, *more = name.split()
    own, wanted = os.path.basename(sys.argv[0]), os.path.basename(first)  # noqa: PTH119 - as above
    return own == wanted and sys.argv[1 : 1 + len(more)] == more


def without(arguments: Sequence[str], names: Collection[str]) -> list[str]:
    """Return words without some options and their values. ``names`` have no dash."""
    kept: list[str] = []
    is_dropped = False
    for word in arguments:
        if word.startswith("--"):
            is_dropped = word[2:].partition("=")[0].replace("-", "_") in names
        if not is_dropped:
            kept.append(word)
    return kept
