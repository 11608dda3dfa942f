"""Find out which framework a configuration, a file or a launch belongs to."""

from collections.abc import Iterable
from typing import Any

from grporecipe.files import Config
from grporecipe.model.framework import FRAMEWORKS, Framework
from grporecipe.reading import signs


def detect_framework(config: Config, *paths: str) -> str:
    """Return the framework of a recipe by its keys, its paths and its programs. Dotted keys are
    matched by their first word.

    The last framework that matches wins. Without a match it is TRL, whose keys all others share.

    Raises NotARecipe for a configuration of a framework that grposweep does not read.
    """
    framework = _by_keys(config)
    if not framework and not signs.has_sign(config):
        signs.refuse_others(config)
    return framework or _by_paths(paths) or next(iter(FRAMEWORKS))


def recognise_recipe(
    config: Config, paths: Iterable[str] = (), programs: Iterable[str] = ()
) -> str:
    """Return the framework of a file, if its keys or the programs that read them identify a GRPO
    recipe.

    ``paths`` name the file: a folder named like a framework selects it, but does not make a file a
    recipe.

    Raises NotARecipe if nothing identifies a recipe.
    """
    programs = tuple(programs)
    name = detect_framework(config, *programs, *paths)
    framework = FRAMEWORKS[name]
    if framework.is_dotted:
        named = sections_of(config) & {*framework.sections}
        # a folder may be named like a framework, and a program in it have other options
        is_named = name == _by_paths(programs) and (named or not config)
        if name != _by_keys(config) and not is_named and len(named) < 2:
            signs.refuse_without_sign(config)
        if "defaults" not in config and not _by_paths(programs):
            signs.refuse_own_sections(config, sections_of(framework.takes(framework.version)))
    elif framework.traits.follows_trl:
        signs.refuse_without_sign(config, programs)
        if not programs and framework.is_familiar:
            own = framework.takes(framework.version)
            is_familiar = framework.is_familiar
            signs.refuse_own_keys(config, lambda key: key in own or is_familiar(key))
    return name


def by_words(config: Config) -> str:
    """Return the framework whose words a recipe has for a key; empty if there is none."""
    for framework in _latest_first():
        for key, words in framework.words.items():
            value = config.get(key)
            if isinstance(value, list) and value and words.issuperset(map(str, value)):
                return framework.name
    return ""


def sections_of(config: Iterable[Any]) -> set[str]:
    """Return the first words of dotted keys, without the signs of overrides."""
    return {str(key).lstrip("+~").partition(".")[0] for key in config}


def _by_keys(config: Config) -> str:
    words = sections_of(config) | set(map(str, config))
    return next((each.name for each in _latest_first() if not each.keys.isdisjoint(words)), "")


def _by_paths(paths: Iterable[str]) -> str:
    for framework in _latest_first():
        if framework.programs and any(map(framework.programs.search, paths)):
            return framework.name
    return ""


def _latest_first() -> list[Framework]:
    return [FRAMEWORKS[name] for name in reversed(list(FRAMEWORKS))]
