"""Ask a user's command what its GRPO trainer would get: run it up to the trainer's construction,
and end it there.

Nothing of the user's changes by it. Where the system has one, the command runs in a view of its
folder (`command._view`). What would delete, move or overwrite the user's files ends the question,
and so does what would clear the folder of the sweeps.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path

from grporecipe.errors import UserError
from grporecipe.files import Config, Json, absolute, parse_json
from grporecipe.reading.launch import LaunchParser
from grporecipe.redaction import redact
from grposweep.command import _view as view
from grposweep.command._environment import HARM, SHELL, foreign_path, launch_texts, package_folder
from grposweep.command.inside.harm import MADE, Question, made_paths
from grposweep.process import MARK, MARKED_FOLDER, kill_group, marked, start_guard
from grposweep.schema import Trainer

MODE = "GRPOSWEEP_ASK_MODE"
STAND_INS = "stand-ins"
REAL = "real"
SECONDS = {STAND_INS: 60.0, REAL: 600.0}
# seconds before a long question is announced
QUIET = 2.0
# seconds between two looks at the processes
LOOK = 0.2
# the start of a note of a trainer that is not GRPO's
OTHER = "other."
# the folder of all sweeps, unless another one is set
SWEEPS = "outputs"
# in it
_SWEEP = "sweep-that-is-asked"
QUEUES = ("sbatch", "qsub", "bsub", "salloc")
# its program runs on the cluster, without the environment of the command
RAY = "ray job submit"
DELETE = ("rm", "mv", "rmdir")
# The program that srun would start, on this machine: the first word that is a program.
_SRUN = """#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in -*) ;; *) command -v "$1" > /dev/null && exec "$@" ;; esac
  shift
done
"""
_QUEUE_PATH = re.compile(
    r"(?:^|[\s;&|(`'\"])(/[^\s;&|'\"]*/(?:sbatch|srun|salloc|qsub|bsub))(?=[\s;&|)'\"]|$)"
)
# 0 is any free port. Of servers only those that publish their port in a launch line are known.
_PORT = re.compile(
    r"--(?:master|main[-_]process|rdzv)[-_](?:port|endpoint)[ =](?:[\w.-]+:)?[1-9]\d+"
    r"|\bMASTER_PORT=[1-9]\d+"
    r"|vllm[ -]serve\b.*--port[ =][1-9]\d+"
)
_MANUAL = (
    "Pass PYTHONPATH and the variables that begin with GRPOSWEEP_ on to the program: "
    "docs/guides/own_script.md."
)
# the last line of a shell that could not start a program
_NOT_FOUND = r"([^\s:]+): (?:(?:command )?not found|No such file or directory)$"


@dataclass(frozen=True)
class Asked:
    """What a command's trainer would get.

    ``how`` is ``stand-ins`` or ``real``, and ``why`` the reason why stand-ins did not do.
    ``record`` is described in command/inside/record.py; its ``given`` is the base recipe. ``files``
    are the data files that the program opened, and the user's modules that it imported.
    ``seconds`` of CPU. ``assumed``: nothing states the number of training processes.
    ``is_exact``: it is the answer of this command, and not what several commands have alike.
    """

    how: str
    record: Config
    files: tuple[str, ...]
    seconds: float
    assumed: bool = False
    why: str = ""
    is_exact: bool = True


@dataclass(frozen=True)
class _Question:
    """What is asked; ``is_free``: the user allows the command to delete files."""

    command: str
    folder: Path
    environment: Mapping[str, str]
    processes: int | None
    sweeps: Path
    is_free: bool


@dataclass(frozen=True)
class _Run:
    """One run of the command: its answers, the names of its notes, the end of its output, and
    whether its time was over.
    """

    answers: list[Json]
    notes: frozenset[str]
    log: str
    is_late: bool = False
    # a Python that has loaded torch without our hook, as its command line
    dropped: str = ""
    # programs ran on after the command's end
    is_left: bool = False


def ask(
    command: str,
    folder: Path,
    environment: Mapping[str, str],
    processes: int | None = None,
    seconds: Mapping[str, float] = SECONDS,
    sweeps: Path = Path(SWEEPS),
) -> Asked:
    """Run a shell command in a folder up to its GRPO trainer: on stand-ins, and for real if that
    fails.

    The variable GRPOSWEEP_ASK_MODE=real leaves the stand-ins out, and allows the command to delete
    files. ``processes`` is the number of training processes if nothing else states it, ``seconds``
    the limit of each run, ``sweeps`` the folder of the sweeps.

    Raises UserError if the command builds no trainer or several, if its configuration is refused,
    or if it would destroy files.
    """
    _refuse_queues(command, folder)
    how = REAL if {**os.environ, **environment}.get(MODE) == REAL else STAND_INS
    reason = ""
    question = _Question(
        command, folder.resolve(), environment, processes, absolute(sweeps), how == REAL
    )
    run = _run(how, question, seconds[how])
    built = sorted(note.removeprefix(OTHER) for note in run.notes if note.startswith(OTHER))
    _refuse_loss(question, run)
    is_failed = how == STAND_INS and (
        not run.answers or any("failed" in answer for answer in run.answers)
    )
    # for real it would train
    if is_failed and built:
        raise UserError(
            f"{command}: it builds {' and '.join(built)}, and ended without building a GRPO "
            f"trainer ({_reason(run)}). Give the command that trains with GRPO, without the "
            "training before it."
        )
    if is_failed and ("on_stand_ins" in run.notes or (run.is_late and "seen" in run.notes)):
        how = REAL
        reason = _reason(run)
        run = _run(how, question, seconds[how])
        _refuse_loss(question, run)
    answers = [answer for answer in run.answers if "failed" not in answer]
    if not answers:
        raise UserError(f"{command}: {_why_unanswered(run, seconds[how])}")
    first, *others = answers
    if "refused" in first:
        raise UserError(
            f"{command}: its configuration is refused at {first['line'] or 'its construction'}: "
            f"{first['refused']} Correct the script or its options. Nothing was trained."
        )
    if others or first["several"]:
        lines = [answer["record"]["trainer_line"] for answer in answers if "record" in answer]
        programs = f"{len(answers)} programs ({', '.join(lines)})"
        what = f"a second one at {first['several']}" if first["several"] else programs
        raise UserError(
            f"{command}: it builds several GRPO trainers: {what}. A trial is one training. "
            "Give a command that trains once, and sweep what the others change, such as seed=1,2,3."
        )
    # others were made by the question
    files = tuple(file for file in first["files"] if Path(file).is_file())
    return Asked(
        first["how"],
        first["record"],
        files,
        first["seconds"],
        "processes_assumed" in run.notes,
        reason,
    )


def _reason(run: _Run) -> str:
    """Return why a run has no answer."""
    for answer in run.answers:
        if answer.get("failed"):
            return redact(answer["failed"])
    return "it took too long" if run.is_late else "it ended before its trainer"


def _run(mode: str, question: _Question, limit: float) -> _Run:
    """Run the command once and end it after its answers."""
    mark = os.urandom(16).hex()
    scratch = Path(tempfile.gettempdir(), f"{MARKED_FOLDER}{mark}").resolve()
    scratch.mkdir(mode=0o700)
    command, folder, environment = question.command, question.folder, question.environment
    answers = scratch / "answers"
    log = scratch / "log"
    answers.mkdir()
    package = str(package_folder(scratch))
    shell = [*SHELL, command]
    kept, changes = "", None
    if view.can_view(folder):
        view.make_view(scratch)
        kept, changes = str(scratch / view.KEPT), scratch
        shell = [*view.view_command(folder, scratch), *shell]
    elif mode == REAL:
        _announce(command, folder)
    asked = Question(
        str(answers),
        mode,
        question.processes or 1,
        str(folder),
        kept,
        str(question.sweeps),
        question.is_free,
    )
    sweep = _make_sweep(question, changes, answers)
    Path(package, "question.json").write_text(json.dumps(asdict(asked)), encoding="utf-8")
    path = os.pathsep.join([package, *foreign_path(environment)])
    own_path = {**os.environ, **environment}.get("PATH", os.defpath)
    _replace_programs(scratch / "bin", answers, package, own_path)
    programs = os.pathsep.join([str(scratch / "bin"), own_path])
    variables = {
        **os.environ,
        **environment,
        "PYTHONPATH": path,
        "PATH": programs,
        "WANDB_MODE": "disabled",
        MARK: mark,
        "SPT_NOENV": "1",
    }
    if mode == REAL:
        variables["CUDA_VISIBLE_DEVICES"] = ""
    guard = start_guard(mark, scratch)
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                shell,
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        is_late, dropped = _wait(
            process, command, answers, limit, _trains_again(command, folder), (mark, package)
        )
        records = [
            parse_json(each.read_bytes())
            for each in sorted(answers.glob("*.json"), key=os.path.getmtime)
        ]
        notes = frozenset(each.name for each in answers.iterdir())
        said = redact(log.read_text(encoding="utf-8", errors="replace"))
        if sweep is not None and not sweep.is_dir():
            records = [{"line": "", "lost": str(question.sweeps), "sweeps": True}]
        return _Run(
            records,
            notes,
            said,
            is_late,
            dropped,
            not (records or is_late or dropped) and _runs(mark),
        )
    finally:
        kill_group(mark)
        _remove_made(answers)
        view.open_folders(scratch)
        if guard.stdin is not None:
            guard.stdin.close()
        guard.wait()


def _make_sweep(question: _Question, scratch: Path | None, answers: Path) -> Path | None:
    """Make a folder of a sweep, which a trial would find, in the view whose changes are in
    ``scratch``; without one for real.

    Return where it is, or None if the sweeps are not in the working folder.
    """
    if not question.sweeps.is_relative_to(question.folder):
        return None
    sweep = question.sweeps / _SWEEP
    if scratch is not None:
        made = view.changed_in(scratch, sweep.relative_to(question.folder))
        made.mkdir(parents=True)
        return made
    new = [path for path in (sweep, *sweep.parents) if not path.exists()]
    (answers / MADE).write_text("".join(f"{path}\n" for path in new), encoding="utf-8")
    sweep.mkdir(parents=True, exist_ok=True)
    return sweep


@cache
def _announce(command: str, folder: Path) -> None:
    """Say once what runs for real where no view protects the folder."""
    print(
        f"asking for real, up to its trainer: {command} in {folder}. What its Python "
        "programs make there is removed.",
        file=sys.stderr,
        flush=True,
    )


def _remove_made(answers: Path) -> None:
    """Remove the files and empty folders that Python programs have made in the working folder, the
    deepest first.
    """
    for text in sorted(made_paths(answers), key=len, reverse=True):
        with suppress(OSError):
            path = Path(text)
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()


def _runs(mark: str) -> bool:
    """Return whether a marked process runs. One that becomes another program has no environment for
    a moment.
    """
    for _ in range(3):
        if marked(mark):
            return True
        time.sleep(0.1)
    return False


def _replace_programs(folder: Path, answers: Path, package: str, path: str) -> None:
    """Make programs that answer instead of those that would submit a job or delete files, for the
    PATH of the command.

    Of ray's commands only the one that submits is replaced; ``path`` has its own program.
    """
    folder.mkdir()
    texts = {"srun": _SRUN}
    for name in (*QUEUES, RAY):
        answer = json.dumps({"failed": f"it calls {name}, which would submit a job", "queue": name})
        lines = [
            f"echo {shlex.quote(answer)} > {shlex.quote(str(answers / 'queue.json'))}",
            "exit 1",
        ]
        if name == RAY:
            own = shutil.which("ray", path=path) or "/nonexistent/ray"
            lines.insert(0, f'[ "$1 $2" = "job submit" ] || exec {shlex.quote(own)} "$@"')
        texts[name.partition(" ")[0]] = "\n".join(["#!/bin/sh", *lines, ""])
    for name in DELETE:
        replacement = shlex.join([sys.executable, "-I", str(HARM), package, name])
        texts[name] = f'#!/bin/sh\nexec {replacement} "$@"\n'
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)


def _find_lines(
    command: str, folder: Path, pattern: "re.Pattern[str]"
) -> Iterator[tuple[str, str]]:
    """Yield the lines of a command's texts that match, each after its place; comments do not
    count.
    """
    for name, text in launch_texts(command, folder):
        for number, line in enumerate(text.splitlines(), 1):
            if not line.lstrip().startswith("#") and pattern.search(line):
                location = f"{name}:{number}" if name else "the command"
                yield location, line.strip()


def _refuse_queues(command: str, folder: Path) -> None:
    """Raise UserError if the command submits jobs by a program's path, which cannot be replaced.
    Nothing has run.
    """
    for location, line in _find_lines(command, folder, _QUEUE_PATH):
        raise UserError(
            f"{command}: {location} calls a scheduler's program by its path ({line}), so asking it "
            "would submit a job. Nothing ran. Give the script of that job, as in: bash "
            "train.slurm. The sweep submits its own jobs with cluster=slurm."
        )


def check_ports(trainer: Trainer, at_once: int) -> None:
    """Raise UserError if a command's text has a fixed port and several trials run at once on a
    machine: one gets it.
    """
    if trainer.command is None or at_once < 2:
        return
    for at, line in _find_lines(trainer.command, Path(trainer.workdir or "."), _PORT):
        raise UserError(
            f"{at} has a fixed port ({line}), and only one of the {at_once} trials that run at "
            "once on this machine gets it. Leave the port out, or write --master_port "
            "$MASTER_PORT, which each trial has. Otherwise set search.parallel=1."
        )


def _refuse_loss(question: _Question, run: _Run) -> None:
    """Raise UserError for a command that would delete, move or overwrite files of the user's or of
    the sweeps.
    """
    answer = next((answer for answer in run.answers if "lost" in answer), None)
    if answer is None:
        return
    if shell := answer.get("shell"):
        pattern = re.compile(rf"(?:^|[\s;&|(`'\"]){shell}\s")
        location = shell
        for at, line in _find_lines(question.command, question.folder, pattern):
            location = f"{at} ({line})"
            break
    else:
        location = answer["line"] or "a program of it"
    what = (
        f"{question.command}: {location} would delete, move or overwrite {redact(answer['lost'])}"
    )
    if answer["sweeps"]:
        raise UserError(
            f"{what}, which belongs to the folder of the sweeps. A trial would destroy its own "
            "sweep. Nothing was deleted. Set outputs=... to another folder, or have the command "
            "clear a folder of its own."
        )
    raise UserError(
        f"{what}. Nothing was deleted. A trial would do it each time. Move these files away, or "
        "take the line out. To ask the "
        f"command in spite of it, set {MODE}=real in front of the command line."
    )


def _wait(
    process: "subprocess.Popen[bytes]",
    command: str,
    answers: Path,
    limit: float,
    is_repeated: bool,
    ours: tuple[str, str],
) -> tuple[bool, str]:
    """Wait for the answer, or for the command's end if it may train again.

    Return whether the time was over, and the Python that would train without our hook; ``ours`` are
    mark and folder of it.
    """
    started, looked, is_announced = time.monotonic(), 0.0, False
    while process.poll() is None:
        spent = time.monotonic() - started
        if spent > limit:
            return True, ""
        if spent > looked + LOOK:
            looked = spent
            if dropped := _without_hook(*ours):
                return False, dropped
        files = [*answers.glob("*.json")]
        if files and not is_repeated:
            break
        if files:
            (answers / "continue").touch()
        if spent > QUIET and not is_announced:
            is_announced = True
            print(
                f"asking the trainer of {command[:80]} for its values ...",
                file=sys.stderr,
                flush=True,
            )
        time.sleep(0.02)
    return False, ""


def _without_hook(mark: str, package: str) -> str:
    """Return the command line of a marked Python that has loaded torch without our hook; empty if
    there is none.
    """
    for pid in marked(mark):
        with suppress(OSError):
            process = Path("/proc", str(pid))
            variables = (process / "environ").read_bytes().decode(errors="replace").split("\0")
            arguments = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            path = next((text[11:] for text in variables if text.startswith("PYTHONPATH=")), "")
            flags = takewhile(lambda word: word.startswith("-"), arguments[1:])
            is_isolated = any(re.match("-[a-zA-Z]*[IE]", flag) for flag in flags)
            is_hooked = package in path and not is_isolated
            if is_hooked or "libtorch" not in (process / "maps").read_text():
                continue
            line = " ".join(arguments).strip()
            if is_isolated:
                return line
            return f"PYTHONPATH={path} {line}" if path else f"{line} (without PYTHONPATH)"
    return ""


def _trains_again(command: str, folder: Path) -> bool:
    """Return whether a command's text has several launches. If not, nothing after the trainer has
    to run.
    """
    launches = 0
    for _, text in launch_texts(command, folder):
        with suppress(UserError):
            launches += len(LaunchParser(()).find(text))
    return launches > 1


def _why_unanswered(run: _Run, limit: float) -> str:
    """Say why a command answered nothing, and what to do."""
    last = "\n".join(run.log.strip().splitlines()[-8:])
    said = f" Its last lines:\n{last}" if last else ""
    if run.is_late:
        return (
            f"it built no GRPO trainer within {limit:g} s. Give a command that does less before "
            f"its trainer, or prepare its data first.{said}"
        )
    if run.dropped:
        return (
            f"the program never reported its trainer: our hook is not in {run.dropped}. Write "
            "PYTHONPATH=...:$PYTHONPATH where it is set, and take out -I and -E. It was ended "
            "before it trained."
        )
    if "seen" not in run.notes and (lacking := re.search(_NOT_FOUND, last)):
        return f"it cannot be started, because {lacking[1]} is not found. Correct the command."
    if run.is_left:
        return (
            "it ends while its program runs on in the background. A trial ends with its command. "
            "Take out nohup and the & behind the program, or end the script with the line: wait"
        )
    queue = next((answer["queue"] for answer in run.answers if "queue" in answer), "")
    if queue == RAY:
        return (
            f"it calls {RAY}, whose program runs on the cluster: the values of a trial do not "
            "arrive there. Nothing was submitted. Give the command behind the --, as in: python3 "
            "train.py. For a program without TRL's trainer set trainer.metrics."
        )
    if queue:
        return (
            f"it calls {queue}, which would submit a job. Nothing was submitted. Give the script "
            "of that job, as in: bash train.slurm. The sweep submits its own jobs with "
            "cluster=slurm."
        )
    if "seen" not in run.notes:
        return (
            "the program never reported its trainer: no Python of it imports our hook. It may run "
            f"in a container, with python -I or -E, or reset PYTHONPATH. {_MANUAL}{said}"
        )
    if run.answers:
        reason = _reason(run)
        return f"it fails before its GRPO trainer: {reason}. Correct it; nothing was trained.{said}"
    return (
        "it ended without building a GRPO trainer. Give the command that trains. For a program "
        "without TRL's trainer set trainer.metrics. If its trainer is built where our hook is not "
        f"imported (a container, python -I), this cannot be seen. {_MANUAL}{said}"
    )
