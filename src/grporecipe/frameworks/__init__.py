"""GRPO frameworks: one folder each, with its keys, reader, writer and own rules.

A framework is a `Framework` named ``FRAMEWORK`` in its folder, and a line in ``registries.FRAMEWORKS``. A recipe's
framework is detected by its keys and by the programs and paths it names, never by what is importable here.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from grporecipe.errors import UserError
from grporecipe.frameworks import signs
from grporecipe.frameworks.base import FRAMEWORKS, Framework, ParsedRecipe, TranslatedRecipe, parse_release, text
from grporecipe.frameworks.reading import read_table
from grporecipe.frameworks.writing import to_native, write_table
from grporecipe.recipe import KeySpec, Recipe
from grporecipe.setting import Setting, Version

__all__ = ["FRAMEWORKS", "Framework", "ParsedRecipe", "TranslatedRecipe"]


def find_framework(name: str) -> Framework:
    """Return a framework by its name.

    Raises UserError for an unknown name.
    """
    if name not in FRAMEWORKS:
        raise UserError(f"framework {name}: grposweep reads {', '.join(sorted(FRAMEWORKS))}.")
    return FRAMEWORKS[name]


def read_recipe(recipe: Recipe) -> ParsedRecipe:
    """Return a recipe's setting and its unreadable fields. If a GPU is named, the setting includes the model's shape."""
    parsed = read_table(FRAMEWORKS[recipe.framework], recipe)
    if recipe.gpu_gib is None:
        return parsed
    from grporecipe.frameworks.memory import describe  # it builds on this package, and is for recipes with a GPU

    setting = describe(recipe, parsed.setting).replace({"gpu_memory_gib": recipe.gpu_gib, "gpu": recipe.gpu})
    autocast = recipe.launch_fields.get("autocast_dtype")
    if autocast and setting.weights_dtype == "float32" and setting.autocast_dtype is None:
        setting = setting.replace({"autocast_dtype": autocast})  # accelerate's type, if the recipe does not set it
    return parsed._replace(setting=setting)


def spell_keys(change: Mapping[str, Any], recipe: Recipe, setting: Setting) -> dict[str, Any] | None:
    """Return a change of fields under the recipe's keys; None if the recipe has no key for it."""
    return to_native(FRAMEWORKS[recipe.framework], change, recipe, setting)


def known_keys(recipe: Recipe) -> Mapping[str, KeySpec]:
    """Return the keys that a recipe may set: of the framework's source in its repository, otherwise of its release."""
    return FRAMEWORKS[recipe.framework].known_keys(recipe)


def write_recipe(setting: Setting, framework: str) -> TranslatedRecipe:
    """Return a setting as a recipe of a framework."""
    found = find_framework(framework)
    return (found.render or write_table)(found, setting)


def detect_framework(config: Mapping[str, Any], *paths: str) -> str:
    """Return the framework of a recipe by its keys, its paths and its programs. Dotted keys are matched by their first word.

    The last framework that matches wins. Without a match it is TRL, whose keys all others share.

    Raises NotARecipe for a configuration of a framework that grposweep does not read.
    """
    found = _by_keys(config)
    if not found and not signs.has_sign(config):
        signs.refuse_others(config)
    return found or _by_paths(paths) or next(iter(FRAMEWORKS))


def recognise_recipe(config: Mapping[str, Any], paths: Iterable[str] = (), programs: Iterable[str] = ()) -> str:
    """Return the framework of a file, if its keys or the programs that read them identify a GRPO recipe.

    ``paths`` name the file: a folder named like a framework selects it, but does not make a file a recipe.

    Raises NotARecipe if nothing identifies a recipe.
    """
    programs = tuple(programs)
    name = detect_framework(config, *programs, *paths)
    framework = FRAMEWORKS[name]
    if framework.is_dotted:
        sections = {str(key).lstrip("+~").partition(".")[0] for key in config}
        if name != _by_keys(config) and name != _by_paths(programs) and len(sections & {*framework.sections}) < 2:
            signs.refuse_without_sign(config)
        if "defaults" not in config and not _by_paths(programs):
            signs.refuse_own_sections(config, {key.partition(".")[0] for key in framework.takes(framework.version)})
    elif framework.traits.follows_trl:
        signs.refuse_without_sign(config, programs)
        if not programs:
            from grporecipe.frameworks.trl.keys import HABITS, span  # it builds on this module

            own = framework.takes(framework.version)
            signs.refuse_own_keys(config, lambda key: key in own or key in HABITS or span(key) is not None)
    return name


def _by_keys(config: Mapping[str, Any]) -> str:
    words = {str(key).lstrip("+~").split(".", 1)[0] for key in config} | {str(key) for key in config}
    return next((each.name for each in _latest_first() if not each.keys.isdisjoint(words)), "")


def _by_paths(paths: Iterable[str]) -> str:
    known = [(each.name, each.programs) for each in _latest_first() if each.programs]
    return next((name for name, programs in known if any(map(programs.search, paths))), "")


def _latest_first() -> list[Framework]:
    return [FRAMEWORKS[name] for name in reversed(list(FRAMEWORKS))]


def version_of(name: str, wanted: str | None = None) -> Version:
    """Return the requested release of a framework, or its default.

    Raises UserError for text that is not a version, and for releases before the first that can be judged.
    """
    framework = find_framework(name)
    if wanted is None:
        return framework.version
    if framework.traits.follows_trl:
        from grporecipe.frameworks.trl.keys import parse_version  # a framework, which builds on this package

        return parse_version(wanted)
    return _own_version(wanted, framework)


def _own_version(text: str, framework: Framework) -> Version:
    """Return a release of a framework other than TRL. Raises UserError if it is older than the first known release."""
    parts = text.strip().removeprefix("v").split(".")
    if not 2 <= len(parts) <= 4 or not all(part.isdigit() for part in parts[:3]):
        raise UserError(f"version {text[:40]!r}: a version has two or three numbers. Write it like 0.3.3.")
    version = parse_release(".".join((*parts[:3], "0")[:3]))
    known = framework.releases() if framework.releases else (framework.version,)
    if version < known[0]:
        first = ".".join(map(str, known[0]))
        raise UserError(f"{framework.name} {text}: the first release that can be judged is {first}.")
    return version


ASSUMED = ("", "default", "the keys")  # places of a version that nothing states


def describe_version(recipe: Recipe) -> str:
    """Return the version that a recipe is judged by, and its source: ``TRL 0.18.0 (setup.py: trl==0.18.0)``.

    Without a source: that it is assumed, why it is this one, and how to state it.
    """
    source = recipe.version_source
    why = ": ".join(filter(None, (source.where, source.text)))
    if source.where in ASSUMED and source.kind != "asked":
        taken = source.text or "no release accepts all keys"
        why = f"assumed, because the recipe states no version, and {taken}; set --framework-version"
    why += ", which does not accept all keys" if source.conflict else ""
    return f"{FRAMEWORKS[recipe.framework].traits.name_of(text(recipe.version))} ({why})"
