"""Tells what this Python process is by its command line: a launcher, a script that may train with
GRPO, or another program.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from grposweep.command.inside import record
from grposweep.command.inside.argv import without
from grposweep.command.inside.harm import Question

SYSTEM = (
    "/proc/",
    "/sys/",
    "/dev/",
    "/etc/",
    "/usr/",
    sys.prefix + os.sep,
    sys.base_prefix + os.sep,
)
_LIBRARY = str(Path(os.__file__).parent)
# of these packages
_OURS = str(Path(__file__).parents[3])
# code of ``python -c`` and of a here-document
TYPED = ("<string>", "<stdin>")
TAKE_VALUE = ("-X", "-W", "--check-hash-based-pycs")
TRAINS = r"(?m)GRPO|^[ \t]*(?:from|import)[ \t].*\b(?:trl|unsloth)\b"
IMPORTS = (
    r"(?m)^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+\(?([\w, \t]*)|import[ \t]+([\w.]+))"
)
# options of papermill, and those that only papermill itself can read
PARAMETERS = ("-p", "--parameters", "-r", "--parameters_raw")
UNREAD = frozenset(
    [
        "-f",
        "--parameters_file",
        "-y",
        "--parameters_yaml",
        "-b",
        "--parameters_base64",
        "--cwd",
    ]
)
NOTEBOOK = "grposweep.command.inside.notebook"
# of a script's own code that is searched
MOST_FILES, LONGEST = 200, 2**19


class Program(NamedTuple):
    """What Python was asked to run: a file, or a module with the file that it is in. Both are empty
    for ``-c``.
    """

    file: str = ""
    module: str = ""
    arguments: tuple[str, ...] = ()


def this_program() -> Program:
    """Return this process's program."""
    arguments = iter(sys.orig_argv[1:])
    for word in arguments:
        if word in TAKE_VALUE:
            next(arguments, None)
        elif word == "-m":
            module = next(arguments, "")
            rest = tuple(arguments)
            file = rest[0] if module == NOTEBOOK else _file_of(module)
            return Program(file, module, rest)
        elif word == "-c":
            return Program()
        elif not word.startswith("-"):
            return Program(str(Path(word).absolute()), "", tuple(arguments))
    return Program()


def _file_of(module: str, folder: str = "") -> str:
    """Return the file of a module that is in the user's folders, without importing it; empty if it
    is not found.
    """
    for start in dict.fromkeys(map(Path, (folder or ".", ".", *sys.path))):
        base = start.joinpath(*module.split("."))
        for path in (base.with_name(f"{base.name}.py"), base / "__main__.py", base / "__init__.py"):
            if path.is_file():
                return str(path.absolute())
    return ""


def may_train(program: Program) -> bool:
    """Return whether a script, or its own modules, mention GRPO, TRL or Unsloth. The command
    ``trl`` is a launcher.
    """
    if Path(program.file).name == "trl":
        return False
    waiting = [program.file]
    seen = set[str]()
    while waiting and len(seen) < MOST_FILES:
        file = waiting.pop(0)
        if not file or file in seen:
            continue
        seen.add(file)
        try:
            text = Path(file).read_text(encoding="utf-8", errors="replace")[:LONGEST]
        except OSError:
            continue
        if re.search(TRAINS, text):
            return True
        waiting += list(filter(record.is_users, _imported(text, file, program)))
    return False


def _imported(text: str, file: str, program: Program) -> Iterator[str]:
    """Yield the files of the modules that a text imports."""
    for origin, names, module in re.findall(IMPORTS, text):
        dots = len(origin) - len(origin.lstrip("."))
        start = Path(file).parents[dots - 1] if dots else Path(program.file).parent
        base = module or origin.lstrip(".")
        for name in (
            base,
            *(f"{base}.{each.strip()}".lstrip(".") for each in names.split(",") if each.strip()),
        ):
            if name:
                yield _file_of(name, str(start))


def is_of_python(file: str) -> bool:
    """Return whether a file of code is of Python's own library, or of these packages."""
    return file.startswith(_OURS) or (
        file.startswith((_LIBRARY, "<frozen")) and "-packages" not in file
    )


def replace_launcher(program: Program, question: Question) -> None:
    """Replace this process by the script that it would launch, if it is a launcher whose words can
    be read.
    """
    if not program.file or (Path(program.file).suffix and not program.module):
        # -c, or a script: reading a launch takes 0.2 s of imports
        return
    from grporecipe.errors import UserError
    from grporecipe.model.framework import FRAMEWORKS
    from grporecipe.reading import launch

    name = Path(program.file).name
    if (program.module or name).startswith(("jupyter", "papermill")):
        _replace_kernel(program)
    if name not in launch.LAUNCHERS and name != "trl" and program.module not in launch.MODULES:
        return
    started = ("python", "-m", program.module) if program.module else (name,)
    try:
        start = launch.LaunchParser([FRAMEWORKS["trl"]]).find(
            shlex.join((*started, *program.arguments))
        )[0]
    except UserError:
        return
    script = start.launch.program
    rest = [word.text for word in start.after]
    if start.own is not None:
        rest = without(rest, launch.LAUNCHER_OPTIONS)
    words = [script]
    if script.endswith(".py"):
        file = str(Path(script).absolute())
    else:
        file = _file_of(script)
        words = ["-m", script]
    if not may_train(Program(file)):
        return
    count = launch.count_processes(start)[0] or _of_accelerate(
        launch.accelerate_file(start), start.launch.launcher
    )
    if (
        count
        and start.launch.launcher == "torchrun"
        and not any(word.text.startswith("--nnodes") for word in start.before)
    ):
        # where torchrun looks for it
        count *= int(os.environ.get("PET_NNODES", "1"))
    note = "processes_stated" if count else "processes_assumed"
    Path(question.answers, note).touch()
    ranks = str(count or question.processes)
    os.environ |= {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "RANK": "0", "LOCAL_RANK": "0"}
    os.execv(sys.executable, [sys.executable, *words, *rest])


def _replace_kernel(program: Program) -> None:
    """Run a notebook's cells in this process, if it is one that executes a notebook with options
    that can be read.
    """
    arguments = list(program.arguments)
    path = next((Path(word) for word in arguments if word.endswith(".ipynb")), None)
    is_papermill = "papermill" in (program.module, Path(program.file).name)
    runs = is_papermill or Path(program.file).name.endswith("execute")
    runs = runs or not {"execute", "--execute"}.isdisjoint(arguments)
    if path is None or not runs or not UNREAD.isdisjoint(arguments):
        return
    path = path.absolute()
    pairs = list[str]()
    if not is_papermill:
        os.chdir(path.parent)
    for option, name, value in zip(arguments, arguments[1:], arguments[2:], strict=False):
        if is_papermill and option in PARAMETERS:
            pairs.append(f"{name}={json.dumps(_value(value, option))}")
    os.execv(sys.executable, [sys.executable, "-m", NOTEBOOK, str(path), *pairs])


def _value(text: str, option: str) -> Any:
    """Return a parameter as papermill reads it: a number, a truth value or null if it looks like
    one, otherwise text.
    """
    literals = {
        "True": True,
        "true": True,
        "False": False,
        "false": False,
        "None": None,
        "null": None,
    }
    if option in ("-r", "--parameters_raw"):
        return text
    for read in (literals.__getitem__, int, float):
        with suppress(KeyError, ValueError):
            return read(text)
    return text


def _of_accelerate(name: str | None, launcher: str) -> int | None:
    """Return the processes that accelerate's configuration states: the named one, or the user's
    own.
    """
    from grporecipe.reading.launcher_files import read_accelerate

    if launcher not in ("accelerate", "trl"):
        return None
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    own = [f"{home}/accelerate/default_config.{kind}" for kind in ("yaml", "json")]
    file = name or next(filter(os.path.isfile, own), None)
    if file is None:
        return None
    return read_accelerate(
        file, lambda path: Path(path) if Path(path).is_file() else None
    ).processes
