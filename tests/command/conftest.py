"""A training script that is none: it builds the configuration and the trainer of a stub of TRL,
without importing torch.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig

from grposweep.config.points import Points
from support import PROJECT

STUB = PROJECT / "tests" / "stub_trl"
SCRIPT = f"""
import json, os, signal, sys
sys.path.insert(0, {str(STUB)!r})
import yaml
from trl import GRPOConfig, GRPOTrainer

words = sys.argv[1:]
recipe = yaml.safe_load(open(words[words.index("--config") + 1])) if "--config" in words else {{}}
given = dict(zip((word[2:] for word in words[::2]), words[1::2]))
recipe = {{**recipe, **{{name: yaml.safe_load(value) for name, value in given.items() if name != "config"}}}}
own = {{name: recipe.pop(name) for name in ("penalty", "note", "dataset") if name in recipe}}


def right(completions, **columns):
    return [1.0 for _ in completions]


args = GRPOConfig(**recipe)
trainer = GRPOTrainer("model", right, args, train_dataset=list(range(1000)), eval_dataset=list(range(16)))
json.dump({{"arguments": words, "environment": dict(os.environ), **own}}, open("seen.json", "w"))
if "RECEIVES" in os.environ:
    os.kill(os.getpid(), getattr(signal, os.environ["RECEIVES"]))
if "EXIT_CODE" in os.environ:
    sys.exit(int(os.environ["EXIT_CODE"]))
trainer.train()
trainer.save_model(args.output_dir)
"""
# The command, as an override.
TRAINS = f"trainer.command='{sys.executable} train.py --config recipe.yaml'"
RECIPE = """# everything that its author wrote stays
learning_rate: 1.0e-05
num_generations: 8
per_device_train_batch_size: 16
generation_batch_size: 32
max_steps: 3
logging_steps: 1
eval_strategy: steps
per_device_eval_batch_size: 8
report_to: none
weight_decay: 0.1
"""


@pytest.fixture
def script(here: Path) -> tuple[str, ...]:
    """The overrides that sweep it. It answers for real, because the stub takes no time."""
    (here / "train.py").write_text(SCRIPT)
    (here / "recipe.yaml").write_text(RECIPE)
    asked = "+trainer.environment.GRPOSWEEP_ASK_MODE=real"
    return ("trainer=command", TRAINS, asked, "name=s")


@pytest.fixture
def points(
    compose: Callable[[list[str]], DictConfig],
    script: tuple[str, ...],
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Points]:
    """Points over the script's recipe and further overrides."""
    monkeypatch.chdir(here)
    return lambda *overrides: Points(compose, [*script, *overrides])
