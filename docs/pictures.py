"""Make the pictures: docs/lint.svg, a terminal, and screenshots of the demo's report (its sweep
takes minutes).

docs/report.png is the README's, the upper part of the page as it is. docs/guides/report-*.png show
a wide screen and a phone, light and dark.

python docs/pictures.py [SWEEP FOLDER]      (make pictures; with the Python that ran the sweep)
python docs/pictures.py --recording         (only docs/lint.svg: seconds, without Chromium)
"""

import os
import shutil
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.text import Text

CHECKOUT = Path(__file__).resolve().parents[1]
TERMINAL = CHECKOUT / "docs" / "lint.svg"
COLUMNS = 88
RECORDED = "grposweep lint docs/recipe.yaml --processes 7"
# pixels: a wide screen and a phone
SIZES = {"1400": (1400, 820), "420": (420, 900)}
README = CHECKOUT / "docs" / "report.png"
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
PICTURES: dict[Path, tuple[int, int, Scheme]] = {README: (960, 1130, "light")}
PICTURES |= {
    CHECKOUT / "docs" / "guides" / f"report-{name}-{scheme}.png": (*size, scheme)
    for name, size in SIZES.items()
    for scheme in SCHEMES
}
MOST_BYTES = 150_000


def record() -> str:
    """Run the README's first command, and return the terminal as an SVG."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(CHECKOUT / "src"),
        "FORCE_COLOR": "1",
        "COLUMNS": str(COLUMNS),
    }
    environment.pop("NO_COLOR", None)
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    done = subprocess.run(
        [sys.executable, "-m", *RECORDED.split()],
        cwd=CHECKOUT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    console.print(f"[bold]$[/] {RECORDED}", highlight=False)
    console.print(Text.from_ansi(done.stdout))
    return console.export_svg(title="grposweep lint")


def sweep(here: Path) -> Path:
    """Run the sweep of ``make demo``, and return its folder."""
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
    shown = {
        str(folder.parents[1]): "/home/you/sweeps",
        sys.executable: "python",
        str(CHECKOUT): "/home/you/grposweep",
    }
    for path, instead in shown.items():
        text = text.replace(path, instead)
    file.write_text(text, encoding="utf-8")


def take(file: Path) -> None:
    """Take the upper part of the page at each size and colour scheme."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = [
            "--no-sandbox",
            "--use-angle=swiftshader",
            "--enable-unsafe-swiftshader",
            "--hide-scrollbars",
        ]
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=arguments
        )
        for picture, (width, height, scheme) in PICTURES.items():
            page = browser.new_page(
                viewport={"width": width, "height": height}, color_scheme=scheme
            )
            # WebGL in software, on a busy machine
            page.set_default_timeout(180_000)
            page.goto(file.as_uri())
            page.wait_for_selector("#plot-slices :is(.main-svg, p)", state="attached")
            page.screenshot(path=picture)
            # a third of the bytes
            Image.open(picture).quantize(192).save(picture, optimize=True)
            page.close()
        browser.close()


def main() -> None:
    """Make the pictures again."""
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        TERMINAL.write_text(record(), encoding="utf-8")
        if sys.argv[1:] == ["--recording"]:
            return
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
