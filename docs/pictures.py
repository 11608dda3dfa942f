"""Makes docs/report.png: the demo's sweep (run here, minutes), its report, and the upper part of that in Chromium.

python docs/pictures.py [SWEEP FOLDER]      (make pictures)
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

CHECKOUT = Path(__file__).resolve().parents[1]
PICTURE = CHECKOUT / "docs" / "report.png"
WIDTH, HEIGHT = 960, 1080
MOST_BYTES = 150_000


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
    """Make the picture again."""
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        folder = Path(sys.argv[1]).resolve() if sys.argv[1:] else sweep(here)
        report(folder, here / "report.html")
        take(here / "report.html", PICTURE)
    size = PICTURE.stat().st_size
    print(f"{PICTURE}: {size:,} bytes")
    if size > MOST_BYTES:
        sys.exit(f"that is more than {MOST_BYTES:,}: take a smaller part of the page")


if __name__ == "__main__":
    main()
