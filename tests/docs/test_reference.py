"""docs/reference/: the generated pages say what the code says."""

from pathlib import Path

import pytest

from grporecipe.errors import ExitCode
from grposweep.config.compose import known_keys
from grposweep.storage import paths
from support import PROJECT, load_script

maker = load_script("make_reference")
PAGES = {
    **maker.PAGES,
    "configuration.md": load_script("make_configuration").render_keys,
    "rules.md": load_script("make_rules").render_index,
}


@pytest.mark.parametrize("name", PAGES)
def test_a_reference_page_is_up_to_date(name: str) -> None:
    """If this fails, run ``make docs``."""
    page = PROJECT / "docs" / "reference" / name
    assert PAGES[name]() == page.read_text(encoding="utf-8")


def test_every_file_on_disk_has_a_line() -> None:
    """A name in storage/paths.py without a comment would be missing."""
    names = [value for name, value in vars(paths).items() if name.isupper()]
    assert [name for name in names if f"| `{name}` |" not in maker.files()] == []


def test_every_exit_code_has_a_line() -> None:
    """A member of ExitCode without a text would be missing."""
    assert [code.name for code in ExitCode if f"`{code.name}`" not in maker.exit_codes()] == []


def test_every_key_has_its_row() -> None:
    """Sections have headings instead. Faults that tests stage are left out."""
    text = PAGES["configuration.md"]()
    missing = [
        key for key in known_keys() if f"| `{key}` |" not in text and f"# {key}\n" not in text
    ]
    assert missing == []


@pytest.mark.parametrize("name", ["make_configuration", "make_rules"])
def test_help_writes_no_page(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--help`` is no file name, nor for the page of the rules."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="0"):
        load_script(name).main(["--help"])
    assert list(tmp_path.iterdir()) == []
