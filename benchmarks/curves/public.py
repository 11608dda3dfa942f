"""Replay other people's learning curves: python benchmarks/curves/public.py FOLDER [REPEATS].

Nothing is fetched. The folder holds files of curves as replay.py reads them, with any parameters;
other JSON lines are left out. One table has as many trials as the file has points, at most 24, and
one has a budget of a quarter and a half of the points.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import replay
from pool import Pool, read_pool

from grporecipe.errors import UserError

POLICIES = "default,tpe,hyperband,halving,asha,median"


def main(folder: Path, repeats: int = 40) -> int:
    """Print the tables of each file."""
    files = {path: pool for path in sorted(folder.glob("*.jsonl")) if (pool := _read(path))}
    if not files:
        raise UserError(
            f"{folder}: there is no file of recorded curves. Name a folder with JSON lines that "
            "replay.py reads."
        )
    for path, pool in files.items():
        points = len(pool.places)
        shared = [str(path), "--repeats", str(repeats), "--policy"]
        replay.main([*shared, POLICIES.replace(",halving", ""), "--trials", str(min(points, 24))])
        replay.main([*shared, POLICIES, "--budget", f"{points / 4:.2g},{points / 2:.2g}"])
    return 0


def _read(path: Path) -> Pool | None:
    """Return the curves of a file; None if it holds something else."""
    try:
        return read_pool(path)
    except UserError:
        return None


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
    except UserError as error:
        sys.exit(f"{error}")
