"""GV: the version that a recipe is judged by: whether it is known, and whether its keys are those of another.

Where the version is not known, what rules say of keys is a guess. So all of it is one warning, without a fix that counts as
safe. What is true of every release (`Violation.certain`) stays an error.
"""

from collections.abc import Iterator
from dataclasses import replace

from grposweep import frameworks
from grposweep.frameworks.base import text
from grposweep.recipe import Recipe
from grposweep.rules.helpers import NO_COUNT, cut
from grposweep.rules.registry import RecipeRule, Rule, Violation, choose_for_recipes, recipe_rule
from grposweep.setting import EVERY, Version

MOST_NAMED = 6  # keys in a message


def find(rule: RecipeRule, recipe: Recipe) -> list[Violation]:
    """Return what a rule says of a recipe, without what the version leaves open."""
    found = list(rule.judge(recipe))
    return [broken for broken in found if not _is_open(recipe, broken)] if rule.by_release else found


def _is_open(recipe: Recipe, broken: Violation) -> bool:
    """Return whether another version would change a finding, and nothing states which one trains."""
    if broken.certain:
        return False
    if not recipe.version_source.known:
        return True
    return bool(recipe.version_source.conflict)  # it is not the pinned release that trains


def accepting_release(recipe: Recipe, rule: Rule) -> Version | None:
    """Return a release that may be the one that trains, and that a rule on settings has nothing against; None without any.

    Where a version is known, and takes the recipe's keys, no other may be.
    """
    from grposweep.frameworks.parsing.version_source import fitting_releases, releases_of  # it loads the frameworks

    if recipe.version_source.known and not recipe.version_source.conflict:
        return None
    possible = fitting_releases(recipe) or releases_of(frameworks.FRAMEWORKS[recipe.framework])
    for release in reversed(possible):
        s = frameworks.read(replace(recipe, version=release)).setting
        is_open = s.processes is None and rule.counts is not None
        if (rule.counts(s) != NO_COUNT) if is_open and rule.counts else not rule.find(s):
            return release
    return None


@recipe_rule("GV110", "warning", of=EVERY)
def the_version_of_the_keys_is_known(recipe: Recipe) -> Iterator[Violation]:
    """Keys that the assumed release does not take, in a recipe of which nothing says the version that trains it.

    The version is looked for in this order: ``--framework-version``; ``framework-version`` in ``.grposweep.toml`` or in
    ``[tool.grposweep]`` of pyproject.toml; what the repository pins; the framework's own source in the repository; the
    releases that have all keys. Where none of these answers, one warning names all such keys, and no fix is offered.
    A key of TRL or ms-swift that no release takes, and that is spelled almost like one, is an error with any version. Nested
    keys (verl, EasyR1) may be those of a fork, so of them it is one only where the version is known.
    """
    if recipe.version_source.known:
        return
    found = _held_back(recipe)
    if found:
        keys = tuple(dict.fromkeys(key for broken in found for key in broken.fields))
        why = f"{_label(recipe)} is assumed, because nothing states the version and no known release takes all keys"
        if len(found) == 1:
            why = f"{found[0].why}; {why}"
        instead = "State the version that trains: --framework-version, or framework-version in .grposweep.toml."
        yield Violation(_named(keys) or found[0].what, why, instead, keys)


@recipe_rule("GV111", "warning", of=EVERY)
def the_pinned_version_takes_the_keys(recipe: Recipe) -> Iterator[Violation]:
    """A repository that pins one release, and a recipe with keys of another: one of the two is out of date.

    The recipe is judged by the newest release that takes all its keys, where there is one.
    """
    source = recipe.version_source
    keys = tuple(key for key in source.conflict if key in recipe.config)
    if keys:
        pins = f"{source.where} pins {source.text}, which does not take {'it' if len(keys) == 1 else 'them'}"
        if source.kind == "pinned":
            why, advice = "no known release takes all keys", "Change the keys, or lint with --framework-version."
        else:
            why = f"the newest release that takes all keys is {text(recipe.version)}"
            advice = (
                f"Change the pin or the keys. Judged by {text(recipe.version)}; --framework-version states another."
            )
        yield Violation(_named(keys), f"{pins}; {why}", advice, keys)


def _held_back(recipe: Recipe) -> list[Violation]:
    """Return what the rules that depend on the release would say, were the assumed version known."""
    rules = choose_for_recipes(frameworks.FRAMEWORKS[recipe.framework].traits)
    return [broken for rule in rules if rule.by_release for broken in rule.judge(recipe) if not broken.certain]


def _label(recipe: Recipe) -> str:
    return frameworks.FRAMEWORKS[recipe.framework].traits.name_of(text(recipe.version))


def _named(keys: tuple[str, ...]) -> str:
    more = f" and {len(keys) - MOST_NAMED} more" if len(keys) > MOST_NAMED else ""
    return ", ".join(cut(key) for key in keys[:MOST_NAMED]) + more
