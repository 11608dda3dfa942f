"""The terminal's tables, at the width that is asked for."""

import pytest

from grposweep.report.space_summary import InvalidRow, invalid_table
from grposweep.report.tables import build_console, build_table

LONG = InvalidRow("GB101", 8, "batch=small", "it does not divide the 32 completions of a rollout " * 3, ["a_key=1"])


@pytest.mark.parametrize("columns", [80, 120])
def test_what_is_piped_is_as_wide_as_columns_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    """The longest line reaches the width and does not pass it."""
    monkeypatch.setenv("COLUMNS", str(columns))
    build_console().print(invalid_table([LONG], 8, 12))
    assert columns - 5 <= max(len(line) for line in capsys.readouterr().out.splitlines()) <= columns


def test_text_from_files_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences are shown, markup is text, in lines and in tables."""
    console = build_console()
    table = build_table("trial")
    table.add_row("\x1b]0;title\x07")
    table.add_row("[bold]x[/]")
    console.print(table)
    console.print("\x1b[2J[link=https://evil.example]here[/link] :bomb:")
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\\x1b]0;" in shown
    assert "[bold]x[/]" in shown
    assert "\\x1b[2J[link=https://evil.example]here[/link] :bomb:" in shown
