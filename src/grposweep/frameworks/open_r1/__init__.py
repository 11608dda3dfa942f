"""Open-R1: TRL 0.18.0 with keys and checks of its own; its grpo.py takes TRL's configuration."""

import re
from functools import partial

from grposweep.external import ExternalTrainer
from grposweep.frameworks.base import Framework
from grposweep.frameworks.open_r1 import keys
from grposweep.frameworks.open_r1.launch import expand_sbatch
from grposweep.frameworks.trl.recipes import (
    FIELDS,
    SPECIAL,
    collect,
    derive_launch,
    keys_of,
    native_keys,
    render,
    unsaid,
)
from grposweep.registries import Lazy

ACCELERATE = ("--config_file", "recipes/accelerate_configs/zero2.yaml")
FRAMEWORK = Framework(
    traits=keys.TRAITS,
    version=keys.VERSION,
    fields=FIELDS,
    takes=keys.known,
    keys=keys.ONLY,
    programs=re.compile("open[_-]r1"),
    expand=expand_sbatch,
    renamed={"warmup_ratio": "warmup_steps"},
    collect=collect,
    unsaid=unsaid,
    keys_of=keys_of,
    derived=(derive_launch,),
    render=partial(render, script=("src/open_r1/grpo.py",), options=ACCELERATE),
    native_keys=native_keys,
    special=SPECIAL,
    trainer=ExternalTrainer(Lazy("external.script:build"), needs_script=True),
)
