"""Recipes as mappings: any mapping has an answer that is valid JSON, and a bad version is
refused.
"""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grporecipe.errors import UserError
from grporecipe.files import Json
from grporecipe.frameworks.easyr1 import recipes as easyr1
from grporecipe.frameworks.trl import recipes as trl
from grporecipe.frameworks.trl.keys import parse_version, table
from grporecipe.frameworks.verl import keys as verl
from grporecipe.linting.linter import EVERYTHING, RuleSelection, lint_recipe, select_rules
from grporecipe.linting.output import render_result
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.reading.load import Options, build_recipe
from support import examples, known_recipes

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["no", "steps", "epoch", "1e-6", "auto", "eight", "nan", "inf", "grpo", "cispo", "server"]
    ),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(
        st.sampled_from(["tp_size", "split_batches", "x"]), st.integers(-1, 4), max_size=2
    ),
)
NAMES = sorted({*trl.SAME, *trl.EXTRA, *trl.RENAMED, *table()["keys"], "env", "num_processes"})
KEYS = st.one_of(st.sampled_from(NAMES), st.text(max_size=8))


IN_PROMPTS = sorted(name for name, known in FRAMEWORKS.items() if known.traits.unit == "prompts")
READ = {
    name: sorted({row.key for row in FRAMEWORKS[name].fields if row.name}) for name in IN_PROMPTS
}
DOTTED_KEYS = {
    "easyr1": [*easyr1.known(), *READ["easyr1"], "worker.actor.kl_loss_coef"],
    "verl": [*verl.known(), *READ["verl"], "+actor_rollout_ref.actor.x", "~trainer.nnodes"],
}
DOTTED_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        [
            "grpo",
            "megatron",
            "kl",
            "full",
            "adaptive",
            "${data.train_batch_size}",
            "1e-6",
            "???",
            "${oc.env:X}",
        ]
    ),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=4), st.integers(-1, 4), max_size=2),
)


def ask(config: Json, options: Options, chosen: RuleSelection = EVERYTHING) -> Json:
    """The answer as a program reads it."""
    found = json.loads(
        render_result(lint_recipe(build_recipe(config, options), chosen)),
        parse_constant=pytest.fail,
    )
    assert found["ok"] == all(problem["severity"] != "error" for problem in found["problems"])
    return dict(found)


def codes(config: Json, options: Options) -> set[str]:
    """The rules that it breaks."""
    return {problem["code"] for problem in ask(config, options)["problems"]}


@pytest.mark.parametrize(
    ("framework", "version", "words"),
    [
        ("trl", "x", "two or three numbers"),
        ("trl", "0.9", r"0\.14\.0"),
        ("easyr1", "0.1", "release"),
        ("easyr1", "x", "version"),
        ("easyr1", "", "version"),
        ("easyr1", "0.2.1.2.3", "version"),
    ],
)
def test_a_version_that_cannot_be_judged_is_bad_input(
    framework: str, version: str, words: str
) -> None:
    """With what a version is, or the first one that is known."""
    with pytest.raises(UserError, match=words):
        build_recipe({}, Options(framework, own_version=version))


@pytest.mark.slow
@settings(max_examples=examples(400))
@given(
    st.dictionaries(KEYS, VALUES, max_size=9),
    st.sampled_from(["trl", "open-r1"]),
    st.sampled_from(["0.14", "0.16", "0.17", "0.18", "0.21", "1.0", "1.10", "1.16", "2.0"]),
    st.one_of(st.none(), st.integers(1, 9)),
    st.one_of(st.none(), st.integers(1, 5000)),
)
# a name without ASCII letters
@example({"À": ""}, "trl", "1.16", None, None)
def test_no_mapping_crashes_the_linter(
    config: Json, framework: str, version: str, processes: int | None, prompts: int | None
) -> None:
    """For every recipe the answer is one valid JSON object."""
    ask(config, Options(framework, processes=processes, train_prompts=prompts, own_version=version))


@pytest.mark.slow
@settings(max_examples=examples(90))
@given(st.data())
def test_no_mapping_with_dotted_keys_crashes_the_linter(data: st.DataObject) -> None:
    """Dotted or nested, known keys or not."""
    framework = data.draw(st.sampled_from(IN_PROMPTS))
    names = st.one_of(
        st.sampled_from(READ[framework]),
        st.sampled_from(DOTTED_KEYS[framework]),
        st.text(max_size=8),
    )
    processes = st.one_of(st.none(), st.integers(1, 9))
    prompts = st.one_of(st.none(), st.integers(1, 5000))
    config = data.draw(st.dictionaries(names, DOTTED_VALUES, max_size=9))
    ask(
        config, Options(framework, processes=data.draw(processes), train_prompts=data.draw(prompts))
    )


def test_nested_keys_show_their_framework_and_are_judged_by_the_stated_release() -> None:
    """A key that a release does not have is an error in that one only."""
    config = {"worker": {"actor": {"kl_loss_coef": 0.1}, "rollout": {"n": 5}}}
    assert ask(config, Options())["framework"] == "easyr1"
    assert "GV301" in codes(config, Options())
    assert "GV301" not in codes(config, Options(own_version="0.2"))


def test_real_recipes_agree_with_the_real_class() -> None:
    """Batch families at TRL 1.10, against the error that GRPOConfig itself gave for each number of
    processes.
    """
    asked = [
        (row["config"], int(processes), error == "")
        for row in known_recipes("trl", "open-r1")
        for processes, error in row["expected"].get("trl_batch_errors", {}).items()
    ]
    options = {n: Options("trl", parse_version("1.10"), n) for n in range(1, 9)}
    chosen = select_rules(["GB,GE"])
    found = [
        lint_recipe(build_recipe(config, options[n]), chosen, with_fixes=False).ok
        for config, n, _ in asked
    ]
    assert len(asked) == 1688
    assert found == [ok for _, _, ok in asked]


def test_an_error_says_where_its_values_come_from() -> None:
    """Stated in the recipe, or a documented default; a warning rests on the same, and needs no
    proof.
    """
    config = {"num_generations": 8, "per_device_train_batch_size": 3}
    (found,) = [
        each
        for each in ask(config, Options("trl", processes=1))["problems"]
        if each["code"] == "GB101"
    ]
    assert found["sources"]["num_generations"] == "stated"
    assert found["sources"]["gradient_accumulation_steps"] in ("read", "documented")


def test_no_advice_is_given_on_a_batch_that_is_refused() -> None:
    """The prompts of a step mean nothing until its size is corrected."""
    config = {
        "num_generations": 8,
        "per_device_train_batch_size": 1,
        "model_name_or_path": "Qwen/Qwen2.5-7B",
    }
    found = codes(config, Options("trl", processes=1))
    assert "GB101" in found
    assert not found & {"GA201", "GA203"}
