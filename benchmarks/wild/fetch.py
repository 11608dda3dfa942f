"""Fetch the repositories of ``wild.jsonl`` at their commits, for `run.py`: their text files only,
none of it is run.

python benchmarks/wild/fetch.py FOLDER [--verdicts wild.jsonl]
"""

import argparse
import json
import subprocess
from pathlib import Path


def main() -> None:
    """Clone each repository without its history, as OWNER+NAME."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--verdicts", type=Path, default=Path(__file__).with_name("wild.jsonl"))
    asked = parser.parse_args()
    rows = map(json.loads, asked.verdicts.read_text(encoding="utf-8").splitlines())
    for repository, commit in sorted({(row["repo"], row["commit"]) for row in rows}):
        target = asked.folder / repository.replace("/", "+")
        if target.exists():
            continue
        print(repository, flush=True)
        git = ["git", "-C", str(target)]
        subprocess.run(["git", "init", "--quiet", str(target)], check=True)
        address = f"https://github.com/{repository}"
        subprocess.run([*git, "fetch", "--quiet", "--depth", "1", address, commit], check=True)
        subprocess.run([*git, "checkout", "--quiet", "FETCH_HEAD"], check=True)


if __name__ == "__main__":
    main()
