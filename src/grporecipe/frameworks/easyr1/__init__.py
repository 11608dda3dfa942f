"""EasyR1: its keys by release, and how its recipes are read and written."""

import re

from grporecipe.frameworks.easyr1 import recipes
from grporecipe.model.framework import Framework, Vendor
from grporecipe.registries import Lazy

FRAMEWORK = Framework(
    traits=recipes.TRAITS,
    version=recipes.VERSION,
    fields=recipes.FIELDS,
    takes=recipes.known,
    keys=frozenset({"worker", "data.rollout_batch_size"}),
    programs=re.compile(r"\bverl\.trainer\.main$|verl/trainer/main\.py$|(?i:easyr1|easy_r1)"),
    trainings=re.compile(r"\bverl[./]trainer[./]main(?:\.py)?$"),
    sections=("data", "worker", "algorithm", "trainer"),
    renamed=recipes.RENAMED,
    releases=recipes.releases,
    keys_of=recipes.keys_of,
    derived=recipes.DERIVED,
    special=recipes.SPECIAL,
    base_config=recipes.base_config,
    only_evaluates="trainer.val_only",
    vendor=Vendor(
        "verl/trainer/config.py", Lazy("grporecipe.frameworks.easyr1.source:read_source")
    ),
    memory=Lazy("grporecipe.fields.memory:read_easyr1"),
)
