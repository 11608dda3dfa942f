"""The terminal's tables, at the width that is asked for."""

import pytest

from grposweep.report.space_summary import InvalidRow, invalid_table
from grposweep.report.tables import build_console

LONG = InvalidRow("GB101", 8, "batch=small", "it does not divide the 32 completions of a rollout " * 3, ["a_key=1"])


@pytest.mark.parametrize("columns", [80, 120])
def test_what_is_piped_is_as_wide_as_columns_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    """The longest line reaches the width and does not pass it."""
    monkeypatch.setenv("COLUMNS", str(columns))
    build_console().print(invalid_table([LONG], 8, 12))
    assert columns - 5 <= max(len(line) for line in capsys.readouterr().out.splitlines()) <= columns
