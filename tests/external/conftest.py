"""A training script that is none: it takes TRL's configuration and leaves a trainer state, without importing torch."""

from pathlib import Path

import pytest

SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
import yaml

words = sys.argv[1:]
if words[0] == "--config":
    recipe = yaml.safe_load(Path(words[1]).read_text())
else:
    recipe = dict(zip((word[2:] for word in words[::2]), words[1::2]))
output, steps, lr = Path(recipe["output_dir"]), int(recipe["max_steps"]), float(recipe["learning_rate"])
Path("seen.json").write_text(json.dumps({"arguments": words, "environment": dict(os.environ)}))
history = []
if "RECEIVES" in os.environ:
    os.kill(os.getpid(), getattr(signal, os.environ["RECEIVES"]))
for step in range(1, steps + 1):
    time.sleep(float(os.environ.get("STEP_SECONDS", 0)))
    if os.environ.get("EXIT_AT") == str(step):
        sys.exit(7)
    history += [{"step": step, "loss": 1.0, "reward": lr}, {"step": step, "eval_reward": 1 - lr, "eval_loss": 0.0}]
    checkpoint = output / f"checkpoint-{step}"
    checkpoint.mkdir(exist_ok=True)
    state = {"global_step": step, "max_steps": steps, "log_history": history}
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))
"""
RECIPE = """# everything that its author wrote stays
learning_rate: 1.0e-05
num_generations: 8
per_device_train_batch_size: 16
generation_batch_size: 32
max_steps: 3
eval_strategy: steps
per_device_eval_batch_size: 8
report_to: none
weight_decay: 0.1
"""


@pytest.fixture
def script(here: Path) -> tuple[str, ...]:
    """The overrides that sweep it."""
    (here / "train.py").write_text(SCRIPT)
    (here / "recipe.yaml").write_text(RECIPE)
    return ("trainer=script", "trainer.script=train.py", "trainer.recipe=recipe.yaml", "name=s")
