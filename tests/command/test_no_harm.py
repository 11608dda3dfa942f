"""Commands that delete, move or overwrite: asking them and sweeping them leaves every file of the
user's as it was.
"""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from grporecipe.errors import UserError
from grposweep.command._view import can_view
from grposweep.command.ask import ask
from own_commands import STUB, OwnCommand, stage
from support import sampled

HEAD = "from rewards import right, rows\nfrom trl import GRPOConfig, GRPOTrainer\n"
END = """
args = GRPOConfig("my_out", learning_rate=1e-5, max_steps=2, logging_steps=1, save_strategy="no")
GRPOTrainer("tiny", right, args, train_dataset=rows()).train()
open("trained.txt", "w").close()
"""
OWN = {
    "my_out/weights.bin": "weights",
    "old.log": "a line",
    "results.csv": "a table",
    "data/rows.txt": "rows",
}
ROWS = yaml.safe_load(Path(__file__).with_name("destructive.yaml").read_text())
# what is seen without a view of the folder
SEEN = [row for row in ROWS if not row.get("view")]


def contents(folder: Path) -> dict[str, str]:
    """The files and folders of a folder, with a hash of each file."""
    found = {}
    for path in sorted(folder.rglob("*")):
        found[str(path.relative_to(folder))] = (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        )
    return found


def staged(row: dict[str, Any], folder: Path) -> dict[str, str]:
    """Write the files of a row. Return the variables with which its command is typed."""
    scripts = {name: row[name] for name in ("run.sh", "run.py", "Makefile") if name in row}
    files = {**OWN, **scripts, "train.py": f"{HEAD}{row.get('python', '')}{END}"}
    variables = stage(OwnCommand(row["kind"], "", "", "", files), folder)
    return {**variables, "PYTHONPATH": str(STUB), "PYTHONDONTWRITEBYTECODE": "1"}


def answer_of(row: dict[str, Any], folder: Path, variables: dict[str, str]) -> None:
    """Ask the command of a row: it is answered, or refused with the words of the row."""
    command = row.get("command", "python train.py")
    if row["said"] is None:
        found = ask(command, folder, variables, sweeps=folder / "outputs")
        assert found.record["given"]["learning_rate"] == 1e-5
        return
    with pytest.raises(UserError) as raised:
        ask(command, folder, variables, sweeps=folder / "outputs")
    assert row["said"] in str(raised.value)


@pytest.mark.parametrize("row", sampled(ROWS, 12), ids=lambda row: row["kind"])
def test_asking_changes_nothing(here: Path, row: dict[str, Any]) -> None:
    """It is answered, or the line that would is named, and no file is other than before."""
    if row.get("view") and not can_view(here):
        pytest.skip("needs a view of a folder (user namespaces)")
    variables = staged(row, here)
    before = contents(here)
    answer_of(row, here, variables)
    assert contents(here) == before


@pytest.mark.parametrize("row", sampled(SEEN, 15), ids=lambda row: row["kind"])
def test_asking_changes_nothing_without_a_view_of_the_folder(
    here: Path, row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a system that has none, what Python and ``rm`` would do is still seen."""
    variables = staged(row, here)
    before = contents(here)
    # without unshare
    monkeypatch.setenv("PATH", str(here))
    answer_of(row, here, variables)
    assert contents(here) == before
