"""GV: values that a key can hold, as TRL's own parser reads them; part of the family of ``keys``.

Sources: trl scripts/utils.py TrlParser, transformers hf_argparser.py, transformers trainer_utils.py (strategies).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from grposweep.frameworks import keys
from grposweep.frameworks.values import convert
from grposweep.recipe import Recipe
from grposweep.rules.registry import Broken, recipe_rule

LISTS = frozenset({"reward_funcs", "benchmarks", "callbacks"})  # iterated as they are: a string means its letters
STRATEGIES = {"eval_strategy": ("no", "steps", "epoch"), "save_strategy": ("no", "steps", "epoch", "best")}
WANTED = {"int": "a whole number", "float": "a number", "bool": "true or false"}


@recipe_rule("GV103", "warning")
def numbers_are_numbers(recipe: Recipe) -> Iterator[Broken]:
    """A number that YAML reads as a string: YAML 1.1 wants a dot and a signed exponent, so ``3e-06`` is text.

    TRL's parser (argparse) turns it into a number all the same; a script that builds ``GRPOConfig(**yaml)`` fails late
    with it, or misreads it: the text "false" counts as true.
    """
    takes = keys.known(recipe.framework, recipe.version)
    for key, value in recipe.config.items():
        if isinstance(value, str) and key in takes and key not in recipe.unresolved:
            found = convert(value, takes[key].type)
            if found.trouble == "string":
                yield Broken(
                    what=f"{key}: {show(value)}",
                    why=f"YAML reads it as text; TRL's parser makes {show(found.value)} of it, a script of your own may not",
                    instead=f"Write {key}: {show(found.value)}.",
                    fields=(key,),
                    suggestions=({key: found.value},),
                    without_effect=frozenset({key}),
                )


@recipe_rule("GV104", "error")
def values_have_their_type(recipe: Recipe) -> Iterator[Broken]:
    """A value that its key cannot hold: words for a number, a fraction for a count, a bare ``no`` for a strategy.

    argparse refuses words for numbers ("invalid int value"); other types pass it and fail later, some after the model is
    loaded. ``eval_strategy: no`` without quotes is the boolean false in YAML.
    """
    takes = keys.known(recipe.framework, recipe.version)
    for key, value in recipe.config.items():
        if key in recipe.unresolved:
            continue
        if key in STRATEGIES and isinstance(value, (bool, str)) and value not in STRATEGIES[key]:
            yield _strategy(key, value)
        elif key in LISTS and key in takes and isinstance(value, str):
            change = {key: [value]}
            yield _mistyped(key, value, "a list (a string is taken for a list of its letters)", change)
        elif key == "env" and not isinstance(value, dict):
            yield _mistyped(key, value, "a mapping of environment variables", None)
        elif key in takes and (found := convert(value, takes[key].type)).trouble == "type":
            yield _mistyped(key, value, WANTED[takes[key].type.rstrip("?")], _round(key, value, found.value))
        elif key == "num_generations" and value is None:
            yield _mistyped(key, value, WANTED["int"], {key: 8})


def _strategy(key: str, value: Any) -> Broken:
    if value is False:
        return Broken(f"{key}: no", "YAML reads a bare no as false, which is no strategy", f'Write {key}: "no".', (key,),
                      ({key: "no"},), without_effect=frozenset({key}))  # fmt: skip
    choices = ", ".join(STRATEGIES[key])
    return Broken(f"{key}={show(value)}", f"there are {choices}", "Choose one of them.", (key,))


def _mistyped(key: str, value: Any, wanted: str, change: Mapping[str, Any] | None) -> Broken:
    suggestions = (dict(change),) if change else ()
    return Broken(f"{key}={show(value)}", f"{key} is {wanted}", f"Set {key} to {wanted}.", (key,), suggestions)


def _round(key: str, value: Any, number: Any) -> dict[str, Any] | None:
    """8.0 for a count is 8; a share of warmup has a key of its own in transformers 4."""
    if isinstance(value, float) and number is not None and number == value:
        return {key: number}
    if key == "warmup_steps" and isinstance(value, float) and 0 < value < 1:
        return {key: None, "warmup_ratio": value}
    return None


def show(value: Any) -> str:
    """A value as YAML would write it, cut short, on one line."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (dict, list)):
        return "{...}" if isinstance(value, dict) else "[...]"
    return cut(str(value))


def cut(text: str) -> str:
    """One line of at most 40 characters, none of which moves a cursor."""
    text = "".join(char if char.isprintable() else " " for char in text)
    return text if len(text) <= 40 else text[:37] + "..."
