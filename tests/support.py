"""What tests share: the command's environment, and sweeps read back from disk."""

import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.mark import ParameterSet

if TYPE_CHECKING:
    import optuna
    from rich.console import RenderableType

    from grposweep.schema import Experiment

from command_server import Started, run_forked
from grporecipe.files import Json

PROJECT = Path(__file__).resolve().parents[1]
RUN = PROJECT / "src" / "run.py"


def examples(many: int) -> int:
    """How many examples of a property to try: a third of ``many``; all of them in ``make
    thorough``.
    """
    return many if "GRPOSWEEP_THOROUGH" in os.environ else many // 3


def sampled(
    cases: Iterable[Any], every: int, rest: pytest.MarkDecorator = pytest.mark.slow
) -> list[ParameterSet]:
    """Mark the cases that only a later tier tries: all but each ``every``-th, from the first."""
    marked = []
    for n, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        marked.append(pytest.param(*values, marks=[rest] * (n % every > 0)))
    return marked


def check_experiment(experiment: "Experiment") -> None:
    """Raise UserError with all mistakes of a configuration, as a sweep's base is refused."""
    # Hydra, which test_imports may not find here
    from grporecipe.errors import refuse_mistakes
    from grposweep.config.validate import find_mistakes

    refuse_mistakes(find_mistakes(experiment))


@dataclass
class Ended:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def sweep(self) -> Path:
        """The folder that the command named last."""
        line = next(
            line for line in reversed(self.out.splitlines()) if line.startswith("results in ")
        )
        return Path(line.removeprefix("results in "))


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        """Return true."""
        return True


Run = Callable[..., Ended]
Start = Callable[..., Started]
StartInterpreter = Callable[..., "subprocess.Popen[str]"]
Write = Callable[..., Path]
Printed = Callable[[], str]


def unwrap(text: str) -> str:
    """Return the words of a text that was wrapped at some width, on one line."""
    return " ".join(text.split())


def on_terminal(*shown: "RenderableType", columns: int = 80) -> str:
    """What a terminal of this width shows."""
    from grposweep.report.tables import build_console

    console = build_console(columns)
    with console.capture() as text:
        console.print(*shown)
    return text.get()


def environment(**extra: str) -> dict[str, str]:
    """This environment without what a user's shell may add; no colours, no hub."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "HYDRA", "WANDB"))
    }
    return {**kept, "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "TERM": "dumb", **extra}


def shellcheck(script: str, *excluded: str) -> str:
    """What shellcheck finds in a script, apart from some of its codes; required in CI, which
    installs it.
    """
    if shutil.which("shellcheck") is None:
        assert "GRPOSWEEP_SHELLCHECK_REQUIRED" not in os.environ, "install shellcheck"
        pytest.skip("needs shellcheck (apt-get install shellcheck)")
    command = ["shellcheck", *(f"--exclude={code}" for code in excluded), "-"]
    return subprocess.run(command, input=script, capture_output=True, text=True, check=False).stdout


def trials(sweep: Path) -> list[Path]:
    """A sweep's trial folders, by number."""
    return sorted((sweep / "trials").iterdir())


def read(path: Path) -> Json:
    """One JSON file."""
    return dict(json.loads(path.read_text()))


def lines(path: Path) -> list[Json]:
    """All JSON lines of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, rows: Iterable[Json]) -> None:
    """Write a file of JSON lines."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def update(path: Path, **fields: object) -> None:
    """Set fields of the object in a JSON file."""
    path.write_text(json.dumps({**read(path), **fields}))


def edit(path: Path, old: str, new: str) -> None:
    """Replace all occurrences of a text in a file, which must hold it."""
    text = path.read_text()
    assert old in text, f"{path} has no {old}"
    path.write_text(text.replace(old, new))


def study(sweep: Path) -> "optuna.Study":
    """A sweep's study as any Optuna user opens it."""
    import optuna

    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(sweep / "study.journal"))
    )
    return optuna.load_study(study_name=None, storage=storage)


def load_script(name: str) -> ModuleType:
    """A script of docs/ as a module."""
    spec = spec_from_file_location(name, PROJECT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def known_recipes(*frameworks: str) -> list[Json]:
    """The rows of tests/corpus of these frameworks."""
    return [
        row
        for row in lines(PROJECT / "tests" / "corpus" / "known.jsonl")
        if row["framework"] in frameworks
    ]


def executed_lines(work: Callable[[], object], most: int) -> int:
    """Count the lines of Python that ``work()`` executes. Fail as soon as there are more than
    ``most``.

    The count is the same on every machine under any load, and work without end is stopped.
    """
    count = 0

    def trace(_frame: Any, event: str, _value: Any) -> Any:
        nonlocal count
        count += event == "line"
        assert count <= most, f"more than {most:,} lines were executed"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def wait_for(condition: Any, seconds: float = 240.0) -> None:
    """Wait until ``condition()`` holds; an AssertionError where it never does."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def run_in(here: Path, *arguments: str, timeout: float = 300, **extra: str) -> Ended:
    """``src/run.py`` in a folder, to its end; ``extra`` goes into its environment."""
    return _ended([str(RUN), *arguments], here, environment(**extra), timeout)


def grposweep(here: Path, *arguments: str, stdin: str = "", **extra: str) -> Ended:
    """The ``grposweep`` command in a folder, to its end; ``extra`` goes into its environment."""
    variables = environment(PYTHONPATH=str(PROJECT / "src"), **extra)
    return _ended(["-m", "grposweep", *arguments], here, variables, 300, stdin)


def _ended(
    arguments: list[str], here: Path, variables: dict[str, str], timeout: float, stdin: str = ""
) -> Ended:
    with TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("in", "out", "err")]
        files[0].write_text(stdin)
        code = run_forked(arguments, here, variables, files, timeout)
        return Ended(code, *(path.read_text() for path in files[1:]))
