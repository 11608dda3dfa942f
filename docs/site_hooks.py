"""Hooks of mkdocs: the order of the four kinds of pages, the pages of rules, links to files outside
docs/ lead to GitHub.
"""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)]*)?\))")
ORDER = ("Guides", "Reference", "Explanation")


def on_files(files: Any, *, config: Any) -> Any:
    """Return the files with the pages of the families of rules, which `make site` writes."""
    from mkdocs.structure.files import File

    for path in sorted((ROOT / "build" / "rules").glob("*.md")):
        files.append(File.generated(config, f"reference/rules/{path.name}", abs_src_path=str(path)))
    return files


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
