"""Writes docs/rules.md from the docstrings of the rules: ``python -m grposweep.lint.rule_docs [FILE]``."""

import inspect
import sys
from pathlib import Path

from grposweep.frameworks import FRAMEWORKS
from grposweep.rules.on_recipes import RECIPE_RULES
from grposweep.rules.registry import FAMILIES, REGISTRY, RecipeRule, Rule
from grposweep.setting import TRL_FAMILY

COMMAND = "python -m grposweep.lint.rule_docs"
HEAD = f"""# The rules

Made from the rules' docstrings by `{COMMAND}` (or `make docs`); do not edit. {{count}} rules: an
**error** is what TRL refuses, or what trains something else than was written; a **warning** is worth knowing.
`grposweep rules GB101` prints one of them, `--ignore` and `--select` take codes and families. Codes are permanent.

Symbols: B `per_device_train_batch_size`, W training processes, A `gradient_accumulation_steps`, S `steps_per_generation`
(micro-steps), G `num_generations`, mu `num_iterations`, D training prompts, P prompts a rollout.
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
    """One rule: its code as an anchor, its name as a sentence, its docstring, what it reads."""
    name = rule.judge.__name__.replace("_", " ")
    text = inspect.cleandoc(rule.explanation)
    of = (
        ""
        if rule.of == TRL_FAMILY
        else f"\n\nOf {', '.join(name for name in FRAMEWORKS if rule.holds_for(FRAMEWORKS[name].traits))}."
    )
    reads = f"\n\nReads {', '.join(f'`{name}`' for name in sorted(rule.reads))}." if isinstance(rule, Rule) else ""
    return f"### {rule.code}\n\n**{name}** ({rule.severity})\n\n{text}{of}{reads}\n"


def main(target: Path) -> None:
    """Write the document."""
    target.parent.mkdir(exist_ok=True)
    target.write_text(render())


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/rules.md"))
