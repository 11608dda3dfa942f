"""A sweep that ms-swift trains on a CPU, and its record in RESULTS.md: python
benchmarks/frameworks/ms_swift_sweep.py.

Twelve points over the embedded tiny model, a third of them invalid: 12 generations divide no
rollout of 32 completions.
"""

import json
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
sys.path[:0] = [str(HERE)]

from results import write_section  # noqa: E402  # found through the line above

PYTHON = PROJECT / ".venvs" / "ms-swift" / "bin" / "python"
TINY, NAME = PROJECT / "outputs" / "ms-swift-tiny", "ms-swift-sweep"
DIALS = ("lr=3e-4,1e-3", "batch.num_generations=4,8,12", "kl=none,high")
BODY = """`make ms-swift-sweep`, {date}: `src/run.py -m {dials} -- swift rlhf grpo.yaml` over the tiny model,
60 optimizer steps per trial, {trials} trials in {minutes:.1f} minutes with ms-swift's own imports and start; {invalid} of the 12
points were pruned before (GB101: 12 generations in a rollout of 32 completions). The objective is ms-swift's own held-out reward,
`eval_reward`, as it logs it.

| trial | dials | first held-out reward | last | status | seconds |
|---|---|---|---|---|---|
{rows}
"""


def main() -> int:
    """Prepare, sweep, record; the sweep's exit code."""
    subprocess.run([sys.executable, str(HERE / "tiny" / "prepare.py"), str(TINY)], check=True)
    shutil.rmtree(PROJECT / "outputs" / NAME, ignore_errors=True)
    start = time.monotonic()
    launch = [str(PYTHON.with_name("swift")), "rlhf", str(HERE / "tiny" / "grpo.yaml")]
    words = [f"trainer.workdir={TINY}", f"name={NAME}", *DIALS, "--", *launch]
    command = [sys.executable, "src/run.py", "-m", *words]
    code = subprocess.run(command, cwd=PROJECT, check=False).returncode
    folder = PROJECT / "outputs" / NAME
    invalid = len((folder / "invalid.jsonl").read_text().splitlines())
    rows = [_row(trial) for trial in sorted((folder / "trials").iterdir())]
    minutes = (time.monotonic() - start) / 60
    body = BODY.format(
        date=datetime.now(UTC).date(),
        dials=" ".join(DIALS),
        trials=len(rows),
        minutes=minutes,
        invalid=invalid,
        rows="\n".join(rows),
    )
    write_section("ms-swift: a sweep that it trains", body)
    return code


def _row(trial: Path) -> str:
    result: dict[str, Any] = json.loads((trial / "result.json").read_text())
    lines = [json.loads(line) for line in (trial / "metrics.jsonl").read_text().splitlines()]
    rewards = [line["eval_reward"] for line in lines if line["kind"] == "eval"]
    dials = json.loads((trial / "changed.json").read_text())["keys"]
    said = " ".join(f"{name}={value}" for name, value in dials.items()) or "as the recipe says"
    ends = f"{rewards[0]:.3f} | {rewards[-1]:.3f}" if rewards else "- | -"
    return f"| {trial.name} | {said} | {ends} | {result['status']} | {result['seconds']:.0f} |"


if __name__ == "__main__":
    sys.exit(main())
