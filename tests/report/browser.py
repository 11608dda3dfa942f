"""Debian's Chromium, driven by playwright: pages opened from disk, and the errors that they
logged.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# A machine without a GPU draws WebGL in software; a container's root cannot make Chromium's
# sandbox.
ARGUMENTS = [
    "--no-sandbox",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--hide-scrollbars",
]
FIGURES = ("curves", "progress", "slices", "map", "parallel")


def chromium() -> str:
    """Where it is; skips the test where it is not, unless GRPOSWEEP_BROWSER_REQUIRED is set."""
    found = shutil.which("chromium")
    if found is None:
        why = "Chromium is not installed (apt-get install chromium)"
        pytest.fail(why) if os.environ.get("GRPOSWEEP_BROWSER_REQUIRED") else pytest.skip(why)
    return found


@contextmanager
def start_browser() -> Iterator["Browser"]:
    """One for all tests of a module."""
    from playwright.sync_api import sync_playwright

    path = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def open_page(
    browser: "Browser",
    report: Path,
    scheme: str = "light",
    width: int = 1200,
    figures: Sequence[str] = FIGURES,
) -> Iterator["Page"]:
    """The report with these figures drawn; afterwards it must have said nothing, and asked only for
    itself and for plotly.js.
    """
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})  # type: ignore[arg-type]
    page = context.new_page()
    said = []
    # WebGL in software, on a busy machine
    page.set_default_timeout(120_000)
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    shared = {
        path.as_uri() for folder in report.parents[:2] for path in folder.glob("plotly-*.min.js")
    }
    page.on(
        "request",
        lambda request: (
            said.append(request.url) if request.url not in {report.as_uri(), *shared} else None
        ),
    )
    page.goto(report.as_uri())
    for name in figures:
        page.wait_for_selector(f"#plot-{name} :is(.main-svg, p)", state="attached")
    yield page
    context.close()
    assert said == []
