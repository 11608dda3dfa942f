"""TRL: its keys by release, and how its recipes are read and written."""

from functools import partial

from grporecipe.frameworks.base import Command, Framework, Vendor
from grporecipe.frameworks.trl import keys
from grporecipe.frameworks.trl.recipes import (
    FIELDS,
    SPECIAL,
    collect,
    derive_launch,
    keys_of,
    native_keys,
    render,
    unstated,
)
from grporecipe.registries import Lazy
from grporecipe.setting import TRL, TRL_FRAMEWORK

FRAMEWORK = Framework(
    traits=TRL_FRAMEWORK,
    version=TRL,
    fields=FIELDS,
    takes=keys.known,
    key_table=lambda recipe: keys.with_async(keys.known(recipe.version), recipe),
    commands={"trl": Command("grpo", "trl.scripts.grpo", counts="accelerate", passes_on=True)},
    renamed={"warmup_ratio": "warmup_steps"},
    collect=collect,
    unstated=unstated,
    keys_of=keys_of,
    derived=(derive_launch,),
    render=partial(render, script=("-m", "trl.scripts.grpo")),
    native_keys=native_keys,
    special=SPECIAL,
    releases=keys.releases,
    passed_on=keys.PASSED_ON,
    packages=("trl",),
    vendor=Vendor("trl/trainer/grpo_config.py", Lazy("grporecipe.frameworks.own_source:read_trl")),
    memory=Lazy("grporecipe.frameworks.memory:read_trl"),
)
