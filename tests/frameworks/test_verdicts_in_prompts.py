"""EasyR1's and verl's own verdicts on recipes that fit, that are broken in known ways, and that are
drawn at random.

Kept by ``make easyr1`` and ``make verl``, which ask the real code; lint must agree with every line.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from real_dotted import PEERS, errors, lint

HERE = Path(__file__).parent


def lines(name: str) -> list[dict[str, Any]]:
    """The recipes with the framework's verdicts."""
    return [json.loads(line) for line in (HERE / f"{name}_verdicts.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", sorted(PEERS))
def test_lint_agrees_with_the_framework_s_own_code(name: str) -> None:
    """Refused at start or late, or accepted silently although broken."""
    peer = PEERS[name]
    judged = 0
    for line in lines(name):
        codes = errors(lint(name, line["config"]))
        heard = [code for code in codes if code not in peer.silences]
        if line["kind"] in peer.silent:
            assert codes, line
        else:
            assert bool(heard) == bool(line["error"]), (line, codes)
        judged += 1
    assert judged >= 60


@pytest.mark.parametrize("name", sorted(PEERS))
def test_every_way_to_break_a_recipe_is_among_them(name: str) -> None:
    """So that a rule that stops working is noticed here."""
    assert {line["kind"] for line in lines(name)} == {"", "wild", *PEERS[name].mutations}
