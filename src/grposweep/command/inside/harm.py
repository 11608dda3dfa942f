"""What a command must not destroy while it is asked: files that were there before, and the folder
of the sweeps.

`probe` calls it before a file changes in Python. As a program (``harm.py PACKAGE NAME WORDS``) it
is in the place of ``rm``, ``mv`` and ``rmdir``: it answers instead of them, or runs them if nothing
is lost. Only the standard library is imported.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# in the copy of the package that a question puts on PYTHONPATH
FILE = "question.json"
# in the folder of answers: what Python programs have made in the working folder, one path a line
MADE = "made"
MOVES = frozenset(["os.rename", "shutil.move"])
DELETIONS = MOVES | {"os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}


@dataclass(frozen=True)
class Question:
    """Where answers go, and what is allowed.

    ``folder`` is the working folder, ``kept`` the place where it is as it was before the question;
    empty without a view of it.
    ``is_free``: the user allows deletions. Nothing may be deleted in ``sweeps``, the folder of all
    sweeps, in any case.
    """

    answers: str
    mode: str
    processes: int
    folder: str
    kept: str
    sweeps: str
    is_free: bool


def read_question(package: Path) -> Question:
    """Return the question that a copy of the package belongs to."""
    return Question(**json.loads((package / FILE).read_text(encoding="utf-8")))


def changed_paths(question: Question, event: str, arguments: tuple[Any, ...]) -> list[str]:
    """Return the absolute paths that an audit event deletes, moves or overwrites; without a view
    also what it writes to.
    """
    if event == "open":
        flags = os.O_TRUNC if question.kept else os.O_TRUNC | os.O_WRONLY | os.O_RDWR
        is_changed = bool(int(arguments[2] or 0) & flags) and isinstance(
            arguments[0], (str, bytes, os.PathLike)
        )
        return [absolute(arguments[0])] if is_changed else []
    if event == "shutil.move":
        return _moved(arguments[0], arguments[1], -1, -1)
    if event == "os.rename":
        return _moved(*arguments[:4])
    if event not in DELETIONS or isinstance(arguments[0], int):
        return []
    if event == "os.truncate":
        return [absolute(arguments[0])]
    return [absolute(*arguments[:2])]


def _moved(old: Any, new: Any, old_folder: Any, new_folder: Any) -> list[str]:
    paths = [absolute(old, old_folder), absolute(new, new_folder)]
    # into a folder nothing is overwritten
    return paths[:1] if os.path.isdir(paths[1]) else paths  # noqa: PTH112 - a text


def absolute(path: Any, folder: Any = None) -> str:
    """Return a path with the links of its folder resolved; ``folder`` is an open descriptor, or
    None or -1.
    """
    start = Path.cwd()
    if isinstance(folder, int) and folder >= 0:
        start = Path(f"/proc/self/fd/{folder}").resolve()
    joined = start / os.fsdecode(path)
    return os.path.normpath(joined.parent.resolve() / joined.name)


def is_temporary(question: Question, path: str) -> bool:
    """Return whether a path is in a folder for temporary files, and not in the working folder."""
    file = Path(path)
    in_temporary = file.is_relative_to(Path(tempfile.gettempdir()).resolve())
    return file.is_relative_to("/dev") or (
        in_temporary and not file.is_relative_to(question.folder)
    )


def find_loss(question: Question, paths: list[str], is_opened: bool = False) -> dict[str, Any]:
    """Return what of an answer says which of the paths must not change; empty if all may.

    ``is_opened``: they are opened for writing, which is no harm to the folder of the sweeps.
    """
    of_sweeps = [path for path in paths if not is_opened and _is_of_sweeps(question, path)]
    # that were there before the question, and are in no folder for temporary files
    lost = [p for p in paths if not is_temporary(question, p) and _was_there(question, p)]
    if question.is_free:
        lost = []
    gone = of_sweeps or lost
    if not gone:
        return {}
    return {"lost": ", ".join(shown(question, path) for path in gone), "sweeps": bool(of_sweeps)}


def _is_of_sweeps(question: Question, path: str) -> bool:
    """Return whether a path that exists is the folder of the sweeps, holds it, or is in it."""
    file = Path(path)
    sweeps = Path(question.sweeps)
    is_inside = sweeps.is_relative_to(file) or file.is_relative_to(sweeps)
    return is_inside and os.path.lexists(path)


def _was_there(question: Question, path: str) -> bool:
    file = Path(path)
    if question.kept and file.is_relative_to(question.folder):
        return os.path.lexists(question.kept / file.relative_to(question.folder))
    return os.path.lexists(path) and made_paths(Path(question.answers)).isdisjoint(
        [path, *map(str, file.parents)]
    )


def made_paths(answers: Path) -> set[str]:
    """Return what Python programs have made in the working folder during the question."""
    try:
        return set((answers / MADE).read_text(encoding="utf-8").splitlines())
    except FileNotFoundError:
        return set()


def note_made(question: Question, path: Any) -> None:
    """Note a file or folder that is about to be made in the working folder, so that it is removed
    after the question.
    """
    whole = absolute(path)
    if (
        not question.kept
        and Path(whole).is_relative_to(question.folder)
        and not os.path.lexists(whole)
    ):
        with (Path(question.answers) / MADE).open("a", encoding="utf-8") as file:
            file.write(f"{whole}\n")


def shown(question: Question, path: str) -> str:
    """Return a path as the user would write it, with the number of files that a folder holds."""
    file = Path(path)
    name = os.path.relpath(path, question.folder) if file.is_relative_to(question.folder) else path
    if not file.is_dir() or file.is_symlink():
        return name
    files = sum(len(files) for _, _, files in os.walk(path))
    return f"{name}/ ({files} file{'s' * (files != 1)})"


def _is_made_by_it(question: Question, path: str) -> bool:
    """Return whether a file was made after the question began, as far as its file system notes
    that. Only GNU's ``stat`` tells it. The clock of another file system may be a different one.
    """
    began = Path(f"{question.answers}/../package/{FILE}").stat()
    try:
        if os.lstat(path).st_dev != began.st_dev:
            return False
        made = float(
            subprocess.check_output(["stat", "--format=%.9W", path], stderr=subprocess.DEVNULL)
        )
    except (OSError, ValueError, subprocess.CalledProcessError):
        return False
    return made > began.st_mtime and not _is_of_sweeps(question, path)


def _run_or_answer(question: Question, name: str, arguments: list[str]) -> None:
    """Run ``rm``, ``mv`` or ``rmdir``, unless something is lost by it."""
    operands = [absolute(word) for word in arguments if not word.startswith("-")]
    if name == "mv" and operands and os.path.isdir(operands[-1]):  # noqa: PTH112 - a text
        operands.pop()
    operands = [path for path in operands if not _is_made_by_it(question, path)]
    if loss := find_loss(question, operands):
        answer = {**loss, "shell": name}
        made = Path(question.answers) / f"{name}.part"
        made.write_text(json.dumps(answer), encoding="utf-8")
        made.replace(made.with_suffix(".json"))
        sys.exit(1)
    here = Path(question.answers).with_name("bin")
    others = [folder for folder in os.get_exec_path() if Path(folder).resolve() != here.resolve()]
    program = shutil.which(name, path=os.pathsep.join(others)) or f"/bin/{name}"
    os.execv(program, [name, *arguments])


if __name__ == "__main__":
    _run_or_answer(read_question(Path(sys.argv[1])), sys.argv[2], sys.argv[3:])
