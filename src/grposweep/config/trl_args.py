"""``trainer.args``: keys of TRL's GRPOConfig that have no grposweep key, checked against TRL's
table.

Source: trl 1.16 trainer/grpo_config.py with the transformers of its time
(frameworks/trl/keys.json).
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from grporecipe.fields.reading import read_rows, values_of
from grporecipe.files import Json, only
from grporecipe.frameworks.trl.keys import HABITS, known, table
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.recipe import KeySpec, Recipe
from grporecipe.model.releases import closest_keys, text
from grporecipe.model.setting import TRL
from grporecipe.model.values import convert
from grporecipe.rules.helpers import show
from grposweep.config.compose import keys_of_natives, known_keys
from grposweep.config.fields import NUMBERS, reaches
from grposweep.schema import Experiment, Fake, Trainer, trl_arguments
from grposweep.schema.registries import BASE, is_external, is_opaque, runs_trl

# sections without keys of the trainer
ELSEWHERE = ("search", "cluster", "tracker", "rules")
# Switches that cannot be on in a trial, with the reason. Sources: transformers 5.23
# training_args.py, trl 1.16 grpo_trainer.py.
UNFIT = {
    "ignore_data_skip": (
        "a trial that is resumed would train on other prompts than one that was never stopped"
    ),
    "load_best_model_at_end": (
        "grposweep places checkpoints and evaluations, and transformers "
        "refuses that; see trainer.keep"
    ),
    "remove_unused_columns": "rewards would not get the columns that they read, such as the answer",
    "save_only_model": "no trial could be resumed from a checkpoint without the optimizer's states",
}
WANTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "list": "a list",
}


def read_args(trainer: Trainer) -> Json:
    """Return the setting's fields that ``trainer.args`` sets, as in a TRL recipe with these
    keys.
    """
    if not trainer.args:
        return {}
    framework = FRAMEWORKS["trl"]
    return read_rows(
        framework, values_of(Recipe("trl", TRL, dict(trainer.args))), framework.keys_at(TRL)
    )


@cache
def taken() -> Mapping[str, KeySpec]:
    """Return the keys of GRPOConfig in the release that grposweep's trainer runs."""
    places = {name: entry["in"] for name, entry in table()["keys"].items()}
    return {
        name: key
        for name, key in known(TRL).items()
        if places[name] == "config" or name == "trust_remote_code"
    }


@cache
def homes() -> Mapping[str, str]:
    """Return the grposweep key that sets each key of GRPOConfig."""
    own = (key for key in known_keys() if not key.startswith((*ELSEWHERE, "trainer.args")))
    same = {trl_arguments().get(key, key.rpartition(".")[2]): key for key in own}
    derived = keys_of_natives()
    return only({**same, **derived}, taken())


def check_args(experiment: Experiment) -> Iterator[str]:
    """Name keys that GRPOConfig lacks, that have a grposweep key, or whose value has a wrong
    type.
    """
    trainer = experiment.trainer
    if is_opaque(trainer):
        return
    for name, value in trainer.args.items():
        problem = (
            _check_own_key(experiment, name, value)
            if is_external(trainer)
            else _check_arg(trainer, name, value)
        )
        if problem:
            yield f"trainer.args.{name}={show(value)}: {problem}"


def _check_arg(trainer: Trainer, name: str, value: Any) -> str:
    """Describe what is wrong with an argument of TRL's own trainer; empty if nothing is."""
    if not runs_trl(trainer) and name in Fake.__dataclass_fields__:
        return ""
    keys = taken()
    home = homes().get(name)
    if home:
        return f"grposweep has its own key for this. Set {home} instead."
    if name not in keys:
        near = [HABITS[name]] if name in HABITS else closest_keys(name, keys)
        meant = " or ".join(homes().get(key, f"trainer.args.{key}") for key in near)
        advice = f"Did you mean {meant}?" if near else "Remove it."
        return f"GRPOConfig of TRL {text(TRL)} has no such key. {advice}"
    wanted = _mistyped(value, keys[name].type)
    if wanted:
        return f"the key takes {wanted}. Set one."
    return f"{UNFIT[name]}. Leave it out." if value and name in UNFIT else ""


def _check_own_key(experiment: Experiment, name: str, value: Any) -> str:
    """Describe a key of a command's configuration that grposweep sets, or whose value has another
    type.

    The options of the command itself are judged by the command when it is asked.
    """
    home = {"output_dir": "outputs", **homes()}.get(name, "")
    if home.startswith((*NUMBERS, "lr", "seed", "outputs")) and reaches(home):
        return f"grposweep has its own key for this. Set {home} instead."
    if name not in known(TRL) or name in BASE.load().of(experiment).options:
        return ""
    wanted = _mistyped(value, known(TRL)[name].type)
    return f"the key takes {wanted}. Set one." if wanted else ""


def _mistyped(value: Any, kind: str) -> str:
    """Describe the values that a key of this type takes, if this value has another type."""
    base = kind.rstrip("?")
    if value is None:
        return "" if kind.endswith("?") or base in ("any", "list") else WANTED[base]
    types = {"str": str, "list": list | str}
    if base in types:
        return "" if isinstance(value, types[base]) else WANTED[base]
    return WANTED[base] if base in WANTED and convert(value, kind).trouble else ""
