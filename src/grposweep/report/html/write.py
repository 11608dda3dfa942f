"""Write the report: template, style, scripts, plotly.js and the sweep's data in one HTML file."""

import json
import secrets
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from grposweep.errors import UserError
from grposweep.files import write_text
from grposweep.report.html.content import page_content
from grposweep.report.html.series import page_data
from grposweep.report.view import SweepView

NAME = "report.html"
SCRIPTS = ("words.js", "figures.js", "maps.js", "verdicts.js", "page.js")


def write_report(view: SweepView, output: Path | None = None) -> Path:
    """Write the sweep's report into its folder, or to ``output``, and return its path.

    Raises UserError if it cannot be written.
    """
    path = view.path / NAME if output is None else output / NAME if output.is_dir() else output
    text = render_report(view)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}). Set --output to a file that can.") from error
    return path


def render_report(view: SweepView) -> str:
    """Return the page. Everything from outside is escaped, and the nonce keeps foreign scripts from running."""
    environment = Environment(
        loader=PackageLoader("grposweep.report", "html"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    text = environment.get_template("page.html.j2").render(
        **page_content(view),
        nonce=secrets.token_urlsafe(16),
        style=Markup(_part("style.css")),
        plotly=Markup((files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")),
        scripts=Markup("\n".join(_part(name) for name in SCRIPTS)),
        data=Markup(script_json(page_data(view))),
    )
    return text.encode("utf-8", "replace").decode("utf-8")  # half a character cannot be written


def script_json(content: Any) -> str:
    """Return JSON for a script element: nothing in it can end the element or begin a comment."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _part(name: str) -> str:
    return (files("grposweep.report") / "html" / name).read_text(encoding="utf-8")
