"""Note the files and folders that a trial's program makes or changes outside of its sweep.

Little is imported here, as in `sitecustomize`.
"""

import os
import re
import sys
from contextlib import suppress
from typing import Any

from grposweep.storage import paths

# temporary, hidden, or of a library
_IGNORED = re.compile(r"^/(?:dev|proc|tmp)/|(?:^|/)(?:\.|__pycache__)|\.lock$")


def note_written(trial: str) -> None:
    """Have each path noted in a file of the trial's folder, a folder with a slash at its end."""
    noted = set[str]()
    here, trials = f"{os.getcwd()}/", os.path.dirname(trial)  # noqa: PTH109, PTH120 - pathlib imports more

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        # in the working directory, not in that of a descriptor
        is_folder = event == "os.mkdir" and arguments[2] == -1
        is_opened = event == "open" and not isinstance(arguments[0], int)
        if not is_folder and not (is_opened and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        path = os.path.abspath(os.fsdecode(arguments[0])) + "/" * is_folder  # noqa: PTH100 - as above
        if path in noted or path.startswith(trials) or _IGNORED.search(path.removeprefix(here)):
            return
        # a temporary file without a name is opened as its folder, and a folder may be there
        if os.path.isdir(path):  # noqa: PTH112 - as above
            return
        noted.add(path)
        # a full disk must not end the program
        with suppress(OSError), open(f"{trial}/{paths.WRITTEN}", "a", errors="replace") as file:  # noqa: PTH123 - as above
            file.write(f"{path}\n")

    sys.addaudithook(note)
