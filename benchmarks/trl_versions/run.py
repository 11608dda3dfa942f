"""The rules compared with older TRL releases, each really installed: python
benchmarks/trl_versions/run.py [versions ...].

Makes an environment for each line of requirements.txt under .venvs, draws random settings, lets the
real class judge them and the fixes, and writes RESULTS.md. Exit code 1 where anything differs.
"""

import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
# the suite's own comparison, with other interpreters
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT / "tests")]

from grporecipe.model.setting import Version  # noqa: E402  # same
from real_trl import Comparison, compare  # noqa: E402  # found through the line above

COUNT, SEED = 1000, 1
# the one CPU build that every environment takes
TORCH = "torch==2.13.0"

HEAD = """# The rules compared with older TRL releases

`make trl-versions`, {date}, {count} random settings a release (seed {seed}). Before 0.18 the real `GRPOTrainer` judges (its
checks stand behind everything else in the constructor), since then the real `GRPOConfig`; only the number of processes is
not real. Every fix of a setting with a single problem is judged by the same class.

| TRL | transformers | accelerate | torch | settings | accepted | refused | fixes asked | differences | seconds |
|---|---|---|---|---|---|---|---|---|---|
"""


def main(wanted: list[str]) -> int:
    """Run every release of requirements.txt, or those named."""
    lines = [
        line
        for line in (HERE / "requirements.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    rows, differing = [], 0
    for version, *pins in map(str.split, lines):
        if wanted and version not in wanted:
            continue
        start = time.monotonic()
        done = compare(str(_environment(version, pins)), _triple(version), COUNT, SEED)
        rows.append(_row(done, time.monotonic() - start))
        print(rows[-1], *done.differences[:10], sep="\n", flush=True)
        differing += len(done.differences)
    if not wanted:
        head = HEAD.format(date=datetime.now(UTC).date(), count=f"{COUNT:,}", seed=SEED)
        (HERE / "RESULTS.md").write_text(head + "\n".join(rows) + "\n")
    return 1 if differing else 0


def _environment(version: str, pins: list[str]) -> Path:
    """The interpreter of a release's own environment, made where there is none."""
    folder = PROJECT / ".venvs" / f"trl-{version}"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, TORCH, f"trl=={version}", *pins], check=True)
        (folder / "ready").touch()
    return python


def _triple(version: str) -> Version:
    major, minor, patch = map(int, version.split("."))
    return major, minor, patch


def _row(done: Comparison, seconds: float) -> str:
    names = ("trl", "transformers", "accelerate", "torch")
    counts = (done.asked, done.accepted, done.refused, done.fixes, len(done.differences))
    cells = [
        *(done.versions[name] for name in names),
        *(f"{count:,}" for count in counts),
        f"{seconds:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
