"""Rules are explained, by ``grposweep rules`` and on the pages that are generated from them."""

import re
import sys
from collections.abc import Callable
from fractions import Fraction
from math import ceil, floor
from pathlib import Path

import pytest

from grporecipe.linting import explain_rules as document
from grporecipe.model import planning
from grporecipe.model.setting import Setting
from grporecipe.rules import rollout_batch
from support import Printed, load_script, unwrap

MAKER = load_script("make_rules")


@pytest.mark.slow
def test_the_pages_of_the_site_explain_every_rule_once(tmp_path: Path) -> None:
    """Each under its code on the page of its family."""
    MAKER.main([str(tmp_path / "rules")])
    pages = {path.name: path.read_text() for path in (tmp_path / "rules").iterdir()}
    explained = "".join(pages.values())
    for code, rule in document.RULES.items():
        heading = f'\n<a id="{code.lower()}"></a>\n\n## {code}: {rule.title}\n'
        assert explained.count(heading) == 1
        assert heading in pages[f"{code[:2]}.md"]


HEADINGS = ("What it checks", "Why it fails", "Example", "Fix")


@pytest.mark.parametrize("code", ["GB101", "GD201", "GV107", "GL301"])
def test_a_rule_is_explained_under_four_headings(code: str, printed: Printed) -> None:
    """In their order, within 80 columns apart from the lines of an example."""
    document.explain_rules([code.lower()], sys.stdout)
    lines = printed().splitlines()
    assert [line for line in lines if line in HEADINGS] == list(HEADINGS)
    assert (
        max(len(line) for line in lines if line.startswith("  ") and not line.startswith("    "))
        <= 80
    )


# Formulas of the page, and what grposweep computes for them.
COMPLETIONS = Setting(
    processes=6,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=3,
    steps_per_generation=5,
    num_generations=8,
    num_iterations=2,
    train_prompts=1000,
    per_device_eval_batch_size=16,
    num_generations_eval=4,
    budget_completions=1000,
)
PROMPTS = Setting(
    processes=8,
    sequence_parallel_size=2,
    prompts_per_rollout=16,
    prompts_per_step=3,
    num_generations=5,
    per_device_train_batch_size=3,
)
FORMULAS: list[tuple[str, str, Callable[[Setting], object]]] = [
    ("GB101", "B W S", planning.completions_per_rollout),
    ("GB106", "B W", planning.completions_per_micro_step),
    (
        "GB104",
        "B W A / G",
        lambda s: Fraction(planning.completions_per_step(s) or 0, s.num_generations),
    ),
    ("GD201", "P = B W S / G", planning.prompts_per_rollout),
    ("GD201", "D mod P", planning.dropped_prompts),
    ("GD201", "floor(D / P)", planning.rollouts_per_epoch),
    (
        "GS103",
        "steps = floor(budget / (B W S)) mu S / A",
        lambda s: (s.budget_completions or 0) // 120 * Fraction(10, 3),
    ),
    (
        "GE501",
        "B_eval W // G_eval",
        lambda s: s.per_device_eval_batch_size * (s.processes or 0) // 4,
    ),
    ("GB304", "P G", rollout_batch.rollout_completions),
    ("GB305", "g = floor(p G / R)", rollout_batch.per_rank),
    ("GB306", "g = floor(p G / R)", rollout_batch.per_rank),
    (
        "GB309",
        "P G / R",
        lambda s: Fraction(rollout_batch.rollout_completions(s), rollout_batch.ranks(s) or 1),
    ),
    ("GB310", "p G", rollout_batch.step_completions),
    (
        "GB310",
        "g = p G / R",
        lambda s: Fraction(rollout_batch.step_completions(s), rollout_batch.ranks(s) or 1),
    ),
    ("GB401", "P G", rollout_batch.rollout_completions),
    ("GB403", "p G", rollout_batch.step_completions),
    (
        "GB404",
        "p G / R",
        lambda s: Fraction(rollout_batch.step_completions(s), rollout_batch.ranks(s) or 1),
    ),
]


def values(s: Setting) -> dict[str, object]:
    """What the symbols of the legend are in a setting."""
    if s.prompts_per_rollout is not None:
        return {
            "P": s.prompts_per_rollout,
            "p": s.prompts_per_step,
            "G": s.num_generations,
            "R": rollout_batch.ranks(s),
        }
    return {
        "B": s.per_device_train_batch_size,
        "W": s.processes,
        "S": s.steps_per_generation,
        "G": s.num_generations,
        "A": s.gradient_accumulation_steps,
        "mu": s.num_iterations,
        "D": s.train_prompts,
        "P": planning.prompts_per_rollout(s),
        "B_eval": s.per_device_eval_batch_size,
        "G_eval": s.num_generations_eval,
        "budget": s.budget_completions,
    }


def evaluate(formula: str, s: Setting) -> object:
    """The value of a formula, in which symbols side by side are multiplied."""
    text = re.sub(r"\bmod\b", "%", formula.split(" = ")[-1])
    text = re.sub(r"(?<=[\w)]) (?=\w|\()", " * ", text)
    known = {name: Fraction(value) for name, value in values(s).items()}  # type: ignore[call-overload]  # numbers, all
    return eval(text, {"floor": floor, "ceil": ceil}, known)


@pytest.mark.parametrize(("code", "formula", "computed"), FORMULAS)
def test_a_stated_formula_is_what_is_computed(
    code: str, formula: str, computed: Callable[[Setting], object]
) -> None:
    """A capital letter in place of a small one gives another number."""
    s = (
        PROMPTS
        if code in ("GB304", "GB305", "GB306", "GB309", "GB310", "GB401", "GB403", "GB404")
        else COMPLETIONS
    )
    text = unwrap(document.RULES[code].explanation)
    assert re.search(rf"(?<![A-Zp/] ){re.escape(formula)}(?! ?[/\w(]*[A-Z]\b)", text), text
    assert evaluate(formula, s) == computed(s)


def plain(text: str) -> str:
    """A rule's text without code and quoted messages."""
    return re.sub(r"``[^`]*``|`[^`]*`|\"[^\"]*\"", "", text)


SYMBOLS = set(re.findall(r"(?m)^\| (\w+) \| ", MAKER.PAGE.partition("Symbols")[2]))


@pytest.mark.parametrize("code", sorted(document.RULES))
def test_symbols_are_those_of_the_legend(code: str) -> None:
    """No text begins with a symbol, which a formatter may capitalise, and every symbol is defined
    with its case.
    """
    text = document.RULES[code].explanation
    first = re.match(r"\S+", text)
    assert first is not None
    # the article
    symbols = {symbol.lower() for symbol in SYMBOLS} - {"a"}
    assert first[0].strip(",:").lower() not in symbols
    # articles, "2 x 3"
    letters = set(re.findall(r"(?<![\w.'-])([A-Za-z](?:_eval)?)(?![\w'-]|\.\w)", plain(text))) - {
        "a",
        "A",
        "x",
    }
    assert letters <= SYMBOLS, letters


@pytest.mark.parametrize("code", sorted(document.RULES))
def test_names_are_spelled_as_their_owners_do(code: str) -> None:
    """In titles and texts."""
    rule = document.RULES[code]
    wrong = (
        r"\b(Verl|VERL|VLLM|Vllm|easyR1|Easyr1|EasyR1s|Trl|MS-Swift|Ms-swift|ms swift|s keys"
        r"|kl|gpus?)\b"
    )
    assert not re.search(wrong, plain(f"{rule.title}. {rule.explanation}"))


def test_titles_tell_rules_apart() -> None:
    """No two rules have the same title."""
    titles = [rule.title for rule in document.RULES.values()]
    assert len(set(titles)) == len(titles)
