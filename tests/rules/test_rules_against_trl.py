"""The rules and the fixes compared with the real GRPOConfig of the installed TRL, in worlds of 1 to 9 processes."""

import os
import sys
from random import Random

import pytest

from grporecipe.check import REGISTRY
from grporecipe.frameworks.parsing.load import Options, build_recipe
from grporecipe.linting.linter import lint_recipe
from grporecipe.setting import TRL
from real_trl import CHECKED, ask_configs, compare, draw_arguments, draw_setting, fixed

ASKED = int(os.environ.get("GRPOSWEEP_ASKED_SETTINGS", "1500"))  # `make thorough`: 5,000


@pytest.mark.slow
def test_trl_refuses_what_the_rules_refuse_for_the_same_reason_and_accepts_the_rest_and_every_fix() -> None:
    """Random settings; TRL stops at its first complaint, the rules name all, so TRL's must be among them."""
    done = compare(sys.executable, TRL, ASKED, seed=0)
    assert done.versions["trl"] == ".".join(map(str, TRL))
    assert done.differences == []
    assert done.asked == ASKED
    assert min(done.accepted, done.refused) > 0.3 * ASKED
    assert done.fixes > 0.4 * ASKED


@pytest.mark.slow
def test_transformers_refuses_the_arguments_that_lint_refuses_and_takes_the_rest() -> None:
    """Random arguments of GRPOConfig that no rule on batches reads."""
    random = Random(0)
    configs = [{"num_generations": 8, **draw_arguments(random)} for _ in range(ASKED)]
    _, answers = ask_configs(sys.executable, [{"processes": 1, "config": config} for config in configs])
    found = [lint_recipe(build_recipe(config, Options("trl", TRL, 1))).ok for config in configs]
    different = [(config, answer["error"]) for config, answer, ok in zip(configs, answers, found, strict=True)
                 if ok is bool(answer["error"])]  # fmt: skip
    assert different == []
    assert 0.2 * ASKED < sum(found) < 0.8 * ASKED


def test_the_drawn_settings_break_every_rule_that_trl_checks() -> None:
    """Otherwise agreement would say little; each has settings with a fix that are asked about as well."""
    from grporecipe.check import check, errors

    random = Random(0)
    settings = [draw_setting(random, TRL) for _ in range(2000)]
    seen = {problem.code for s in settings for problem in errors(check(s))}
    assert seen >= CHECKED
    assert set(REGISTRY) >= CHECKED
    assert sum(len(fixed(s)) for s in settings) > 1000
