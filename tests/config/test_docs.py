"""docs/reference/configuration.md says what the schema says."""

from pathlib import Path
from types import ModuleType

import pytest

from grporecipe.linting import rule_docs
from grposweep.config import docs as document
from grposweep.config.compose import known_keys

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"


def test_the_page_is_current() -> None:
    """A key or a docstring that changes is shown by a diff of the page."""
    assert PAGE.read_text() == document.render_keys(), (
        f"out of date; make it again with: {document.COMMAND}"
    )


def test_every_key_has_its_row() -> None:
    """Sections have headings instead. Faults that tests stage are left out."""
    text = document.render_keys()
    missing = [
        key for key in known_keys() if f"| `{key}` |" not in text and f"# {key}\n" not in text
    ]
    assert missing == []


@pytest.mark.parametrize("page", [document, rule_docs])
def test_help_writes_no_page(
    page: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--help`` is no file name, nor for the page of the rules."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="0"):
        page.main(["--help"])
    assert list(tmp_path.iterdir()) == []
