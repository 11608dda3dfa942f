"""The rules of the toy framework."""

from collections.abc import Iterator

from frameworks.toy import KEYS
from grporecipe.frameworks.base import closest_keys
from grporecipe.recipe import Recipe
from grporecipe.rules.registry import Violation, recipe_rule, rule
from grporecipe.setting import Setting

TOY = frozenset({"toy"})


@rule("GB901", "error", ("prompts_per_rollout", "prompts_per_step"), of=TOY)
def steps_divide_a_rollout(s: Setting) -> Violation | None:
    """A rollout is whole optimizer steps."""
    rollout, step = s.prompts_per_rollout or 1, s.prompts_per_step or 1
    if rollout % step == 0:
        return None
    fits = max(n for n in range(1, step + 1) if rollout % n == 0)
    return Violation(
        what=f"{s.key('prompts_per_rollout')}={rollout} and {s.key('prompts_per_step')}={step}",
        why="a rollout is not whole optimizer steps",
        instead="Set a divisor.",
        fields=("prompts_per_step",),
        suggestions=({"prompts_per_step": fits},),
    )


@recipe_rule("GV901", "error", of=TOY)
def keys_exist(recipe: Recipe) -> Iterator[Violation]:
    """A key that the toy does not take."""
    for key in recipe.config:
        if key not in KEYS:
            near = closest_keys(key, KEYS)
            changes = tuple({key: None, name: recipe.config[key]} for name in near[:1])
            yield Violation(f"{key}={recipe.config[key]}", "unknown key", f"Did you mean {near}?", (key,), changes)
