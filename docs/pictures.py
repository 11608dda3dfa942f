"""Make the pictures: docs/lint.svg from lint's output, and the report of the demo's sweep (run here, minutes).

docs/report.png is the README's; docs/guides/report-*.png show a wide screen and a phone, light and dark.


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
TERMINAL = CHECKOUT / "docs" / "lint.svg"
GUIDE = CHECKOUT / "docs" / "guides" / "lint.md"
SIZES = {"1400": (1400, 840), "420": (420, 900)}  # pixels: a wide screen and a phone
PICTURES = {CHECKOUT / "docs" / "report.png": (960, 910, "light")} | {
    CHECKOUT / "docs" / "guides" / f"report-{name}-{scheme}.png": (*size, scheme)
    for name, size in SIZES.items()
    for scheme in ("light", "dark")
}
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
    """Write the sweep's report, with /home/you instead of this machine's folders."""
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT / "src")}
    command = [sys.executable, "-m", "grposweep", "report", str(folder), "--output", str(file)]
    subprocess.run(command, env=environment, check=True)
    text = file.read_text(encoding="utf-8")
    shown = {str(folder.parents[1]): "/home/you/sweeps", sys.executable: "python", str(CHECKOUT): "/home/you/grposweep"}
    for path, instead in shown.items():
        text = text.replace(path, instead)
    file.write_text(text, encoding="utf-8")


def take(file: Path) -> None:
    """Take the upper part of the page at each size and colour scheme."""
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--hide-scrollbars"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        for picture, (width, height, scheme) in PICTURES.items():
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
            page.set_default_timeout(180_000)  # WebGL in software, on a busy machine
            page.goto(file.as_uri())
            page.wait_for_selector("#plot-slices :is(.main-svg, p)", state="attached")
            page.screenshot(path=picture)
            page.close()
        browser.close()


def main() -> None:
    """Make the pictures again."""
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        draw_lint(here)
        folder = Path(sys.argv[1]).resolve() if sys.argv[1:] else sweep(here)
        report(folder, here / "report.html")
        take(here / "report.html")
    for picture in PICTURES:
        size = picture.stat().st_size
        print(f"{picture}: {size:,} bytes")
        if size > MOST_BYTES:
            sys.exit(f"that is more than {MOST_BYTES:,}: take a smaller part of the page")


if __name__ == "__main__":
    main()
