"""Real trainings of the tiny model with plain TRL, each logged in four formats at once, and what
`grposweep diagnose` says.

    python benchmarks/curves/logs.py FOLDER

One training is healthy, one too hot, one has a reward without variance, and one takes steps too
small to learn. The fifth format is our metrics.jsonl: folders of trials can be named as further
arguments.
"""

import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from grporecipe.diagnose._findings import diagnose
from grporecipe.diagnose.readers import find_log, read_log

STEPS = 150
# learning rate, and whether answers are right
TRAININGS: dict[str, tuple[float, bool]] = {
    "healthy": (5e-4, True),
    "hot": (2e-2, True),
    "no variance": (5e-4, False),
    "timid": (1e-9, True),
}
CODE = """
import sys
from datasets import Dataset
from transformers import PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer
from grposweep.train.tasks.arithmetic import pairs
from grposweep.train._tiny import tiny_folder

folder, rate, right, steps = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "True", int(sys.argv[4])

def exact(completions, answer, **_):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer)]

rows = [{"prompt": f"{a:02d}+{b:02d}=", "answer": str(a + b) if right else "000"} for a, b in pairs()[:2000]]
arguments = GRPOConfig(
    output_dir=folder, learning_rate=rate, lr_scheduler_type="constant", max_steps=steps, per_device_train_batch_size=32,
    num_generations=8, max_completion_length=4, logging_steps=1, report_to=["tensorboard", "wandb"], save_strategy="steps",
    save_steps=steps, save_only_model=True, use_cpu=True, bf16=False, beta=0.0, run_name="log",
)
tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny_folder(), padding_side="left")
GRPOTrainer(model=str(tiny_folder()), reward_funcs=exact, args=arguments, train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer).train()
"""


def train(folder: Path, rate: float, right: bool) -> None:
    """Run one training in a process of its own; its output is console.log."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder),
        "OMP_NUM_THREADS": "1",
        "WANDB_SILENT": "true",
        "TENSORBOARD_LOGGING_DIR": str(folder / "runs"),
        "HF_HUB_OFFLINE": "1",
    }
    words = [sys.executable, "-c", CODE, str(folder), str(rate), str(right), str(STEPS)]
    with (folder / "console.log").open("w") as log:
        subprocess.run(words, env=environment, stdout=log, stderr=subprocess.STDOUT, check=True)
    (folder / "done").touch()


def logs(folder: Path) -> list[Path]:
    """Return the logs of a training, one a format."""
    return [
        folder / "console.log",
        find_log(folder / f"checkpoint-{STEPS}"),
        find_log(folder / "runs"),
        next((folder / "wandb").glob("offline-run-*/*.wandb")),
    ]


def row(name: str, path: Path) -> list[Any]:
    """Return what is reported of one log."""
    log = read_log(path)
    found = diagnose(log)
    said = (
        ", ".join(f"{finding.level} {finding.name}" for finding in found.findings)
        or "no problem found"
    )
    return [name, log.format, len(log.steps), said]


def main() -> None:
    """Train what is not trained yet, and print the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("trials", type=Path, nargs="*", help="folders of trials")
    given = parser.parse_args()
    rows = []
    for name, (rate, right) in TRAININGS.items():
        folder = given.folder.resolve() / name.replace(" ", "-")
        if not (folder / "done").exists():
            train(folder, rate, right)
        rows += [row(name, path) for path in logs(folder)]
    rows += [row(trial.name, trial) for trial in given.trials]
    for line in rows:
        print(f"| {' | '.join(str(cell) for cell in line)} |")
    (given.folder / "logs.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
