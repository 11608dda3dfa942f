"""ms-swift: the keys of its parser, and how its recipes are read and written.

Source: ms-swift 4.6.0 cli/main.py (``swift rlhf FILE``; NPROC_PER_NODE, NNODES and the like are
variables).
"""

import re

from grporecipe.frameworks.ms_swift import keys, recipes
from grporecipe.model.framework import Command, Framework, Vendor
from grporecipe.registries import Lazy

FRAMEWORK = Framework(
    traits=keys.TRAITS,
    version=keys.VERSION,
    fields=recipes.FIELDS,
    takes=keys.known,
    key_table=keys.keys_of_recipe,
    releases=keys.releases,
    keys=frozenset(
        [
            "rlhf_type",
            "tuner_type",
            "train_type",
            "split_dataset_ratio",
            "external_plugins",
            "kl_in_reward",
        ]
    ),
    programs=re.compile(r"swift rlhf|megatron rlhf|swift/cli/rlhf|ms[_-]swift"),
    commands={
        "swift": Command("rlhf", "swift rlhf", takes_file=True),
        "megatron": Command("rlhf", "megatron rlhf", takes_file=True),
    },
    renamed={"warmup_ratio": "warmup_steps", **recipes.RENAMED},
    collect=recipes.collect,
    unstated=recipes.unstated,
    keys_of=recipes.keys_of,
    derived=recipes.DERIVED,
    special=recipes.SPECIAL,
    packages=("ms-swift",),
    vendor=Vendor("swift/version.py", Lazy("grporecipe.frameworks.ms_swift.source:read_source")),
    environment_key=keys.ENVIRONMENT,
    memory=Lazy("grporecipe.fields.memory:read_ms_swift"),
)
