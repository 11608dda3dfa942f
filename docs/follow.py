"""Follows a page as a reader would: writes its files, runs its commands, and compares what they
print with the page.

    python docs/follow.py docs/tutorial.md ...      (make docs; a test does the same and compares)

A page that differs is written again, and the exit code is 1. Identities, times and dates may
differ. A page that says `VARYING` may also differ in the values of trials, and in the lines that
follow from them.

A block of yaml, python or bash whose first line is ``# NAME`` is a file. A block of ``console``
holds commands after ``$ `` with what they print below them; ``...`` stands for lines left out.
Everything runs in a fresh folder in which ``src`` and ``docs`` are the checkout's. All files are
written first. A comment ``<!-- $ COMMAND -->`` is run and shows nothing. Blocks of ``sh`` are not
run: they need a cluster, GPUs or a login.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```(console)\n(.*?)^```$|^<!-- \$ (.*?) -->$", re.S | re.M)
FILE = re.compile(r"^```(?:yaml|python|bash)\n(# ([\w./-]+\.\w+)\n.*?)^```$", re.S | re.M)
# what two runs on one machine do not have in common
PASSING = re.compile(
    r"(?<=-)[0-9a-f]{6,8}\b|(?<=local-)\d+|\d{4}-\d\d-\d\d \d\d:\d\d"
    r"|[\d.e-]+ (?:CPU h(?:ours)?|s|min)\b|\b\d+:\d\d\b|\d+ [GM]iB free"
)
# a page that has these words is compared without the lines below, and without decimals
VARYING = "vary with the processor"
DECIMAL = re.compile(r"[-+]?\d+\.\d+(?:e[-+]?\d+)?")
VARIES = re.compile(
    # a trial's result, the tables of trials, curves, completions
    r"trial \d+(?::| eval_reward| paused| stopped| of .*: eval_reward)|eval_reward\b|\d\.\d+$"
    r"|to \d|  eval_reward| +(?:\d+ +)?\d+ +(?:paused|\d)|trials that are|finished ones"
    r"|.*│|diversity|prompts? |[AB] | +B has other| (?:lr|batch|kl)\S* +\S"
    # what follows from the results
    r"|(?:result|best|first in rank): |No (?:gain|winner)|Repeat it on|Decide between|Train twice"
    r"|Trials? .* differ|\d+ finished, |about .* finish the|its model is in|B - A|comparisons;"
    r"|the best of many|lr=|(?:folder|repeat it): "
    # in status and show
    r"|(?:trials|stopped|best|rank|problems|folder) {2}| {9}|not as recorded"
)
# instead of the fresh folder
SHOWN = "/home/you/sweeps"
# lines of one command's output that a page has room for
LONG = 40
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
        for part in ("src", "docs"):
            (folder / part).symlink_to(CHECKOUT / part)
        text = page.read_text(encoding="utf-8")
        for content, file in FILE.findall(text):
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        run = partial(_run, folder, programs, overrides)
        return BLOCK.sub(partial(_block, run), text)


def _block(run: Callable[[str], str], block: re.Match[str]) -> str:
    if block[1]:
        return f"```console\n{''.join(_console(block[2], run))}```"
    run(block[3])
    return block[0]


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
    for override in overrides:
        text = text.replace(f" {override}", "")
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


def settled(page: str, is_shorter: bool = False) -> str:
    """A page without what may differ from one run to the next, and without its line breaks.

    Nor with the quotes that a command needs around a checkout with a blank in its name, and without
    any number where the trainings were shorter than those of the page.
    """
    lines = re.sub(r"'(/home/you[^']*)'", r"\1", page).splitlines()
    # printed only after two seconds
    lines = [line for line in lines if not line.startswith("asking the trainer of ")]
    if VARYING in page:
        lines = [line for line in lines if not VARIES.match(line)]
    text = PASSING.sub("#", "\n".join(lines))
    if VARYING in page:
        text = DECIMAL.sub("#", text)
    if is_shorter:
        text = re.sub(r"\d[\d,.]*", "#", text)
    return re.sub(r"[─\s]+", " ", text)


def difference(shown: str, now: str, is_shorter: bool = False) -> str:
    """Return the first place at which a page shows something else than its commands print now;
    empty if there is none.
    """
    old, new = settled(shown, is_shorter), settled(now, is_shorter)
    if old == new:
        return ""
    at = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
    context = slice(max(at - 80, 0), at + 80)
    return f"shown: {old[context]}\nprinted: {new[context]}"


def main(pages: Sequence[str]) -> None:
    """Write the pages that show something else than their commands print, and name them."""
    has_changed = False
    for name in pages:
        page = Path(name)
        now = follow(page)
        if where := difference(page.read_text(encoding="utf-8"), now):
            page.write_text(now, encoding="utf-8")
            print(f"{name} showed something else than its commands print; now it is right\n{where}")
            has_changed = True
    sys.exit(has_changed)


if __name__ == "__main__":
    main(sys.argv[1:])
