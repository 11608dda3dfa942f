"""The trainers' own words: one file per framework reads its recipes into a setting, and writes a setting as a recipe.

Adding a framework is one file with ``reading(recipe)``, and its line in ``FRAMEWORKS``. A framework is told by the recipe's
keys and by the programs and paths it names, never by what is importable here.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from grposweep.errors import UserError
from grposweep.frameworks import dotted_keys as schema
from grposweep.frameworks import keys
from grposweep.frameworks.base import TranslatedRecipe
from grposweep.frameworks.base import native as in_trl_words
from grposweep.frameworks.easyr1 import reader as easyr1
from grposweep.frameworks.easyr1 import writer as easyr1_write
from grposweep.frameworks.keys import KeySpec
from grposweep.frameworks.keys import known as known_keys
from grposweep.frameworks.ms_swift import keys as ms_swift_keys
from grposweep.frameworks.ms_swift import reader as ms_swift
from grposweep.frameworks.ms_swift import writer as ms_swift_write
from grposweep.frameworks.open_r1 import recipe as open_r1
from grposweep.frameworks.trl import reader as trl
from grposweep.frameworks.trl import writer as trl_write
from grposweep.frameworks.trl.reader import ParsedRecipe
from grposweep.frameworks.verl import reader as verl
from grposweep.frameworks.verl import writer as verl_write
from grposweep.memory.catalog import known_model
from grposweep.recipe import Recipe
from grposweep.setting import TRL, TRL_FRAMEWORK, FrameworkTraits, Setting, Version

__all__ = [
    "FRAMEWORKS",
    "Framework",
    "ParsedRecipe",
    "TranslatedRecipe",
    "detect",
    "native",
    "read",
    "takes",
    "version_of",
    "write",
]


@dataclass(frozen=True)
class Framework:
    """What one framework's file offers.

    ``native`` says a change of fields in the recipe's own keys (None where it has no words for it). ``takes`` are all
    keys of a release with their types, for reading a command line; ``native_keys`` a setting in a release's words, without
    the launch and the losses of ``write``. ``keys`` are words
    that no other framework's recipes have, ``programs`` matches the programs and paths of its own. ``version`` is judged
    by where no other is asked for.
    """

    traits: FrameworkTraits
    reading: Callable[[Recipe], ParsedRecipe]
    native: Callable[[Mapping[str, Any], Recipe, Setting], dict[str, Any] | None]
    version: Version
    keys: frozenset[str] = frozenset()
    programs: re.Pattern[str] | None = None
    write: Callable[[Setting], TranslatedRecipe] | None = None
    takes: Callable[[str, Version], Mapping[str, KeySpec]] = known_keys
    native_keys: Callable[[Setting, str, Version], Mapping[str, Any]] = trl_write.native_keys

    @property
    def syntax(self) -> str:
        """Flat keys, or dotted ones."""
        return self.traits.syntax

    @property
    def follows_trl(self) -> bool:
        """Whether TRL itself trains."""
        return self.traits.follows_trl


FRAMEWORKS: dict[str, Framework] = {  # the later one is detected first, and TRL where no other is
    "trl": Framework(TRL_FRAMEWORK, trl.reading, in_trl_words, TRL, write=trl_write.write_trl),
    "open-r1": Framework(
        keys.OPEN_R1_TRAITS,
        trl.reading,
        in_trl_words,
        open_r1.VERSION,
        keys.OPEN_R1_ONLY,
        re.compile("open[_-]r1"),
        trl_write.write_open_r1,
    ),
    "ms-swift": Framework(
        ms_swift.TRAITS,
        ms_swift.reading,
        ms_swift.native,
        ms_swift.VERSION,
        ms_swift.ONLY,
        re.compile(r"swift rlhf|megatron rlhf|swift/cli/rlhf|ms[_-]swift"),
        ms_swift_write.write,
        takes=lambda *_: ms_swift_keys.known(),
        native_keys=ms_swift_write.native_keys,
    ),
    "easyr1": Framework(
        easyr1.TRAITS,
        easyr1.reading,
        easyr1.native,
        schema.EASYR1,
        frozenset({"worker", "data.rollout_batch_size"}),
        re.compile(r"\bverl\.trainer\.main$|verl/trainer/main\.py$|(?i:easyr1|easy_r1)"),
        easyr1_write.write,
    ),
    "verl": Framework(
        verl.TRAITS,
        verl.reading,
        verl.native,
        schema.VERL,
        frozenset({"actor_rollout_ref"}),
        re.compile(r"\bverl[./](?:[\w./]+[./])?main_\w+|\bmain_(?:ppo|dapo)\b|\brecipe[./]\w+[./]main_\w+"),
        verl_write.write,
    ),
}


def read(recipe: Recipe) -> ParsedRecipe:
    """The setting behind a recipe, and what of it could not be read; with what memory depends on, where a GPU was named."""
    reading = FRAMEWORKS[recipe.framework].reading(recipe)
    if recipe.gpu_gib is None:
        return reading
    setting = known_model(reading.setting, recipe.config).replace({"gpu_memory_gib": recipe.gpu_gib})
    return reading._replace(setting=setting)


def native(change: Mapping[str, Any], recipe: Recipe, setting: Setting) -> dict[str, Any] | None:
    """A change of fields in the recipe's own keys; None where it has no words for it."""
    return FRAMEWORKS[recipe.framework].native(change, recipe, setting)


def takes(framework: str, version: Version) -> Mapping[str, KeySpec]:
    """Every key that a release of a framework takes on a command line."""
    return _known(framework).takes(framework, version)


def write(setting: Setting, framework: str) -> TranslatedRecipe:
    """A setting as a recipe of a framework."""
    found = _known(framework).write
    if found is None:
        able = [name for name, known in FRAMEWORKS.items() if known.write is not None]
        raise UserError(f"{framework}: no recipe can be written for it. Choose one of {', '.join(able) or 'none'}.")
    return found(setting)


def _known(framework: str) -> Framework:
    if framework not in FRAMEWORKS:
        raise UserError(f"framework {framework}: grposweep reads {', '.join(sorted(FRAMEWORKS))}.")
    return FRAMEWORKS[framework]


def detect(config: Mapping[str, Any], *paths: str) -> str:
    """The framework of a recipe: from its keys (or, of dotted keys, their first words), or from its paths and programs."""
    words = {str(key).lstrip("+~").split(".", 1)[0] for key in config} | {str(key) for key in config}
    by_keys = (name for name, framework in reversed(FRAMEWORKS.items()) if not framework.keys.isdisjoint(words))
    by_paths = (
        name
        for name, framework in reversed(FRAMEWORKS.items())
        if framework.programs and any(framework.programs.search(path) for path in paths)
    )
    return next(by_keys, None) or next(by_paths, "trl")


def version_of(framework: str, wanted: Version | None, own: str | None = None) -> Version:
    """The release to judge by: as asked (of TRL, or as ``own`` of EasyR1 or verl), or the framework's own default."""
    known = _known(framework)
    if own is not None and known.syntax == "dotted":
        return schema.parse_version(own, framework)
    return wanted if wanted is not None and known.follows_trl else known.version
