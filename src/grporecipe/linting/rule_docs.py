"""Render rules as text: the pages of docs/reference (``python -m grporecipe.linting.rule_docs``) and ``grposweep rules``."""

import argparse
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from grporecipe.errors import UserError
from grporecipe.linting._examples import build_example
from grporecipe.linting.output import BOLD, INDENT, Screen
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.setting import TRL_FAMILY
from grporecipe.rules.check import RECIPE_RULES, REGISTRY, RecipeRule, Rule
from grporecipe.rules.registry import FAMILIES

COMMAND, FOLDER = "python -m grporecipe.linting.rule_docs", Path("docs/reference")
INDEX = "rules.md"
# Symbols in formulas; case matters.
SYMBOLS = {
    "W": "training processes (`processes`)",
    "R": "data ranks, W without those that share a sequence or a model",
    "B": "`per_device_train_batch_size`, in completions",
    "B_eval": "`per_device_eval_batch_size`, in completions",
    "A": "`gradient_accumulation_steps`, in micro-steps",
    "S": "`steps_per_generation`, in micro-steps",
    "G": "`num_generations`, completions per prompt",
    "G_eval": "`num_generations_eval`",
    "mu": "`num_iterations`, passes over a rollout",
    "D": "training prompts",
    "P": "prompts per rollout",
    "p": "prompts per optimizer step",
    "g": "completions of an optimizer step on one data rank, floor(p G / R)",
    "m": "completions per micro-batch and data rank",
    "U": "optimizer steps per rollout",
    "k": "a whole number",
}
HEAD = f"""# The rules

Generated from the rules' docstrings by `{COMMAND}` (or `make docs`); do not edit. {{count}} rules.
An **error** is refused by the framework, or trains something other than the recipe says. A **warning** is worth knowing.
A **note** says what was not checked, and why.
`grposweep rules GB101` prints one rule; `--ignore` and `--select` take codes and families. Codes are permanent.

| Symbol | Meaning |
|---|---|
{chr(10).join(f"| {symbol} | {meaning} |" for symbol, meaning in SYMBOLS.items())}
"""
RULES: dict[str, Rule | RecipeRule] = {**REGISTRY, **RECIPE_RULES}


def page_of(code: str) -> str:
    """Return the page below docs/reference that explains a rule."""
    return f"rules/{code[:2]}.md"


def render_rules() -> dict[str, str]:
    """Return the text of each page by its path: one of each family, and an index with an anchor for each rule."""
    index, pages = [HEAD.format(count=len(RULES))], dict[str, str]()
    for family, about in FAMILIES.items():
        rules = [rule for code, rule in sorted(RULES.items()) if code[:2] == family]
        if rules:
            page = page_of(family)
            head = f"# {family}: {about}\n\nGenerated. The [list of all rules](../{INDEX}) explains the symbols.\n"
            pages[page] = "\n".join([head, *map(_render_rule, rules)])
            index += [
                f"## {family}: {about}\n",
                "| Rule | Severity | What it checks |\n|---|---|---|",
                *map(_index_row, rules),
                "",
            ]
    return {INDEX: "\n".join(index), **pages}


def _index_row(rule: Rule | RecipeRule) -> str:
    """Return a rule's row, which is the anchor that earlier links name."""
    anchor, checks = rule.code.lower(), _first_line(rule).replace("|", r"\|")
    return f'| <a id="{anchor}"></a>[{rule.code}]({page_of(rule.code)}#{anchor}) | {rule.severity} | {checks} |'


def _first_line(rule: Rule | RecipeRule) -> str:
    return rule.explanation.split("\n", 1)[0].rstrip(".")


class Part(NamedTuple):
    """A part of a rule's text: prose under a heading, and blocks of code with their languages."""

    heading: str
    prose: str
    blocks: tuple[tuple[str, str], ...] = ()


def _parts(rule: Rule | RecipeRule) -> list[Part]:
    """Return what a rule checks, why that fails, an example and its fix."""
    checks, _, why = rule.explanation.partition("\n\n")
    example = build_example(rule.code)
    parts = [Part("What it checks", checks), Part("Why it fails", why or (example.reason if example else ""))]
    if example is not None:
        blocks = ((example.language, example.source), ("text", example.finding))
        parts.append(Part("Example", example.about, blocks))
        parts.append(Part("Fix", "", (("diff", example.change),)))
    return [part for part in parts if part.prose or part.blocks]


def _render_rule(rule: Rule | RecipeRule) -> str:
    """Return one rule: its code as an anchor, its title, its parts, and what it reads."""
    names = [name for name, known in FRAMEWORKS.items() if rule.holds_for(known.traits)]
    of = "" if rule.of == TRL_FAMILY else f" Of {', '.join(names)}."
    lines = [
        f'<a id="{rule.code.lower()}"></a>',
        "",
        f"## {rule.code}: {rule.title}",
        "",
        f"**{rule.severity}**.{of}",
        "",
    ]
    for part in _parts(rule):
        lines += [f"**{part.heading}.** {part.prose}".rstrip(), ""]
        for language, text in part.blocks:
            lines += [f"```{language}", text.rstrip(), "```", ""]
    if isinstance(rule, Rule):
        lines += [f"Reads {', '.join(f'`{name}`' for name in sorted(rule.reads))}.", ""]
    return "\n".join(lines)


def explain_rules(words: Sequence[str], out: TextIO) -> None:
    """Print one rule in full, or one line each of a family, of the rules with these words, or of all.

    Raises UserError if there is none.
    """
    wanted = " ".join(words).strip()
    if (code := wanted.upper()) in RULES:
        _explain_rule(RULES[code], Screen(out))
        return
    codes = [name for name in RULES if name.startswith(code)] or [name for name in RULES if _has(name, wanted.split())]
    if not codes:
        raise UserError(
            f"{wanted}: no rule or family of this name, and no rule with these words. Families are {', '.join(FAMILIES)}; see "
            "grposweep rules."
        )
    for family, title in FAMILIES.items():
        members = [rule for name, rule in sorted(RULES.items()) if name in codes and name.startswith(family)]
        if members:
            out.write(f"{family}  {title}\n")
        for rule in members:
            head = f"  {rule.code}  {rule.severity:<7}  "
            line = _on_terminal(_first_line(rule))
            out.write(textwrap.fill(line, 80, initial_indent=head, subsequent_indent=" " * len(head)) + "\n")


def _has(code: str, words: Sequence[str]) -> bool:
    """Return whether a rule's family, title, first line and the names that it reads have a word that begins as each of these."""
    rule = RULES[code]
    reads = rule.reads if isinstance(rule, Rule) else ()
    text = " ".join([FAMILIES[code[:2]], rule.title, _first_line(rule), *reads])
    return all(re.search(rf"(?<![^\W_]){re.escape(word)}", text, re.IGNORECASE) for word in words)


def _explain_rule(rule: Rule | RecipeRule, screen: Screen) -> None:
    """Print one rule under its headings."""
    screen.say(f"{rule.code} ({rule.severity}): {rule.title}")
    for part in _parts(rule):
        screen.say(f"\n{screen.paint(part.heading, BOLD)}")
        for paragraph in part.prose.split("\n\n") if part.prose else ():
            screen.wrap(" ".join(_on_terminal(paragraph).split()), "  ")
        for number, (_, text) in enumerate(part.blocks):
            if number or part.prose:
                screen.say()
            screen.say(textwrap.indent(text.rstrip(), INDENT))


def _on_terminal(text: str) -> str:
    return text.replace("``", "`")  # double backticks are for pages


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the pages to the folder named on the command line."""
    parser = argparse.ArgumentParser(description=f"Write {INDEX} and the page of each family of rules.")
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help="the folder (default: %(default)s)")
    folder: Path = parser.parse_args(arguments).folder
    for name, text in render_rules().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
