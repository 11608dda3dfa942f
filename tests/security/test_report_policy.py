"""The report's own policy stops what would get past its escapes: no foreign script runs, and no
request leaves.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from grposweep.report.html_page import write_report
from grposweep.report.view import read_sweep
from made import Made, make_sweep
from report.browser import start_browser

if TYPE_CHECKING:
    from playwright.sync_api import Request

pytestmark = pytest.mark.slow
ATTACKS = """() => {
  const add = (name, values) => document.body.append(Object.assign(document.createElement(name), values));
  add("script", {textContent: "window.taken = 1"});
  add("script", {src: "http://127.0.0.1:9/x.js"});
  add("img", {src: "http://127.0.0.1:9/x.png"});
  add("iframe", {src: "http://127.0.0.1:9/x"});
  add("link", {rel: "stylesheet", href: "http://127.0.0.1:9/x.css"});
  add("base", {href: "http://127.0.0.1:9/"});
  const button = Object.assign(document.createElement("button"), {});
  button.setAttribute("onclick", "window.taken = 1");
  document.body.append(button);
  button.click();
  const form = Object.assign(document.createElement("form"), {action: "http://127.0.0.1:9/x"});
  document.body.append(form);
  form.submit();
  return fetch("http://127.0.0.1:9/x").then(() => "sent", () => document.baseURI);
}"""


def test_nothing_runs_and_nothing_leaves_even_where_an_escape_is_missing(tmp_path: Path) -> None:
    """Elements that a hostile text might have made are added by hand."""
    path = write_report(read_sweep(make_sweep(tmp_path / "s", Made(trials=3))))
    left: list[str] = []

    def note(request: "Request") -> None:
        left.append(request.url)

    with start_browser() as browser:
        page = browser.new_page()
        page.goto(path.as_uri())
        page.on("requestfinished", note)
        page.on("response", lambda response: left.append(response.url))
        assert page.evaluate(ATTACKS) == path.as_uri()
        assert page.evaluate("window.taken") is None
        assert page.url == path.as_uri()
    assert [url for url in left if not url.startswith("file:")] == []
