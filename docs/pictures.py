"""Make the README's pictures: docs/lint.svg from lint's output, docs/report.png from the demo's sweep (run here, minutes).

python docs/pictures.py [SWEEP FOLDER]      (make pictures)
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

CHECKOUT = Path(__file__).resolve().parents[1]
PICTURE = CHECKOUT / "docs" / "report.png"
TERMINAL = CHECKOUT / "docs" / "lint.svg"
GUIDE = CHECKOUT / "docs" / "guides" / "lint.md"
WIDTH, HEIGHT = 960, 1080
MOST_BYTES = 150_000


def draw_lint(here: Path) -> None:
    """Draw what the guide's first command prints on its recipe, in a terminal of 80 columns."""
    recipe = GUIDE.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    (here / "recipe.yaml").write_text(recipe.partition("\n")[2], encoding="utf-8")  # without the line of its name
    options = ["lint", "recipe.yaml", "--processes", "7", "--framework-version", "1.16"]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT / "src"), "FORCE_COLOR": "1", "COLUMNS": "80"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "grposweep", *options]
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=80, file=nowhere, force_terminal=True)
        console.print(f"[bold]$[/] grposweep {' '.join(options)}", highlight=False)
        console.print(Text.from_ansi(done.stdout))
        console.save_svg(str(TERMINAL), title="grposweep lint")


def sweep(here: Path) -> Path:
    """The sweep that ``make demo`` runs."""
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT / "src"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(CHECKOUT / "src" / "run.py"), "sweeps=lr_batch", "name=lr_batch"]
    subprocess.run(command, cwd=here, env=environment, check=True)
    return here / "outputs" / "lr_batch"


def report(folder: Path, file: Path) -> None:
    """Its report."""
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT / "src")}
    command = [sys.executable, "-m", "grposweep", "report", str(folder), "--output", str(file)]
    subprocess.run(command, env=environment, check=True)


def take(file: Path, picture: Path) -> None:
    """The page's upper part, as a person sees it who opens it on a wide screen."""
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--hide-scrollbars"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.set_default_timeout(180_000)  # WebGL in software, on a busy machine
        page.goto(file.as_uri())
        page.wait_for_selector("#plot-importances :is(.main-svg, p)", state="attached")
        page.screenshot(path=picture)
        browser.close()


def main() -> None:
    """Make the pictures again."""
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        draw_lint(here)
        folder = Path(sys.argv[1]).resolve() if sys.argv[1:] else sweep(here)
        report(folder, here / "report.html")
        take(here / "report.html", PICTURE)
    size = PICTURE.stat().st_size
    print(f"{PICTURE}: {size:,} bytes")
    if size > MOST_BYTES:
        sys.exit(f"that is more than {MOST_BYTES:,}: take a smaller part of the page")


if __name__ == "__main__":
    main()
