"""Follows a page of docs/ as a reader would: writes its files, runs its commands, and puts what
they print into the page.

    python docs/follow.py docs/tutorial.md ...      (make docs; a test does the same and compares)

A block of yaml or python whose first line is ``# NAME`` is a file. A block of ``console`` holds
commands after ``$ `` with what they print below them; ``...`` stands for lines left out. Everything
runs in a fresh folder in which ``src`` is the checkout's. Blocks of ``sh`` are not run: they need a
cluster, GPUs or a login.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```(yaml|python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# instead of the fresh folder
SHOWN = "/home/you/sweeps"
# lines of one command's output that a page has room for
LONG = 34
# of one command, on a busy machine
SECONDS = 1800


def follow(page: Path, programs: str = str(Path(sys.executable).parent), *overrides: str) -> str:
    """The page with what its commands print now.

    ``programs`` is the part of the PATH that has ``python`` and ``grposweep``, ``overrides`` are
    added to every run.

    Raises RuntimeError for a command that fails, unless the page says with ``# exit code N`` that
    it does.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "src").symlink_to(CHECKOUT / "src")
        run = partial(_run, folder, programs, overrides)
        return BLOCK.sub(
            lambda block: _block(block[1], block[2], folder, run), page.read_text(encoding="utf-8")
        )


def _block(kind: str, text: str, folder: Path, run: Callable[[str], str]) -> str:
    if kind == "console":
        return f"```console\n{''.join(_console(text, run))}```"
    first = text.split("\n", 1)[0]
    if first.startswith("# ") and re.fullmatch(r"[\w./-]+\.\w+", first[2:]):
        path = folder / first[2:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return f"```{kind}\n{text}```"


def _console(text: str, run: Callable[[str], str]) -> Iterator[str]:
    for command, before in commands(text):
        yield f"$ {command}\n"
        yield _shortened(run(command), before)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block, with what the page says it printed."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        length = 1
        while lines[length - 1].endswith("\\\n"):
            length += 1
        yield "".join(lines[:length]).rstrip("\n"), "".join(lines[length:])


def _run(folder: Path, programs: str, overrides: Sequence[str], command: str) -> str:
    wanted = re.search(r"# exit code (\d+)$", command)
    path = f"{programs}:{os.environ['PATH']}"
    known = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "HYDRA", "WANDB"))
    }
    known |= {
        "PATH": path,
        "PYTHONPATH": str(CHECKOUT / "src"),
        "NO_COLOR": "1",
        "TERM": "dumb",
        "HF_HUB_OFFLINE": "1",
    }
    known |= {"COLUMNS": "100", "HOME": str(folder)}
    changed = command.replace("src/run.py", " ".join(["src/run.py", *overrides]))
    done = subprocess.run(
        ["sh", "-c", changed],
        cwd=folder,
        env=known,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode != int(wanted[1] if wanted else 0):
        raise RuntimeError(f"$ {command}\n{done.stdout}\nexit code {done.returncode}")
    text = done.stdout.replace(str(folder), SHOWN).replace(str(CHECKOUT), "/home/you/grposweep")
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def _shortened(output: str, before: str) -> str:
    """Only the lines of the page's own extract, where it is one: as many first and last lines
    around ``...``.
    """
    now, then = output.splitlines(), before.splitlines()
    if "..." in then:
        head = then.index("...")
        tail = len(then) - head - 1
        if head + tail < len(now):
            now = [*now[:head], "...", *now[len(now) - tail :]]
    elif len(now) > LONG:
        now = [*now[: LONG - 6], "...", *now[-6:]]
    return "".join(f"{line}\n" for line in now)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(follow(Path(name)), encoding="utf-8")
