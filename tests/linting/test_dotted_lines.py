"""Recipes of EasyR1 and verl as JSON lines: the answer is always one valid JSON object."""

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grporecipe.frameworks.easyr1 import recipes as easyr1
from grporecipe.frameworks.verl import keys as verl
from grporecipe.linting.command import lint_lines
from grporecipe.linting.linter import select_rules
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.reading.load import Options
from support import examples

IN_PROMPTS = sorted(name for name, known in FRAMEWORKS.items() if known.traits.unit == "prompts")
READ = {name: sorted({row.key for row in FRAMEWORKS[name].fields if row.name}) for name in IN_PROMPTS}
KEYS = {"easyr1": [*easyr1.known(), *READ["easyr1"], "worker.actor.kl_loss_coef"],
        "verl": [*verl.known(), *READ["verl"], "+actor_rollout_ref.actor.x", "~trainer.nnodes"]}  # fmt: skip
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 70), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from(["grpo", "megatron", "kl", "full", "adaptive", "${data.train_batch_size}", "1e-6", "???", "${oc.env:X}"]),
    st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=4), st.integers(-1, 4), max_size=2),
)  # fmt: skip


def ask(record: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The exit code and the answer."""
    out = io.StringIO()
    code = lint_lines([json.dumps(record).encode()], out, Options(), select_rules())
    return code, json.loads(out.getvalue(), parse_constant=pytest.fail)


@settings(max_examples=examples(90), deadline=None, derandomize=True)
@given(st.data())
def test_no_mapping_crashes_the_linter(data: st.DataObject) -> None:
    """Dotted or nested, known keys or not."""
    framework = data.draw(st.sampled_from(IN_PROMPTS))
    names = st.one_of(st.sampled_from(READ[framework]), st.sampled_from(KEYS[framework]), st.text(max_size=8))
    config = data.draw(st.dictionaries(names, VALUES, max_size=9))
    record = {
        "framework": framework, "config": config, "processes": data.draw(st.one_of(st.none(), st.integers(1, 9))),
        "dataset_size": data.draw(st.one_of(st.none(), st.integers(1, 5000))),
    }  # fmt: skip
    code, answer = ask(record)
    assert "error" not in answer
    assert code == (0 if answer["ok"] else 1)


def test_a_line_may_be_nested_and_name_its_release() -> None:
    """The keys show the framework if the line does not name it."""
    config = {"worker": {"actor": {"kl_loss_coef": 0.1}, "rollout": {"n": 5}}}
    _, new = ask({"config": config})
    _, old = ask({"config": config, "framework_version": "0.2"})
    assert new["framework"] == old["framework"] == "easyr1"
    assert "GV301" in {problem["code"] for problem in new["problems"]}
    assert "GV301" not in {problem["code"] for problem in old["problems"]}
