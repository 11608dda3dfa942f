"""docs/rules.md says what the rules say."""

from pathlib import Path

from grposweep.lint import rule_docs as document

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


def test_the_page_is_current() -> None:
    """A docstring that changes is shown by a diff of the page."""
    assert PAGE.read_text() == document.render(), f"out of date; make it again with: {document.COMMAND}"


def test_the_page_explains_every_rule_once() -> None:
    """Each under its code, so that a link to one does not break."""
    text = document.render()
    assert all(text.count(f"\n### {code}\n") == 1 for code in document.RULES)


def test_the_page_is_written_where_asked(tmp_path: Path) -> None:
    """The command of the message above."""
    document.main(tmp_path / "docs" / "rules.md")
    assert (tmp_path / "docs" / "rules.md").read_text() == document.render()
