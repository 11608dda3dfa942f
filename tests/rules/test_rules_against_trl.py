"""The rules and the fixes compared with the real GRPOConfig of the installed TRL, in worlds of 1 to 9 processes."""

import os
import sys

import pytest

from grporecipe.check import REGISTRY
from grporecipe.setting import TRL
from real_trl import CHECKED, compare, draw_setting, fixed

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


def test_the_drawn_settings_break_every_rule_that_trl_checks() -> None:
    """Otherwise agreement would say little; each has settings with a fix that are asked about as well."""
    from random import Random

    from grporecipe.check import check, errors

    random = Random(0)
    settings = [draw_setting(random, TRL) for _ in range(2000)]
    seen = {problem.code for s in settings for problem in errors(check(s))}
    assert seen >= CHECKED
    assert set(REGISTRY) >= CHECKED
    assert sum(len(fixed(s)) for s in settings) > 1000
