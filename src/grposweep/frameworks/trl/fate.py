"""What the launch of a recipe takes, and what becomes of a key that it does not take.

Sources: trl scripts/utils.py TrlParser, scripts/grpo.py and the `trl` command of every release from 0.14.0 to 1.16.0;
transformers hf_argparser.py parse_args_into_dataclasses ("Some specified arguments are not used by the HfArgumentParser").
"""

from collections.abc import Mapping
from typing import NamedTuple

from grposweep.frameworks import FRAMEWORKS
from grposweep.frameworks.base import text
from grposweep.recipe import KeySpec, Recipe
from grposweep.rules.registry import Severity

PARSER_STOPS = (0, 19)  # since then TrlParser refuses keys of a YAML that no dataclass has
SCRIPT_DROPS = (0, 22)  # since then trl.scripts.grpo drops them; until 0.29 also flags
SCRIPT_CHECKS_FLAGS = (1, 0)
COMMAND_HANDS_ON = (0, 29)  # since then `trl grpo` hands what it does not take to accelerate launch
OWN_PROGRAMS = ("trl.scripts.grpo", "trl/scripts/grpo.py", "open_r1/grpo.py")


ANYTHING = KeySpec("any", None)


class Fate(NamedTuple):
    """What becomes of a key that is not taken: in words, and "warning" where training goes on without it."""

    text: str
    severity: Severity | None = None


def taken(recipe: Recipe) -> Mapping[str, KeySpec]:
    """Return every key that a recipe may set: the release's (or the vendored source's), and those of the launched script.

    A script reads its own keys in its own way, so their values are not judged.
    """
    takes = recipe.vendored or FRAMEWORKS[recipe.framework].known_keys(recipe)
    return {**takes, **dict.fromkeys(recipe.code.declares, ANYTHING)} if recipe.code else takes


def is_own_script(recipe: Recipe) -> bool:
    """Return whether a script may read keys of its own that are not known here."""
    launch = recipe.launch
    if launch is None or launch.launcher == "trl":
        return False
    if recipe.code is not None and recipe.code.declares and recipe.code.other_keys:
        return False
    return not launch.program.endswith(OWN_PROGRAMS)


def fate(recipe: Recipe, key: str) -> Fate:
    """Return what becomes of a key of a recipe that its launch does not take."""
    launch, version = recipe.launch, recipe.version
    if recipe.in_python:
        return Fate("GRPOConfig() raises a TypeError")
    is_flag = launch is not None and key in recipe.lines  # of a YAML that a script names there are no lines
    if launch is not None and launch.launcher == "trl" and version >= COMMAND_HANDS_ON:
        return Fate("accelerate launch, which gets it from `trl grpo`, stops at it")
    if recipe.code is not None and recipe.code.other_keys == "dropped":
        return Fate(f"{recipe.code.file} drops it silently, so it is lost", "warning")
    if is_own_script(recipe):
        return Fate(f"TRL's parser stops at it; fine if {launch.program if launch else ''} takes it", "warning")
    if launch is not None and (launch.launcher == "trl" or "trl.scripts.grpo" in launch.program.replace("/", ".")):
        drops = SCRIPT_DROPS <= version < SCRIPT_CHECKS_FLAGS if is_flag else version >= SCRIPT_DROPS
        if drops:
            return Fate("trl.scripts.grpo drops it silently, so it is lost", "warning")
    if not is_flag and version < PARSER_STOPS:
        return Fate(f"the parser of TRL {text(version)} drops it silently, so it is lost", "warning")
    return Fate("TRL's parser stops at it")
