"""GV120: defects of releases that raise nothing, read from ``defects.yaml``.

A row of the file is a defect: the framework, the first and the last release that have it and the
release that fixes it, the keys that meet it (``when``), its effect, what to set instead, and the
reference. A value of ``when`` is the value that a key has (its release's default counts), or one
of several in a list, or ``{not: value}``, ``{above: number}``, ``{has: word}``, ``{set: true}``,
``{unset: true}`` (the recipe does not have the key) and ``{multiple_of: key}``. Several names of
one key are separated by ``|``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from grporecipe.fields.reading import values_of
from grporecipe.files import Config, parse_yaml
from grporecipe.model.framework import FRAMEWORKS, Values
from grporecipe.model.recipe import Recipe
from grporecipe.model.releases import parse_release, text
from grporecipe.model.setting import EVERY, Version
from grporecipe.rules.helpers import set_to
from grporecipe.rules.registry import Severity, Violation, recipe_rule


@dataclass(frozen=True, kw_only=True)
class Defect:
    """A row of ``defects.yaml``."""

    name: str
    framework: str
    first: Version
    last: Version
    fixed_in: str
    when: Config
    effect: str
    instead: str
    source: str
    severity: Severity = "warning"


@cache
def load_defects() -> tuple[Defect, ...]:
    """Return the known defects, in the order of the file."""
    content = files("grporecipe.rules").joinpath("defects.yaml").read_text(encoding="utf-8")
    return tuple(
        Defect(
            name=name,
            **{**row, "first": parse_release(row["first"]), "last": parse_release(row["last"])},
        )
        for name, row in parse_yaml(content).items()
    )


@recipe_rule("GV120", "warning", of=EVERY)
def the_release_does_what_its_keys_say(recipe: Recipe) -> Iterator[Violation]:
    """A release has a defect that the recipe meets: nothing fails, and something else is learnt,
    logged or exported.

    Only for a release that is stated, and for the framework's own code. The reference of each
    defect is in defects.yaml: the change that fixed it, and the file of the release.
    """
    is_stock = recipe.vendored is None and not (recipe.code and recipe.code.own_trainer)
    if recipe.version_source.kind not in ("asked", "project", "pinned") or not is_stock:
        return
    framework = FRAMEWORKS[recipe.framework]
    names = {framework.name, "trl"} if framework.traits.follows_trl else {framework.name}
    values = values_of(recipe)
    for defect in load_defects():
        if defect.framework not in names or not defect.first <= recipe.version <= defect.last:
            continue
        keys = [_key(written, values) for written in defect.when]
        tests = defect.when.values()
        if all(_meets(key, test, values) for key, test in zip(keys, tests, strict=True)):
            label = framework.traits.name_of(text(recipe.version))
            stated = [key for key in keys if key in recipe.config]
            what = ", ".join(set_to(recipe.config, key) for key in stated)
            if not stated:
                what = f"{keys[0]} is not set"
            why = f"in {label}, {defect.effect}"
            instead = f"{defect.instead}Fixed in {defect.fixed_in}."
            yield Violation(what, why, instead, tuple(stated or keys[:1]), severity=defect.severity)


def _key(written: str, values: Values) -> str:
    """Return the one of several names that the recipe sets; otherwise the first."""
    names = written.split("|")
    return next((name for name in names if name in values.given), names[0])


def _meets(key: str, test: Any, values: Values) -> bool:
    """Return whether the value of a key is certain, and passes a test of ``when``."""
    recipe = values.recipe
    is_hidden = recipe.may_have_more or (recipe.code is not None and recipe.code.own_config)
    if key in recipe.unresolved or key in values.bad or (key not in values.given and is_hidden):
        return False
    value = values.get(key)
    if isinstance(test, list):
        return value in test
    if not isinstance(test, Mapping):
        return bool(value == test)
    ((kind, wanted),) = test.items()
    if kind == "set":
        return bool((value is not None) == wanted)
    if kind == "unset":
        return key not in values.given
    if kind == "not":
        return bool(value != wanted)
    if kind == "above":
        return bool(values.number(key) > wanted)
    if kind == "multiple_of":
        return bool(value is None or values.whole(key) % values.whole(wanted, 1) == 0)
    words = value if isinstance(value, list | tuple) else str(value).split()
    return wanted in words
