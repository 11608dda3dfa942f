"""The copy of the code that jobs run."""

from pathlib import Path

from grposweep.process import SOURCE
from grposweep.storage.provenance import is_present_code, snapshot_code


def test_a_snapshot_is_the_running_code_and_is_made_once(tmp_path: Path) -> None:
    """With all of its folders, and without a draft."""
    snapshot = snapshot_code(tmp_path)
    assert is_present_code(snapshot)
    modules = {path.relative_to(SOURCE) for path in (SOURCE / "grposweep").rglob("*.py")}
    assert {path.relative_to(snapshot) for path in (snapshot / "grposweep").rglob("*.py")} == modules
    assert snapshot_code(tmp_path) == snapshot
    assert list((tmp_path / "code").iterdir()) == [snapshot]
