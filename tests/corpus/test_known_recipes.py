"""Recipes of public repositories, each with a verdict of its framework; README.md has their origin
and fields.
"""

from collections import Counter
from dataclasses import replace

import pytest

from grporecipe.fields.recipes import read_recipe
from grporecipe.files import Json
from grporecipe.frameworks.trl.keys import parse_version
from grporecipe.linting.linter import LintResult, lint_recipe, select_rules
from grporecipe.model.recipe import Recipe
from grporecipe.reading.load import Options, build_recipe
from grporecipe.rules.check import check, errors
from support import executed_lines, known_recipes
from verdicts import codes_of, error_codes

TRL = [row for row in known_recipes("trl", "open-r1") if "trl_batch_errors" in row["expected"]]
REASONS = {
    "must be divisible by num_generations": "GB101",
    "at least 2 generations": "GB102",
    "must be divisible by the global batch size": "GB106",
    "can not be both configured": "GB107",
    "global eval batch size": "GE101",
}
# what was read in its source
MS_SWIFT = ("GB101", "GB102", "GB103", "GB106", "GB501", "GB503")
# Rows whose verdict differs here, with the reason.
EXPLAINED = dict.fromkeys(
    ("C0579", "C0623"),
    "train_batch_size=0 belongs to the fully asynchronous trainer, which also asserts "
    "gen_batch_size=1; the row left "
    "that key out, and main_ppo would refuse the rest: P=0 is below ppo_mini_batch_size=128",
)


def recipe(row: Json, processes: int | None, version: str = "1.10") -> Recipe:
    """A row of TRL's family, as TRL of that version reads it with that number of processes."""
    return build_recipe(row["config"], Options("trl", parse_version(version), processes))


def trl_errors(row: Json, processes: int, *families: str, version: str = "1.10") -> set[str]:
    """The codes of the rules' errors on it."""
    setting = read_recipe(recipe(row, processes, version)).setting
    return error_codes(check(setting, select=families))


def own_errors(row: Json, *families: str) -> set[str]:
    """The codes of the linter's errors on a row as it stands, with the number of processes that it
    states.
    """
    return error_codes(own_verdict(row, *families).diagnostics)


def own_verdict(row: Json, *families: str) -> LintResult:
    """The linter's verdict on it."""
    return lint_recipe(
        build_recipe(row["config"], Options(row["framework"], processes=row["processes"])),
        select_rules(families),
    )


def test_the_rules_agree_with_trl_for_every_number_of_processes() -> None:
    """What GRPOConfig accepts has no error; what it refuses has an error for the same reason."""
    count = Counter[str]()
    different = []
    for row in TRL:
        for processes, error in row["expected"]["trl_batch_errors"].items():
            codes = trl_errors(row, int(processes), "GB", "GE")
            count["refused" if error else "accepted"] += 1
            reason = next((code for words, code in REASONS.items() if words in error), None)
            if (reason not in codes) if error else codes:
                different.append((row["id"], processes, error, sorted(codes)))
    assert not different
    assert (len(TRL), count) == (211, {"accepted": 1145, "refused": 543})


def test_the_rules_agree_with_the_older_rule_of_trl_0_15() -> None:
    """TRL 0.15 divides processes x per_device_train_batch_size by num_generations, without
    accumulation.
    """
    for row in TRL:
        refused = [n for n in range(1, 9) if trl_errors(row, n, "GB", version="0.15")]
        assert refused == row["expected"]["trl_0_15_rule_fails_for_processes"], row["id"]


@pytest.mark.slow
def test_without_a_number_of_processes_a_recipe_is_judged_for_all() -> None:
    """An error if all of 1 to 64 are refused; a warning (GT201) names those that work if some
    are.
    """
    for row in TRL:
        # A recipe may state its number of processes itself.
        unstated = replace(read_recipe(recipe(row, None)).setting, processes=None)
        works = [
            n
            for n in range(1, 65)
            if not errors(check(replace(unstated, processes=n), select=["GB", "GE"]))
        ]
        found = check(unstated, select=["GB", "GE", "GT201"])
        assert bool(errors(found)) == (not works), row["id"]
        assert ("GT201" in {problem.code for problem in found}) == (0 < len(works) < 64), row["id"]


@pytest.mark.slow
def test_a_recipe_is_judged_with_its_fixes_in_a_bounded_number_of_lines() -> None:
    """Executed lines instead of seconds, which depend on the machine; benchmarks/lint_speed.py
    measures those.
    """
    recipes = [recipe(row, row["processes"]) for row in TRL]
    # tables of releases, keys and defects are read once in a process
    for each in recipes:
        lint_recipe(each)
    # about 7,200 a recipe
    executed_lines(lambda: [lint_recipe(each) for each in recipes], most=8000 * len(recipes))


def test_the_batch_verdicts_on_ms_swift_agree_with_its_source() -> None:
    """For every row that states its processes, those of the Megatron back-end among them."""
    rows = [row for row in known_recipes("ms-swift") if row["processes"] is not None]
    different = {
        row["path"]: sorted(found)
        for row in rows
        if bool(found := own_errors(row, *MS_SWIFT)) != bool(expected(row))
    }
    assert different == {}
    assert (len(rows), sum(bool(expected(row)) for row in rows)) == (31, 1)


def test_the_verdicts_on_easyr1_and_verl_agree_with_their_source() -> None:
    """Sizes and topology: broken or not, for every row that is not explained."""
    rows = known_recipes("easyr1", "verl")
    different = {
        row["id"]: expected(row)
        for row in rows
        if bool(own_errors(row, "GB,GT")) != bool(expected(row))
    }
    assert different.keys() == EXPLAINED.keys()
    count = Counter((row["framework"], bool(expected(row))) for row in rows)
    assert count == {
        ("easyr1", False): 19,
        ("easyr1", True): 1,
        ("verl", False): 95,
        ("verl", True): 2,
    }


def expected(row: Json) -> str:
    """The batch rule that a row breaks by its framework's source, or an empty text."""
    return str(row["expected"]["batch_error_at_stated_processes"])


def test_kl_settings_without_effect_are_found() -> None:
    """Dead keys, and a reference model that is loaded for nothing."""
    codes = {"dead": "GK310", "ref model paid for": "GK306", "disable_kl=true": "GK310"}
    judged = 0
    for row in known_recipes("easyr1", "verl"):
        note = row["expected"].get("kl_notes", "")
        code = next(
            (code for word, code in codes.items() if word in note and "unset" not in note), None
        )
        # the default says nothing
        if code is not None and "=0.001 (dead)" not in note:
            assert code in codes_of(own_verdict(row).diagnostics), (
                row["id"],
                note,
            )
            judged += 1
    assert judged == 5
