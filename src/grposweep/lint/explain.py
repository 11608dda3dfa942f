"""The rules in words: a list by family, or one rule's own docstring."""

import inspect
import textwrap
from typing import TextIO

from grposweep.errors import BadInput
from grposweep.lint.judge import choose
from grposweep.rules.on_recipes import RECIPE_RULES
from grposweep.rules.registry import FAMILIES, REGISTRY, RecipeRule, Rule


def explain_rules(code: str | None, out: TextIO) -> None:
    """One rule in full; a family or all of them a line each."""
    rules: dict[str, Rule | RecipeRule] = {**REGISTRY, **RECIPE_RULES}
    wanted = (code or "").strip().upper()
    if wanted and not any(name.startswith(wanted) for name in rules):
        choose((wanted,))  # says what there is
        raise BadInput(f"{code}: no such rule.")
    if wanted in rules:
        out.write(_full(rules[wanted]))
        return
    for family, title in FAMILIES.items():
        members = [rule for name, rule in sorted(rules.items()) if name.startswith(family) and name.startswith(wanted)]
        if members:
            out.write(f"{family}  {title}\n")
        for rule in members:
            head = f"  {rule.code}  {rule.severity:<7}  "
            out.write(
                textwrap.fill(_first_line(rule), 80, initial_indent=head, subsequent_indent=" " * len(head)) + "\n"
            )


def _full(rule: Rule | RecipeRule) -> str:
    text = inspect.cleandoc(rule.explanation)
    return f"{rule.code} ({rule.severity}): {rule.judge.__name__.replace('_', ' ')}\n\n{text}\n"


def _first_line(rule: Rule | RecipeRule) -> str:
    return inspect.cleandoc(rule.explanation).split("\n", 1)[0].rstrip(".")
