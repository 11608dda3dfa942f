"""A framework in one folder: flat flags on a command line, sizes in prompts, all of it a table and one rule."""

import re

from grporecipe.frameworks.base import Command, Field, Framework, KeyTable
from grporecipe.recipe import KeySpec
from grporecipe.setting import FrameworkTraits

FIELDS = (
    Field("prompts_per_rollout", "rollout_prompts", "int", 64),
    Field("prompts_per_step", "step_prompts", "int", 32),
    Field("num_generations", "group", "int", 8),
    Field("per_device_train_batch_size", "micro_batch", "int", 4),
    Field("processes", "gpus", "int?"),
    Field("max_steps", "iterations", "int?", rollouts=True),
    Field("epochs", "passes", "float?"),
    Field("learning_rate", "rate", "float", 1e-6),
    Field("beta", "kl_weight", "float", 0.0),
    Field("temperature", "heat", "float", 1.0),
    Field("max_completion_length", "answer_tokens", "int", 256),
    Field("model_name_or_path", "checkpoint", "str?"),
)
KEYS = KeyTable({row.key: KeySpec("any" if row.type == "str?" else row.type, row.default) for row in FIELDS})
FRAMEWORK = Framework(
    traits=FrameworkTraits("toy", "Toy RL", unit="prompts"),
    version=(1, 0, 0),
    fields=FIELDS,
    takes=lambda _: KEYS,
    keys=frozenset({"rollout_prompts", "step_prompts"}),
    programs=re.compile(r"toyrl"),
    commands={"toyrl": Command("train", "toyrl train", takes_file=True)},
)
