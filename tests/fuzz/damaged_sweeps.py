"""Whole sweeps of every kind, copies of them with damaged files, and every command on such a
copy.
"""

import contextlib
import io
import json
import os
import random
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from faults.sweeps import EASY, Remembered
from grporecipe.errors import ExitCode, LeaseLostError
from grporecipe.files import append_line, write_json
from grposweep.cli import _results as results
from grposweep.cli import _sweeps as sweeps
from grposweep.cli._app import answer
from grposweep.cli.composed import composer
from grposweep.config.compose import open_session
from grposweep.launchers.base import End, Job, Launcher
from grposweep.search.parse import parse_space, split_tokens
from grposweep.search.space import Space
from grposweep.storage import lease
from grposweep.storage.results import TrialResult, TrialStatus
from grposweep.sweep import run
from grposweep.sweep.validate import validate_sweep
from grposweep.train.records import MetricsFile

RATE = "lr=tag(log,interval(1e-5,1e-2))"
KINDS = {
    "grid": ("lr=1e-4,1e-3,3e-3",),
    "tpe with pauses": (
        "search=tpe",
        "search.trials=6",
        "search.stopping=asha",
        "search.parallel=2",
        RATE,
    ),
    "race": ("search.seeds=2", "search.leaders=2", "lr=1e-4,1e-3,2e-3"),
    "one factor": ("search=one_factor", "search.seeds=2", "lr=3e-4,1e-3", "kl=none,low"),
    "warm start": ("search=tpe", "search.trials=4", "search.warm_start=earlier", RATE),
}
STEPS = 8
# for a command; the longest takes one
SECONDS = 20
# what a finished trial is
KEPT = ("result.json", "metrics.jsonl", "trial.json", "config.yaml")


class Instant(Launcher):
    """Runs an attempt between two looks at it: half of its steps at the first, the rest at the
    second.
    """

    kind = "local"
    slots = 2

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.looks: list[int] = []

    def submit(self, job: Job) -> str:
        self.jobs.append(job)
        self.looks.append(0)
        append_line(
            job.folder / "runs.jsonl",
            {"event": "start", "attempt": job.attempt, "time": 1.0, "devices": 1},
        )
        return f"local-{len(self.jobs) - 1}"

    def poll(self, job_id: str) -> End | None:
        number = int(job_id.removeprefix("local-"))
        job = self.jobs[number]
        look = self.looks[number]
        self.looks[number] += 1
        half = STEPS // 2
        is_stopped = look > 0 and (job.folder / "control.json").exists()
        if not is_stopped:
            _train(job, range(1, half + 1) if look == 0 else range(half + 1, STEPS + 1))
        if look == 0:
            return None
        status = TrialStatus.STOPPED if is_stopped else TrialStatus.FINISHED
        rate = json.loads((job.folder / "trial.json").read_text())["point"].get("lr", 5e-6)
        value, step = (None, half) if is_stopped else (1.0 - rate, STEPS)
        TrialResult(status, job.attempt, value, 0.01, step=step).write(job.folder)
        append_line(
            job.folder / "runs.jsonl", {"event": "end", "attempt": job.attempt, "time": 2.0}
        )
        return End(ExitCode.STOPPED if is_stopped else ExitCode.FINISHED)

    def cancel(self, job_id: str) -> None:
        """It has ended before anything asks."""


def _train(job: Job, steps: range) -> None:
    metrics = MetricsFile(job.folder, job.attempt)
    known = {(line["kind"], line["step"]) for line in metrics.lines()}
    for step in steps:
        for kind, values in (
            ("train", {"reward": 0.1 * step, "loss": 0.5}),
            ("eval", {"eval_reward": 0.1 * step}),
        ):
            if (kind, step) not in known:
                metrics.write(kind, step, 8 * step, values)
    write_json(job.folder / "heartbeat", {"step": steps[-1], "total": STEPS, "counter": steps[-1]})


@dataclass
class Base:
    """A sound sweep, and the command that continues with it."""

    kind: str
    path: Path
    space: Space
    points: Remembered
    fixed: list[str]

    def resume(self) -> int:
        """Give its command again, where the present folder has an ``outputs``."""
        return run.run_sweep(validate_sweep(self.space, self.points, self.fixed), self.fixed, "s")


def run_kind(kind: str, here: Path, name: str = "s", arguments: tuple[str, ...] = ()) -> Base:
    """Run a sweep of this kind to its end."""
    with open_session() as session:
        words = [
            *EASY,
            f"schedule.max_steps={STEPS}",
            "schedule.evaluations=8",
            f"name={name}",
            *(arguments or KINDS[kind]),
        ]
        space, fixed = parse_space(list(split_tokens(words)), {}, session.loader)
        base = Base(
            kind,
            here / "outputs" / name,
            space,
            Remembered(composer(session.loader, "config"), fixed),
            fixed,
        )
        os.chdir(here)
        assert base.resume() == 0
    return base


@contextmanager
def without_waiting() -> Iterator[None]:
    """Attempts that take no time, and leases that are believed at once."""
    with (
        patch.object(run, "build_launcher", lambda *_: Instant()),
        patch.object(run, "POLL_SECONDS", 0.0),
        patch.object(lease, "PATIENCE_SECONDS", 0.0),
    ):
        yield


def make_bases(here: Path, kinds: tuple[str, ...] = tuple(KINDS)) -> list[Base]:
    """Run one sweep of each kind, and the one that another starts from."""
    with without_waiting(), redirect_stdout(io.StringIO()):
        for kind in kinds:
            (here / kind).mkdir(parents=True)
            if kind == "warm start":
                run_kind(kind, here / kind, "earlier", ("lr=1e-4,1e-3",))
        return [run_kind(kind, here / kind) for kind in kinds]


DEEP = "[" * 100_000
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**30,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\ud800",
    "\x1b[31m",
    [],
    {},
    [[]],
    {"a": {"b": []}},
)


def change_value(text: str, rng: random.Random) -> str:
    """Replace one value somewhere in a file of JSON, or in one of its lines."""
    rows = text.split("\n") if "\n{" in text else [text]
    place = rng.randrange(len(rows))
    # brackets that an earlier damage left
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(rows[place])
        node = found
        key = None
        while isinstance(node, dict | list) and node and (key is None or rng.random() < 0.7):
            parent = node
            key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
            node = parent[key]
        if key is not None:
            parent[key] = rng.choice(VALUES)
        rows[place] = json.dumps(found)
    return "\n".join(rows)


def _cut(text: str, rng: random.Random) -> str:
    return text[: rng.randrange(len(text) + 1)]


def _without_line(text: str, rng: random.Random) -> str:
    rows = text.split("\n")
    del rows[rng.randrange(len(rows))]
    return "\n".join(rows)


def _garbled(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    return (
        text[:at]
        + "".join(chr(rng.randrange(256)) for _ in range(rng.randrange(1, 40)))
        + text[at + rng.randrange(40) :]
    )


def _repeated(text: str, rng: random.Random) -> str:
    rows = text.split("\n")
    return "\n".join([*rows, rng.choice(rows), ""])


TEXTS: dict[str, Callable[[str, random.Random], str]] = {
    "another value": change_value,
    "cut": _cut,
    "a line lost": _without_line,
    "garbled": _garbled,
    "a line twice": _repeated,
    "empty": lambda _text, _rng: "",
    "brackets": lambda _text, _rng: DEEP,
    "brackets in a line": lambda text, _rng: text + '{"a": ' + DEEP + "\n",
}


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _large(path: Path) -> None:
    os.truncate(path, 1 << 40)


THINGS: dict[str, Callable[[Path], None]] = {
    "missing": lambda path: path.unlink(),
    "a folder": _folder,
    "a link to itself": _loop,
    "a pipe": _pipe,
    "a terabyte": _large,
}


def _trial_gone(trial: Path) -> None:
    shutil.rmtree(trial)


def _trial_is_a_file(trial: Path) -> None:
    shutil.rmtree(trial)
    trial.write_text("x")


def _trial_twice(trial: Path) -> None:
    def unfit(folder: str, names: list[str]) -> list[str]:
        """Pipes, and files of a terabyte that would be copied byte by byte."""
        found = {name: Path(folder, name) for name in names}
        return [
            n
            for n, p in found.items()
            if not p.is_dir() and (not p.is_file() or p.stat().st_size > 1 << 30)
        ]

    shutil.copytree(trial, trial.with_name(trial.name[:5] + "abcdef"), ignore=unfit)


def _trial_unfinished(trial: Path) -> None:
    """As a controller leaves it that dies while it runs."""
    (trial / "result.json").unlink(missing_ok=True)
    if (
        not (trial / "attempts.jsonl").is_file()
        or (trial / "attempts.jsonl").stat().st_size > 1 << 30
    ):
        # damaged before
        return
    events = (trial / "attempts.jsonl").read_text().splitlines()
    (trial / "attempts.jsonl").write_text(
        "\n".join(line for line in events if '"ended"' not in line) + "\n"
    )


FOLDERS: dict[str, Callable[[Path], None]] = {
    "a trial's folder is gone": _trial_gone,
    "a file for a trial's folder": _trial_is_a_file,
    "two folders of a trial": _trial_twice,
    "a trial is unfinished": _trial_unfinished,
}


def damage(sweep: Path, rng: random.Random) -> list[str]:
    """Damage one to three things in a sweep's folder; return what."""
    said = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        trials = sorted(path for path in (sweep / "trials").iterdir() if path.is_dir())
        files = sorted(
            p
            for p in sweep.rglob("*")
            if p.is_file() and not p.is_symlink() and p.stat().st_size < 1 << 30
        )
        if trials and rng.random() < 0.1:
            name = rng.choice(list(FOLDERS))
            trial = rng.choice(trials)
            with contextlib.suppress(FileNotFoundError, OSError):
                FOLDERS[name](trial)
            said.append(f"{name}: {trial.name}")
            continue
        # A sweep's own files as often as those of its many trials.
        own = [path for path in files if path.parent == sweep]
        path = rng.choice(own if own and rng.random() < 0.4 else files)
        kind = rng.choice([*TEXTS, *THINGS, "another value", "another value"])
        if kind in TEXTS:
            text = TEXTS[kind](path.read_text(encoding="utf-8", errors="replace"), rng)
            path.write_bytes(text.encode("utf-8", "surrogatepass"))
        else:
            THINGS[kind](path)
        said.append(f"{kind}: {path.relative_to(sweep)}")
    return said


def looks(sweep: str, rng: random.Random) -> dict[str, Callable[[], int | None]]:
    """Return four of the commands that read a sweep."""
    known: dict[str, Callable[[], int | None]] = {
        "status": lambda: sweeps.status(sweep),
        "status --json": lambda: sweeps.status(sweep, json=True),
        "show": lambda: sweeps.show([sweep, "0"]),
        "show best": lambda: sweeps.show([sweep, "best"]),
        "list": lambda: sweeps.list_(Path("outputs")),
        "export": lambda: results.export(sweep),
        "compare": lambda: results.compare([sweep]),
        "best": lambda: results.best(sweep),
        "best --export": lambda: results.best(sweep, Path("best.yaml")),
        "cancel": lambda: results.cancel(sweep),
        "report": lambda: sweeps.report(sweep),
        "rerun": lambda: results.rerun([sweep, "0"]),
    }
    return {name: known[name] for name in rng.sample(list(known), 4)}


@dataclass
class Outcome:
    """What became of one damaged sweep: how each command ended, and what must not have happened."""

    damages: list[str]
    codes: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def try_damaged(base: Base, here: Path, seed: int) -> Outcome:
    """Damage a copy of a sweep, give every command, then continue with it."""
    rng = random.Random(f"{base.kind} {seed}")
    shutil.rmtree(here, ignore_errors=True)
    shutil.copytree(base.path.parent, here / "outputs")
    os.chdir(here)
    sweep = here / "outputs" / base.path.name
    found = Outcome(damage(sweep, rng))
    touched = {line.split(": ", 1)[1].split("/")[1] for line in found.damages if "trials/" in line}
    touched |= {line.split(": ", 1)[1] for line in found.damages if line.split(": ")[0] in FOLDERS}
    # a second folder of a damaged trial is no sound one
    numbers = {name[:4] for name in touched}
    sound = {
        p: _content(p)
        for p in sorted((sweep / "trials").iterdir())
        if p.name[:4] not in numbers and (p / "result.json").exists()
    }
    commands = looks(str(sweep), rng)
    commands["resume"] = base.resume
    commands["status after it"] = lambda: sweeps.status(str(sweep), json=True)
    for name, work in commands.items():
        _give(name, work, found)
    for trial, content in sound.items():
        if _content(trial) != content:
            found.wrong.append(f"{trial.name} was not damaged, and is another one now")
    return found


def _content(trial: Path) -> list[bytes | None]:
    """What a trial is; nothing of one that was stopped early, whose promotion continues with it."""
    if not trial.is_dir() or TrialResult.read(trial).status is not TrialStatus.FINISHED:
        return []
    return [(trial / name).read_bytes() if (trial / name).is_file() else None for name in KEPT]


class TooLongError(BaseException):
    """A command waits for something that never comes."""


def _ours(trace: Any) -> traceback.FrameSummary:
    """Return the last line of the package's own."""
    found = traceback.extract_tb(trace)
    return next((line for line in reversed(found) if "/grposweep/" in line.filename), found[-1])


def _too_long(_signal: int, _frame: object) -> None:
    raise TooLongError(f"more than {SECONDS} s")


def _give(name: str, work: Callable[[], int | None], found: Outcome) -> None:
    """Run a command as its own process would; anything but an answer or a message is wrong."""
    out = io.StringIO()
    err = io.StringIO()
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(SECONDS)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            found.codes[name] = answer(work)
    except LeaseLostError:
        found.codes[name] = ExitCode.FAILED
    except BaseException as error:  # noqa: BLE001 - the harness reports all that a command lets through
        place = _ours(sys.exc_info()[2])
        where = "/".join(Path(place.filename).parts[-2:])
        found.wrong.append(
            f"{name}: {type(error).__name__}: {str(error)[:120]} ({where}:{place.lineno})"
        )
        return
    finally:
        signal.alarm(0)
    if "Traceback" in out.getvalue() + err.getvalue() or "\x1b" in out.getvalue() + err.getvalue():
        found.wrong.append(f"{name}: a traceback or an escape sequence was printed")
    if found.codes[name] == ExitCode.BAD_INPUT and err.getvalue().count("\n") > 3:
        found.wrong.append(f"{name}: its message has {err.getvalue().count(chr(10))} lines")
