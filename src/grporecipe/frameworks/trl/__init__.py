"""TRL: its keys by release, and how its recipes are read and written."""

from grporecipe.frameworks.trl import keys, recipes
from grporecipe.model.framework import Command, Framework, Vendor
from grporecipe.model.setting import TRL, TRL_FRAMEWORK
from grporecipe.registries import Lazy

FRAMEWORK = Framework(
    traits=TRL_FRAMEWORK,
    version=TRL,
    fields=recipes.FIELDS,
    takes=keys.known,
    parse_version=keys.parse_version,
    is_familiar=keys.is_familiar,
    is_asynchronous=keys.is_async,
    commands={"trl": Command("grpo", "trl.scripts.grpo", counts="accelerate", passes_on=True)},
    renamed={"warmup_ratio": "warmup_steps"},
    collect=recipes.collect,
    unstated=recipes.unstated,
    keys_of=recipes.keys_of,
    derived=(recipes.derive_launch,),
    special=recipes.SPECIAL,
    releases=keys.releases,
    passed_on=keys.PASSED_ON,
    packages=("trl",),
    vendor=Vendor(
        "trl/trainer/grpo_config.py", Lazy("grporecipe.frameworks.trl.source:read_source")
    ),
    memory=Lazy("grporecipe.fields.memory:read_trl"),
)
