"""docs/reference/: the pages that docs/make_reference.py writes say what the code says."""

from types import ModuleType

import pytest

from grporecipe.errors import ExitCode
from grposweep.storage import paths
from support import PROJECT, load_script

MAKER = PROJECT / "docs" / "make_reference.py"
MADE = ("commands.md", "exit_codes.md", "files.md", "launch_commands.md", "python_api.md")


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    """docs/make_reference.py."""
    return load_script("make_reference")


@pytest.mark.parametrize("name", MADE)
def test_a_reference_page_is_up_to_date(maker: ModuleType, name: str) -> None:
    """If this fails, run ``make docs`` or ``python docs/make_reference.py``."""
    assert maker.PAGES[name]() == (MAKER.parent / "reference" / name).read_text(encoding="utf-8")


def test_every_file_on_disk_has_a_line(maker: ModuleType) -> None:
    """A name in storage/paths.py without a comment would be missing."""
    names = [value for name, value in vars(paths).items() if name.isupper()]
    assert [name for name in names if f"| `{name}` |" not in maker.files()] == []


def test_every_exit_code_has_a_line(maker: ModuleType) -> None:
    """A member of ExitCode without a text would be missing."""
    assert [code.name for code in ExitCode if f"`{code.name}`" not in maker.exit_codes()] == []
