"""The example of each rule: it breaks the rule and no other one, its correction does not, and it is
short.
"""

import pytest

from grporecipe.linting.explain_rules import RULES, RuleExample, find_example
from grposweep.schema import keys_of
from support import load_script

MAKER = load_script("make_examples")
# lines
LONGEST = 8
# Errors that come with an example, because two rules are about the same value.
ALSO = {"GB410": {"GB404"}, "GL108": {"GV104"}, "GT104": {"GV104"}}
# Rules whose finding is milder than the rule in the usual case; their docstrings say when.
MILDER = {"GB413": "warning", "GV103": "note"}


def example(code: str) -> RuleExample:
    """Return what is shown of the example of a rule, which must have one."""
    found = find_example(code)
    assert found is not None, f"add an example of {code} to src/grporecipe/rules/examples.yaml"
    return found


@pytest.mark.parametrize("code", sorted(RULES))
def test_an_example_breaks_its_rule_alone(code: str) -> None:
    """No other rule has an error."""
    judged = MAKER.build_example(code)
    assert f"{code} {MILDER.get(code, RULES[code].severity)}" in judged.shown.finding
    assert judged.others == ALSO.get(code, set())


@pytest.mark.parametrize("code", sorted(RULES))
def test_a_corrected_example_keeps_its_rule(code: str) -> None:
    """Corrected by the linter, or by the change in the file; no error is new."""
    assert example(code).change
    assert MAKER.build_example(code).is_corrected


def test_examples_are_shown_as_they_are_judged() -> None:
    """If this fails, run ``make docs`` or ``python docs/make_examples.py``."""
    assert MAKER.TARGET.read_text(encoding="utf-8") == MAKER.render_examples()


@pytest.mark.parametrize("code", sorted(RULES))
def test_an_example_is_short_and_has_a_reason(code: str) -> None:
    """A page with all rules stays readable."""
    assert len(example(code).source.splitlines()) <= LONGEST
    assert len(example(code).reason) > 10


def test_the_keys_of_sweeps_exist() -> None:
    """The linter does not know them, so a key that is renamed would stay in an example."""
    sweeps = [example(code) for code in RULES if example(code).about.startswith("Keys of a sweep")]
    keys = {line.partition("=")[0] for sweep in sweeps for line in sweep.source.splitlines()}
    assert len(keys) > 20
    assert keys <= {path for path, _ in keys_of()}
