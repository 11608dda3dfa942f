"""Print what `grposweep check` and a sweep change among the user's files, for each command of
tests/command/destructive.yaml.

    python benchmarks/harm/commands.py > table.md

The trainer is the stub of the tests. A sweep that is not refused runs the command, which may then
change what it always changes.
"""

import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT / "tests"), str(PROJECT / "src")]

from command.test_no_harm import OWN, ROWS, contents, staged  # noqa: E402
from own_commands import STUB  # noqa: E402
from support import Ended, grposweep, run_in  # noqa: E402


def changed(folder: Path, before: dict[str, str]) -> str:
    """Return the user's files that are not as before, without what a sweep writes into its own
    folder.
    """
    after = {
        name: digest
        for name, digest in contents(folder).items()
        if not name.startswith(("outputs/s", "model"))
    }
    lost = [name for name in before if after.get(name) != before[name]]
    return ", ".join(lost) or "none"


def ask_and_sweep(row: dict[str, Any]) -> list[str]:
    """Return a row of the table."""
    cells = [row["kind"]]
    for is_sweep in (False, True):
        with tempfile.TemporaryDirectory() as made:
            here = Path(made, "a folder")
            here.mkdir()
            variables = {
                name: value for name, value in staged(row, here).items() if name != "PYTHONPATH"
            }
            (here / "outputs" / "earlier").mkdir(parents=True)
            (here / "outputs" / "earlier" / "sweep.yaml").write_text("name: earlier\n")
            before = contents(here)
            command = row.get("command", "python train.py")
            ended: Ended
            if is_sweep:
                stub = f"+trainer.environment.PYTHONPATH='{STUB}'"
                words = (
                    "name=s",
                    "search.metric=reward",
                    "schedule=steps",
                    stub,
                    "-m",
                    "lr=1e-4,3e-4",
                )
                ended = run_in(here, *words, "--", command, **variables)
            else:
                asked = f"PYTHONPATH={shlex.quote(str(STUB))} {command}"
                ended = grposweep(here, "check", "--", "bash", "-c", asked, **variables)
            cells += [str(ended.code), changed(here, before)]
    return cells


def main() -> None:
    """Print the table."""
    print(f"The user's files: {', '.join(OWN)}, and an earlier sweep in outputs/.\n")
    print("| command | check: exit code | check: changed | sweep: exit code | sweep: changed |")
    print("|---|---|---|---|---|")
    for row in ROWS:
        print("|", " | ".join(ask_and_sweep(row)), "|", flush=True)


if __name__ == "__main__":
    main()
