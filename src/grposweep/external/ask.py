"""Ask a user's command what its GRPO trainer would get: run it up to the trainer's construction, and end it there."""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from grporecipe.errors import UserError
from grporecipe.files import parse_json
from grporecipe.reading.launch import LaunchParser
from grporecipe.redaction import redact
from grposweep.external.environment import SHELL, foreign_path, package_folder
from grposweep.process import MARK, kill_group, marked, start_guard

MODE = "GRPOSWEEP_ASK_MODE"
STAND_INS, REAL = "stand-ins", "real"
SECONDS = {STAND_INS: 60.0, REAL: 600.0}
QUIET = 2.0  # seconds before a long question is announced
LOOK = 0.2  # seconds between two looks at the processes
OTHER = "other."  # the start of a note of a trainer that is not GRPO's
QUEUES = ("sbatch", "qsub", "bsub")
_SCRIPT = re.compile(r"[^\s;&|'\"]+\.(?:sh|bash|slurm|sbatch)\b")
_MANUAL = "Pass PYTHONPATH and the variables that begin with GRPOSWEEP_ on to the program: docs/guides/own_script.md."
_NOT_FOUND = re.compile(r"([^\s:]+): (?:command )?not found$|([^\s:]+): No such file or directory$", re.MULTILINE)


@dataclass(frozen=True)
class Asked:
    """What a command's trainer would get.

    ``how`` is ``stand-ins`` or ``real``, and ``why`` the reason why stand-ins did not do. ``record`` is described in
    train/hook/record.py; its ``given`` is the base recipe. ``files`` are the data files that the program opened, and ``modules``
    the user's modules that it imported. ``seconds`` of CPU. ``assumed``: nothing states the number of training processes.
    ``is_exact``: it is the answer of this command, and not what several commands have alike.
    """

    how: str
    record: Mapping[str, Any]
    files: tuple[str, ...]
    modules: tuple[str, ...]
    seconds: float
    assumed: bool = False
    why: str = ""
    is_exact: bool = True


@dataclass(frozen=True)
class _Run:
    """One run of the command: its answers, the names of its notes, the end of its output, and whether its time was over."""

    answers: list[dict[str, Any]]
    notes: frozenset[str]
    log: str
    is_late: bool = False
    dropped: str = ""  # a Python that has loaded torch without our hook, as its command line
    is_left: bool = False  # programs ran on after the command's end


def ask(
    command: str,
    folder: Path,
    environment: Mapping[str, str],
    processes: int | None = None,
    seconds: Mapping[str, float] = SECONDS,
) -> Asked:
    """Run a shell command in a folder up to its GRPO trainer: on stand-ins, and for real if that fails.

    The variable GRPOSWEEP_ASK_MODE=real leaves the stand-ins out.
    ``processes`` is the number of training processes if nothing else states it, ``seconds`` the limit of each run.

    Raises UserError if the command builds no trainer or several, or if its configuration is refused.
    """
    how, why = REAL if {**os.environ, **environment}.get(MODE) == REAL else STAND_INS, ""
    run = _run(how, command, folder, environment, processes, seconds[how])
    built = " and ".join(sorted(note.removeprefix(OTHER) for note in run.notes if note.startswith(OTHER)))
    if how == STAND_INS and built and _has_failed(run):  # for real it would train
        raise UserError(
            f"{command}: it builds {built}, and ended without building a GRPO trainer ({_reason(run)}). Give the command that "
            "trains with GRPO, without the training before it."
        )
    if how == STAND_INS and _has_failed(run) and ("on_stand_ins" in run.notes or (run.is_late and "seen" in run.notes)):
        how, why = REAL, _reason(run)
        run = _run(how, command, folder, environment, processes, seconds[how])
    answers = [answer for answer in run.answers if "failed" not in answer]
    if not answers:
        _refuse(command, run, seconds[how])
    first, *others = answers
    if "refused" in first:
        raise UserError(
            f"{command}: its configuration is refused at {first['line'] or 'its construction'}: {first['refused']} "
            "Correct the script or its options. Nothing was trained."
        )
    if others or first["several"]:
        lines = [answer["record"]["trainer_line"] for answer in answers if "record" in answer]
        programs = f"{len(answers)} programs ({', '.join(lines)})"
        what = f"a second one at {first['several']}" if first["several"] else programs
        raise UserError(
            f"{command}: it builds several GRPO trainers: {what}. A trial is one training. "
            "Give a command that trains once, and sweep what the others change, such as seed=1,2,3."
        )
    return Asked(
        first["how"], first["record"], tuple(first["files"]), tuple(first["modules"]), first["seconds"],
        "processes_assumed" in run.notes, why,
    )  # fmt: skip


def _has_failed(run: _Run) -> bool:
    return not run.answers or any("failed" in answer for answer in run.answers)


def _reason(run: _Run) -> str:
    """Return why a run has no answer."""
    failed = next((answer["failed"] for answer in run.answers if "failed" in answer), "")
    return redact(failed) or ("it took too long" if run.is_late else "it ended before its trainer")


def _run(
    mode: str, command: str, folder: Path, environment: Mapping[str, str], processes: int | None, limit: float
) -> _Run:
    """Run the command once and end it after its answers."""
    place = Path(tempfile.mkdtemp(prefix="grposweep-ask-"))
    answers, log, mark = place / "answers", place / "log", os.urandom(16).hex()
    answers.mkdir()
    package = str(package_folder(place))
    path = os.pathsep.join([package, *foreign_path(environment)])
    _replace_queues(place / "bin", answers)
    programs = os.pathsep.join([str(place / "bin"), {**os.environ, **environment}.get("PATH", os.defpath)])
    variables = {
        **os.environ, **environment, "PYTHONPATH": path, "PATH": programs, "GRPOSWEEP_ASK": str(answers), MODE: mode,
        "GRPOSWEEP_ASK_PROCESSES": str(processes or 1), "WANDB_MODE": "disabled", MARK: mark, "SPT_NOENV": "1",
        **({"CUDA_VISIBLE_DEVICES": ""} if mode == REAL else {}),
    }  # fmt: skip
    guard = start_guard(mark, place)
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*SHELL, command], cwd=folder, env=variables, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        is_late, dropped = _wait(process, command, answers, limit, _trains_again(command, folder), (mark, package))
        records = [parse_json(each.read_bytes()) for each in sorted(answers.glob("*.json"), key=os.path.getmtime)]
        notes = frozenset(each.name for each in answers.iterdir())
        said = redact(log.read_text(encoding="utf-8", errors="replace"))
        return _Run(records, notes, said, is_late, dropped, not (records or is_late or dropped) and _runs(mark))
    finally:
        kill_group(mark)
        if guard.stdin is not None:
            guard.stdin.close()
        guard.wait()


def _runs(mark: str) -> bool:
    """Return whether a marked process runs. One that becomes another program has no environment for a moment."""
    for _ in range(3):
        if marked(mark):
            return True
        time.sleep(0.1)
    return False


def _replace_queues(folder: Path, answers: Path) -> None:
    """Make programs that answer instead of those that would submit a job, for the PATH of the command."""
    folder.mkdir()
    for name in QUEUES:
        answer = json.dumps({"failed": f"it calls {name}, which would submit a job", "queue": name, "seconds": 0})
        (folder / name).write_text(f"#!/bin/sh\necho {shlex.quote(answer)} > '{answers}/{name}.json'\nexit 1\n")
        (folder / name).chmod(0o755)


def _wait(
    process: "subprocess.Popen[bytes]",
    command: str,
    answers: Path,
    limit: float,
    is_repeated: bool,
    ours: tuple[str, str],
) -> tuple[bool, str]:
    """Wait for the answer, or for the command's end if it may train again.

    Return whether the time was over, and the Python that would train without our hook; ``ours`` are mark and folder of it.
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
            print(f"asking the trainer of {command[:80]} for its values ...", file=sys.stderr, flush=True)
        time.sleep(0.02)
    return False, ""


def _without_hook(mark: str, package: str) -> str:
    """Return the command line of a marked Python that has loaded torch without our hook; empty if there is none."""
    for pid in marked(mark):
        with suppress(OSError):
            place = Path("/proc", str(pid))
            variables, words = ((place / name).read_bytes().decode(errors="replace") for name in ("environ", "cmdline"))
            path = next((text[11:] for text in variables.split("\0") if text.startswith("PYTHONPATH=")), None)
            flags = takewhile(lambda word: word.startswith("-"), words.split("\0")[1:])
            is_isolated = any(re.match("-[a-zA-Z]*[IE]", flag) for flag in flags)
            if (is_isolated or package not in (path or "")) and "libtorch" in (place / "maps").read_text():
                line = " ".join(words.split("\0")).strip()
                return line if is_isolated else f"PYTHONPATH={path} {line}" if path else f"{line} (without PYTHONPATH)"
    return ""


def _trains_again(command: str, folder: Path) -> bool:
    """Return whether a command's text has several launches. If not, nothing after the trainer has to run."""
    texts = [command]
    for name in _SCRIPT.findall(command):
        with suppress(OSError, ValueError):
            texts.append((folder / name).read_text(encoding="utf-8"))
    launches = 0
    for text in texts:
        with suppress(UserError):
            launches += len(LaunchParser(()).find(text))
    return launches > 1


def _refuse(command: str, run: _Run, limit: float) -> NoReturn:
    """Raise UserError for a command that answered nothing."""
    last = "\n".join(line for line in run.log.strip().splitlines()[-8:])
    said = f" Its last lines:\n{last}" if last else ""
    if run.is_late:
        raise UserError(
            f"{command}: it built no GRPO trainer within {limit:g} s. Give a command that does less before its trainer, or "
            f"prepare its data first.{said}"
        )
    if "seen" not in run.notes and (lacking := _NOT_FOUND.search(last)):
        name = lacking[1] or lacking[2]
        raise UserError(f"{command}: it cannot be started, because {name} is not found. Correct the command.")
    if run.dropped:
        raise UserError(
            f"{command}: the program never reported its trainer: our hook is not in {run.dropped}. Write "
            "PYTHONPATH=...:$PYTHONPATH where it is set, and take out -I and -E. It was ended before it trained."
        )
    if run.is_left:
        raise UserError(
            f"{command}: it ends while its program runs on in the background. A trial ends with its command. Take out nohup and "
            "the & behind the program, or end the script with the line: wait"
        )
    if queue := next((answer["queue"] for answer in run.answers if "queue" in answer), ""):
        raise UserError(
            f"{command}: it calls {queue}, which would submit a job. Nothing was submitted. Give the script of that job, as "
            "in: bash train.slurm. The sweep submits its own jobs with cluster=slurm."
        )
    if "seen" not in run.notes:
        raise UserError(
            f"{command}: the program never reported its trainer: no Python of it imports our hook. It may run in a container, "
            f"with python -I or -E, or reset PYTHONPATH. {_MANUAL}{said}"
        )
    if run.answers:
        why = _reason(run)
        raise UserError(f"{command}: it fails before its GRPO trainer: {why}. Correct it; nothing was trained.{said}")
    raise UserError(
        f"{command}: it ended without building a GRPO trainer. Give the command that trains. If its trainer is built where our "
        f"hook is not imported (a container, python -I), this cannot be seen. {_MANUAL}{said}"
    )
