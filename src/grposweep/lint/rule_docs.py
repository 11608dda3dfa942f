"""Write docs/rules.md from the docstrings of the rules: ``python -m grposweep.lint.rule_docs [FILE]``."""

import sys
from pathlib import Path

from grposweep.check import RECIPE_RULES, REGISTRY, RecipeRule, Rule
from grposweep.frameworks import FRAMEWORKS
from grposweep.rules.registry import FAMILIES
from grposweep.setting import TRL_FAMILY

COMMAND = "python -m grposweep.lint.rule_docs"
# What a formula may name; case matters.
SYMBOLS = {
    "W": "training processes (`processes`)",
    "R": "data ranks, W without those that share a sequence or a model",
    "B": "`per_device_train_batch_size`, in completions",
    "B_eval": "`per_device_eval_batch_size`, in completions",
    "A": "`gradient_accumulation_steps`, in micro-steps",
    "S": "`steps_per_generation`, in micro-steps",
    "G": "`num_generations`, completions a prompt",
    "G_eval": "`num_generations_eval`",
    "mu": "`num_iterations`, passes over a rollout",
    "D": "training prompts",
    "P": "prompts a rollout",
    "p": "prompts an optimizer step",
    "g": "completions of an optimizer step on one data rank, floor(p G / R)",
    "m": "completions a micro-batch and data rank",
    "U": "optimizer steps a rollout",
    "k": "a whole number",
}
HEAD = f"""# The rules

Made from the rules' docstrings by `{COMMAND}` (or `make docs`); do not edit. {{count}} rules.
An **error** is what the framework refuses, or what trains something else than was written. A **warning** is worth knowing.
`grposweep rules GB101` prints one rule; `--ignore` and `--select` take codes and families. Codes are permanent.

| Symbol | Meaning |
|---|---|
{chr(10).join(f"| {symbol} | {meaning} |" for symbol, meaning in SYMBOLS.items())}
"""
RULES: dict[str, Rule | RecipeRule] = {**REGISTRY, **RECIPE_RULES}


def render() -> str:
    """The whole document."""
    parts = [HEAD.format(count=len(RULES))]
    for family, about in FAMILIES.items():
        rules = [rule for code, rule in sorted(RULES.items()) if code[:2] == family]
        if rules:
            parts += [f"## {family}: {about}\n", *(_render_rule(rule) for rule in rules)]
    return "\n".join(parts)


def _render_rule(rule: Rule | RecipeRule) -> str:
    """One rule: its code as an anchor, its title, its explanation, what it reads."""
    names = [name for name, known in FRAMEWORKS.items() if rule.holds_for(known.traits)]
    of = "" if rule.of == TRL_FAMILY else f"\n\nOf {', '.join(names)}."
    reads = f"\n\nReads {', '.join(f'`{name}`' for name in sorted(rule.reads))}." if isinstance(rule, Rule) else ""
    return f"### {rule.code}\n\n**{rule.title}** ({rule.severity})\n\n{rule.explanation}{of}{reads}\n"


def main(target: Path) -> None:
    """Write the document."""
    target.parent.mkdir(exist_ok=True)
    target.write_text(render())


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/rules.md"))
