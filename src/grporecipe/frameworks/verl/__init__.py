"""verl: its keys, and how its recipes are read and written."""

import re

from grporecipe.frameworks.verl import keys
from grporecipe.frameworks.verl.keys import refusals
from grporecipe.frameworks.verl.recipes import DERIVED, FIELDS, SPECIAL, keys_of, sized_elsewhere
from grporecipe.model.framework import Framework, Vendor
from grporecipe.registries import Lazy

FRAMEWORK = Framework(
    traits=keys.TRAITS,
    version=keys.VERSION,
    fields=FIELDS,
    takes=keys.known,
    key_table=keys.known_keys,
    keys=frozenset({"actor_rollout_ref"}),
    programs=re.compile(
        r"\bverl[./](?:[\w./]+[./])?main_\w+|\bmain_(?:ppo|dapo)\b|\brecipe[./]\w+[./]main_\w+"
    ),
    trainings=re.compile(r"\bverl[./]trainer[./]main_ppo(?:\.py)?$|\bmain_(?:ppo|dapo)(?:\.py)?$"),
    sections=(
        "data",
        "algorithm",
        "trainer",
        "actor_rollout_ref",
        "critic",
        "reward",
        "ray_kwargs",
    ),
    releases=keys.releases,
    keys_of=keys_of,
    derived=DERIVED,
    special=SPECIAL,
    misfits=lambda recipe: (
        refused.written for refused in refusals(recipe, keys.known_keys(recipe))
    ),
    packages=("verl",),
    only_evaluates="trainer.val_only",
    vendor=Vendor(
        "verl/*/config/ppo_trainer.yaml", Lazy("grporecipe.frameworks.verl.source:read_source")
    ),
    # verl's own configuration, or a missing one, which GV405 reports
    base_config=lambda *_: {},
    config_defaults=("ppo_trainer", "_self_"),
    own_configs=re.compile(r"/(?:verl|recipe)/(?:[\w-]+/){1,6}config/"),
    is_composed=keys.is_composed,
    assume=sized_elsewhere,
    memory=Lazy("grporecipe.fields.memory:read_verl"),
)
