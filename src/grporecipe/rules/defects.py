"""GV120: defects of releases that raise nothing, as listed in model/defects.yaml."""

from collections.abc import Iterator, Mapping
from typing import Any

from grporecipe.fields.reading import values_of
from grporecipe.model.conditions import meets
from grporecipe.model.defects import load_defects
from grporecipe.model.framework import FRAMEWORKS, Values
from grporecipe.model.recipe import Recipe
from grporecipe.model.releases import text
from grporecipe.model.setting import EVERY
from grporecipe.rules.helpers import set_to
from grporecipe.rules.registry import Violation, recipe_rule


@recipe_rule("GV120", "warning", of=EVERY)
def the_release_does_what_its_keys_say(recipe: Recipe) -> Iterator[Violation]:
    """A release has a defect that the recipe meets: nothing fails, and something else is learnt,
    logged or exported.

    Only for a release that is stated, and for the framework's own code. The reference of each
    defect is in defects.yaml: the change that fixed it, and the file of the release.
    """
    is_stock = recipe.vendored is None and not recipe.code.own_trainer
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
            yield Violation(
                what or f"{keys[0]} is not set",
                f"in {label}, {defect.effect}",
                f"{defect.instead}Fixed in {defect.fixed_in}.",
                tuple(stated or keys[:1]),
                severity=defect.severity,
            )


def _key(written: str, values: Values) -> str:
    """Return the one of several names that the recipe sets; otherwise the first."""
    names = written.split("|")
    return next((name for name in names if name in values.given), names[0])


def _meets(key: str, test: Any, values: Values) -> bool:
    """Return whether the value of a key is certain, and passes a test of ``when``."""
    recipe = values.recipe
    is_hidden = recipe.may_have_more or recipe.code.own_config
    if key in recipe.unresolved or key in values.bad or (key not in values.given and is_hidden):
        return False
    kind = next(iter(test)) if isinstance(test, Mapping) else ""
    if kind == "unset":
        return key not in values.given
    value = values.get(key)
    if kind == "multiple_of":
        wanted = test[kind]
        divisor = values.whole(wanted, 1) if isinstance(wanted, str) else wanted
        return bool(value is None or values.whole(key) % divisor == 0)
    if kind == "above":
        value = values.number(key)
    return meets(value, test)
