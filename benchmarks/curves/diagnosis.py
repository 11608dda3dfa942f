"""What ``grposweep diagnose`` says of recorded learning curves: its false alarms, and what it finds
of lost trainings.

    python benchmarks/curves/diagnosis.py [FILE ...]

A training "rose" if its last held-out reward is above the start, and none before it is higher, by
more than noise; it "fell" if it ends below the start. Noise is three standard errors of the
difference of two evaluations.
"""

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grporecipe.diagnose._checks import Level
from grporecipe.diagnose._findings import Diagnosis, diagnose
from grporecipe.diagnose._log import Log

# TRL's name of a recorded signal
NAMES = {
    "train_reward": "reward",
    "kl": "kl",
    "entropy": "entropy",
    "grad_norm": "grad_norm",
    "zero_std": "frac_reward_zero_std",
    "truncated": "completions/clipped_ratio",
}
SIGMAS = 3 * math.sqrt(2)


def lines(curve: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A recorded training as logged lines."""
    yield {"step": 0, "eval_reward": curve["start"]}
    for i, (step, value, error) in enumerate(
        zip(curve["steps"], curve["held_out"], curve["held_out_se"], strict=False)
    ):
        signals = {
            name: curve[ours][i] for ours, name in NAMES.items() if curve[ours][i] is not None
        }
        yield {
            "step": step,
            "eval_reward": value,
            "eval_reward_se": error,
            "learning_rate": curve["point"]["lr"],
            **signals,
        }


def fate(curve: dict[str, Any]) -> str:
    """How a training ended, by its held-out reward alone."""
    end, noise = curve["held_out"][-1], SIGMAS * curve["held_out_se"][-1]
    if end < curve["start"] - noise:
        return "fell"
    if end <= curve["start"] + noise:
        return "neither"
    return "rose" if max(curve["held_out"]) - end <= noise else "rose, then fell"


def judged(curve: dict[str, Any]) -> Diagnosis:
    """What is reported of it."""
    return diagnose(Log.build("curve", "recorded", lines(curve), max(curve["steps"])))


def main(files: list[Path]) -> None:
    """Print a table a file."""
    for file in files:
        print(f"{file.stem}\n{'training':16} {'all':>4} {'found':>6}  findings")
        rows: dict[str, list[Diagnosis]] = {}
        for line in file.read_text().splitlines():
            curve = json.loads(line)
            rows.setdefault(fate(curve), []).append(judged(curve))
        for name, found in sorted(rows.items()):
            counts = Counter(f.name for one in found for f in one.findings if f.level != Level.NOTE)
            said = ", ".join(f"{finding} {count}" for finding, count in counts.most_common())
            print(f"{name:16} {len(found):4} {sum(not one.healthy for one in found):6}  {said}")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]] or sorted(Path(__file__).parent.glob("*.jsonl")))
