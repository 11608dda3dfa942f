"""Print rules as text: ``grposweep rules``."""

import re
import textwrap
from collections.abc import Sequence
from typing import NamedTuple, TextIO

from grporecipe import rules
from grporecipe.errors import UserError
from grporecipe.files import read_own_yaml
from grporecipe.linting.output import BOLD, INDENT, Screen
from grporecipe.rules.check import RECIPE_RULES, REGISTRY, RecipeRule, Rule
from grporecipe.rules.registry import FAMILIES

JUDGED = "judged_examples.yaml"
RULES: dict[str, Rule | RecipeRule] = {**REGISTRY, **RECIPE_RULES}


def _first_line(rule: Rule | RecipeRule) -> str:
    return rule.explanation.split("\n", 1)[0].rstrip(".")


class RuleExample(NamedTuple):
    """What is shown of an example.

    ``about`` is the command that judges it, or a sentence on a sweep. ``source`` is its text and
    ``language`` what that is written in. ``finding`` is what is printed, and ``reason`` the part
    that says why. ``change`` has the lines that differ when it is corrected.
    """

    about: str
    language: str
    source: str
    finding: str
    reason: str
    change: str


def find_example(code: str) -> RuleExample | None:
    """Return the example of a rule, or None if it has none, as a rule that a user adds."""
    example = read_own_yaml(rules.__file__, JUDGED).get(code)
    if example is None:
        return None
    return RuleExample(**example)


class Part(NamedTuple):
    """A part of a rule's text: prose under a heading, and blocks of code with their languages."""

    heading: str
    prose: str
    blocks: tuple[tuple[str, str], ...] = ()


def parts_of(rule: Rule | RecipeRule) -> list[Part]:
    """Return what a rule checks, why that fails, an example and its fix."""
    checks, _, why = rule.explanation.partition("\n\n")
    example = find_example(rule.code)
    parts = []
    if example is not None:
        why = why or example.reason
        blocks = ((example.language, example.source), ("text", example.finding))
        parts = [
            Part("Example", example.about, blocks),
            Part("Fix", "", (("diff", example.change),)),
        ]
    parts = [Part("What it checks", checks), Part("Why it fails", why), *parts]
    return [part for part in parts if part.prose or part.blocks]


def explain_rules(words: Sequence[str], out: TextIO) -> None:
    """Print one rule in full, or one line each of a family, of the rules with these words, or of
    all.

    Raises UserError if there is none.
    """
    wanted = " ".join(words).strip()
    code = wanted.upper()
    if code in RULES:
        _explain_rule(RULES[code], Screen(out))
        return
    codes = [name for name in RULES if name.startswith(code)] or [
        name for name in RULES if _has(name, wanted.split())
    ]
    if not codes:
        raise UserError(
            f"{wanted}: no rule or family of this name, and no rule with these words. Families are "
            f"{', '.join(FAMILIES)}; see grposweep rules."
        )
    for family, title in FAMILIES.items():
        members = [name for name in sorted(codes) if name.startswith(family)]
        if members:
            out.write(f"{family}  {title}\n")
        for rule in map(RULES.__getitem__, members):
            head = f"  {rule.code}  {rule.severity:<7}  "
            line = _on_terminal(_first_line(rule))
            out.write(
                textwrap.fill(line, 80, initial_indent=head, subsequent_indent=" " * len(head))
                + "\n"
            )


def _has(code: str, words: Sequence[str]) -> bool:
    """Return whether a rule's family, title, first line and the names that it reads have a word
    that begins as each of these.
    """
    rule = RULES[code]
    texts = [FAMILIES[code[:2]], rule.title, _first_line(rule)]
    if isinstance(rule, Rule):
        texts += rule.reads
    text = " ".join(texts)
    return all(re.search(rf"(?<![^\W_]){re.escape(word)}", text, re.IGNORECASE) for word in words)


def _explain_rule(rule: Rule | RecipeRule, screen: Screen) -> None:
    """Print one rule under its headings."""
    screen.say(f"{rule.code} ({rule.severity}): {rule.title}")
    for part in parts_of(rule):
        screen.say(f"\n{screen.paint(part.heading, BOLD)}")
        for paragraph in filter(None, part.prose.split("\n\n")):
            screen.wrap(" ".join(_on_terminal(paragraph).split()), "  ")
        for number, (_, text) in enumerate(part.blocks):
            if number or part.prose:
                screen.say()
            screen.say(textwrap.indent(text.rstrip(), INDENT))


def _on_terminal(text: str) -> str:
    # double backticks are for pages
    return text.replace("``", "`")
