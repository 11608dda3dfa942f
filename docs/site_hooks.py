"""Hooks of mkdocs: the order of the four kinds of pages; links to files outside docs/ lead to GitHub on the site."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)]*)?\))")
ORDER = ("Guides", "Reference", "Explanation")


def on_nav(nav: Any, *, config: Any, files: Any) -> Any:  # noqa: ARG001 - mkdocs names the arguments
    """Return the navigation in the order of docs/README.md: overview and tutorial first."""
    nav.items.sort(key=lambda item: ORDER.index(item.title) if item.title in ORDER else -1)
    return nav


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001
    """Return the page with such links as addresses."""
    folder = Path(page.file.abs_src_path).parent

    def address(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(ROOT / "docs") or not target.exists():
            return link[0]
        kind = "tree" if target.is_dir() else "blob"
        return f"{link[1]}{config.repo_url}/{kind}/main/{target.relative_to(ROOT)}{link[3]}"

    return LINK.sub(address, markdown)
