"""How long a user waits for --help and --cfg job: medians of whole processes (aim: under 1.5 s)."""

import statistics
import subprocess
import sys
import time
from pathlib import Path

RUN = Path(__file__).resolve().parents[1] / "src" / "run.py"
REPEATS = 7


def seconds(*arguments: str) -> list[float]:
    """Wall times of the command, after one warm-up."""
    times = []
    for _ in range(REPEATS + 1):
        since = time.perf_counter()
        subprocess.run([sys.executable, str(RUN), *arguments], stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - since)
    return times[1:]


def main() -> None:
    """Print one row a command."""
    print("| command | median s | min | max |\n|---|---|---|---|")
    for arguments in (("--help",), ("--cfg", "job"), ("--cfg", "job", "batch=large", "kl=low")):
        times = seconds(*arguments)
        name = " ".join(arguments)
        print(f"| `run.py {name}` | {statistics.median(times):.2f} | {min(times):.2f} | {max(times):.2f} |")


if __name__ == "__main__":
    main()
