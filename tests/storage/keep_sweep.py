"""Keep a sweep as a commit leaves it: `python tests/storage/keep_sweep.py COMMIT` writes tests/fixtures/sweeps/COMMIT.tar.gz.

Its controller is killed in the second of three trials. Paths and host names are replaced, logs are left out.
"""

import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from tempfile import TemporaryDirectory

PROJECT = Path(__file__).resolve().parents[2]
KEPT = PROJECT / "tests" / "fixtures" / "sweeps"
WORDS = (
    "trainer=fake", "trainer.fake.step_seconds=0.2", "schedule=steps", "schedule.max_steps=8", "schedule.evaluations=2",
    "schedule.checkpoints=2", "search.parallel=1", "name=killed", "-m", "lr=1e-4,1e-3,3e-3",
)  # fmt: skip
SECONDS = 120


def keep(commit: str) -> Path:
    """Run the commit's own code, kill it, and pack what it left."""
    with TemporaryDirectory() as folder:
        code, here = Path(folder, "code"), Path(folder, "here")
        code.mkdir()
        here.mkdir()
        archive = subprocess.run(["git", "-C", str(PROJECT), "archive", commit], capture_output=True, check=True)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as file:
            file.extractall(code, filter="data")
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [sys.executable, str(code / "src" / "run.py"), *WORDS]
        controller = subprocess.Popen(
            command, cwd=here, env=variables, start_new_session=True, stdin=subprocess.DEVNULL
        )
        sweep, until = here / "outputs" / "killed", time.monotonic() + SECONDS
        while not _is_midway(sweep):
            if controller.poll() is not None or time.monotonic() > until:
                raise SystemExit("the sweep was over, or did not begin")
            time.sleep(0.05)
        os.killpg(controller.pid, signal.SIGKILL)
        time.sleep(1)  # its trials end with it
        KEPT.mkdir(exist_ok=True)
        target = KEPT / f"{commit}.tar.gz"
        with tarfile.open(target, "w:gz") as file:
            for path in sorted(sweep.rglob("*")):
                if path.is_file() and path.parent.name not in ("logs", "checkpoints") and "code" not in path.parts:
                    data = _without_places(path.read_text(), code, here).encode()
                    about = tarfile.TarInfo(str(path.relative_to(sweep)))
                    about.size = len(data)
                    file.addfile(about, io.BytesIO(data))
    return target


def _without_places(text: str, code: Path, here: Path) -> str:
    host = socket.gethostname()
    known = {
        str(code): "/code",
        str(here): "/here",
        sys.executable: "python",
        f'"{host}"': '"node1"',
        f" on {host} ": " on node1 ",
        f"hostname: {host}\n": "hostname: node1\n",
    }
    for place, name in known.items():
        text = text.replace(place, name)
    return text


def _is_midway(sweep: Path) -> bool:
    folders = sorted(sweep.glob("trials/*"))
    lines = folders[1] / "metrics.jsonl" if len(folders) > 1 else None
    return lines is not None and lines.is_file() and lines.read_text().count("\n") >= 5


if __name__ == "__main__":
    print(keep(sys.argv[1]))
