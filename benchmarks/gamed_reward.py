"""A reward that can be gamed: which trial plain ranking picks, and what the report says of it.

``python benchmarks/gamed_reward.py`` trains the tiny model on sums with a reward that gives 0.5 for
the right answer and, by mistake, up to 0.95 for the share of ones in the text: "11" is worth 0.95
for every sum. Learning rates differ. Prints for each trial the gamed reward, the share of right
answers (which the ranking does not see), how varied its held-out completions are, and the warning
of the report; then what measuring cost, as a share of the evaluations' time.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean

from grposweep.process import PROJECT
from grposweep.report._completions import warning, winner_warning
from grposweep.report.trial_view import TrialView
from grposweep.report.view import SweepView, read_sweep

REWARD = """
from grposweep.train.rewards import text_of

def gamed(completions, answer, **_):
    texts = [text_of(completion).strip() for completion in completions]
    return [0.5 if text == gold else 0.95 * text.count("1") / max(len(text), 1) for text, gold in zip(texts, answer)]
"""
RATES = ("1e-4", "3e-4", "1e-3")


def run(folder: Path, steps: int, prompts: int, seed: int) -> SweepView:
    """Train, and return the sweep."""
    (folder / "gamed.py").write_text(REWARD)
    command = [
        sys.executable,
        str(PROJECT / "src" / "run.py"),
        "-m",
        f"lr={','.join(RATES)}",
        "name=gamed",
        f"seed={seed}",
        f"task.rewards=[{folder / 'gamed.py'}:gamed,exact]",
        "task.reward_weights=[1.0,0.0]",
        f"task.eval_prompts={prompts}",
        "schedule=steps",
        f"schedule.max_steps={steps}",
        "schedule.evaluations=4",
        "search.stopping=none",
        "search.guards=false",
    ]
    subprocess.run(
        command,
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "NO_COLOR": "1"},
    )
    return read_sweep(folder / "outputs" / "gamed")


def last(trial: TrialView, name: str) -> float:
    """Return a metric at the last evaluation."""
    return float(next(line[name] for line in reversed(trial.lines) if line.get(name) is not None))


def show(view: SweepView) -> None:
    """Print a row per trial, the winner's warning, and the cost."""
    print(
        "| lr | gamed reward | right answers | diversity | template share | what the report "
        "says |\n|---|---|---|---|---|---|"
    )
    for trial in view.ranked:
        values = (
            last(trial, name) for name in ("eval_rewards/exact/mean", "diversity", "template_share")
        )
        cells = " | ".join(f"{value:.3f}" for value in (trial.objective or 0.0, *values))
        print(f"| {trial.point['lr']} | {cells} | {warning(trial) or 'nothing'} |")
    print("\n" + "\n".join(winner_warning(view.best)))
    shares = [
        line["time_share/diversity"]
        for trial in view.trials
        for line in trial.lines
        if "time_share/diversity" in line
    ]
    print(
        f"\nmeasuring and keeping completions took {fmean(shares):.1%} of the evaluations' time "
        f"(at most {max(shares):.1%})"
    )


def main() -> None:
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="keep the sweep here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.output or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        show(run(folder, options.steps, options.prompts, options.seed))


if __name__ == "__main__":
    main()
