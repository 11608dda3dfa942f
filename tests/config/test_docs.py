"""docs/reference/configuration.md says what the schema says."""

from pathlib import Path

import pytest

from grposweep.config import docs as document
from grposweep.config.compose import known_keys

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"


def test_the_page_is_current() -> None:
    """A key or a docstring that changes is shown by a diff of the page."""
    assert PAGE.read_text() == document.render(), f"out of date; make it again with: {document.COMMAND}"


def test_every_key_has_its_row() -> None:
    """Sections have headings instead."""
    text = document.render()
    missing = [key for key in known_keys() if f"| `{key}` |" not in text and f"# {key}\n" not in text]
    assert missing == []


def test_defaults_are_said_as_yaml_has_them() -> None:
    """Zero is no false, and nothing is null."""
    rows = document.render()
    assert "| `seed` | whole number | `0` |" in rows
    assert "| `name` | text or null | `null` |" in rows
    assert '| `model.lora.target_modules` | list of text | `["all-linear"]` |' in rows


@pytest.mark.parametrize(
    ("kind", "says"),
    [(int | None, "whole number or null"), (list[str], "list of text"), (dict[str, str], "mapping of text")],
)
def test_types_are_said_in_words(kind: object, says: str) -> None:
    """As in handwritten YAML."""
    assert document.type_text(kind) == says


def test_help_writes_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--help`` is no file name."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="0"):
        document.main(["--help"])
    assert list(tmp_path.iterdir()) == []
