"""Recipes as JSON lines: one answer per line, in order, also for invalid lines."""

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grporecipe.frameworks.trl import recipes as trl
from grporecipe.frameworks.trl.keys import parse_version, table
from grporecipe.linting.command import lint_lines
from grporecipe.linting.linter import EVERYTHING, RuleSelection, select_rules
from grporecipe.reading.load import Options
from support import examples, known_recipes


def ask(
    *records: Any,
    options: Options = Options(),  # noqa: B008  # frozen
    chosen: RuleSelection = EVERYTHING,
) -> tuple[int, list[dict[str, Any]]]:
    """The exit code and the answers; a str is a line as it is."""
    lines = [record.encode() if isinstance(record, str) else json.dumps(record).encode() for record in records]
    out = io.StringIO()
    code = lint_lines(lines, out, options, chosen)
    return code, [json.loads(line, parse_constant=pytest.fail) for line in out.getvalue().splitlines()]


def test_every_line_has_an_answer_in_order() -> None:
    """Blank lines are none."""
    code, answers = ask({"id": 1, "config": {}}, "  ", {"id": "b", "config": {}, "processes": 3}, {"config": {}})
    assert [answer["id"] for answer in answers] == [1, "b", None]
    assert [answer["processes"] for answer in answers] == [None, 3, None]
    assert code == 0


BAD = {
    "not JSON": ("{", "not JSON"),
    "a list": ("[1]", "not an object"),
    "no config": ({"id": 1}, '"config" is missing'),
    "a list for a config": ({"id": 1, "config": []}, '"config" is missing'),
    "an unknown framework": ({"id": 1, "framework": "rllm", "config": {}}, "grposweep reads "),
    "a framework that is a list": ({"id": 1, "framework": ["trl"], "config": {}}, "grposweep reads"),
    "a bad version": ({"id": 1, "trl_version": "x", "config": {}}, "two or three numbers"),
    "an old version": ({"id": 1, "trl_version": "0.9", "config": {}}, "0.14.0"),
    "TRL's version of verl": (
        {"id": 1, "framework": "verl", "trl_version": "0.18", "config": {}},
        "versions of its own",
    ),
    "no processes": ({"id": 1, "processes": 0, "config": {}}, "at least 1"),
    "processes in words": ({"id": 1, "processes": "eight", "config": {}}, "whole number"),
    "deep nesting": ("[" * 100_000, "not JSON"),
    **{f"GPU {gpu}": ({"id": 1, "config": {}, "gpu": gpu}, '"gpu"') for gpu in ("Voodoo 2", -1, True, [80])},
    **{
        f"release {version}": ({"id": 1, "framework": "easyr1", "framework_version": version, "config": {}}, words)
        for version, words in (("0.1", "release"), ("x", "version"), ("", "version"), ("0.2.1.2.3", "version"))
    },
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_answered_with_its_error(name: str) -> None:
    """With its id if known, ok false and exit code 2. The next line is judged."""
    line, words = BAD[name]
    code, (bad, good) = ask(line, {"id": 2, "config": {"per_device_train_batch_size": 8}})
    assert code == 2
    assert bad["ok"] is False
    assert words in bad["error"]
    assert bad["id"] == (1 if isinstance(line, dict) else None)
    assert good["id"] == 2


def test_options_of_the_command_are_the_defaults_of_a_line() -> None:
    """Version, processes and dataset size come from the options if the line has none."""
    options = Options("open-r1", parse_version("0.17"), 4, 1000)
    _, (a, b) = ask({"config": {}}, {"config": {}, "framework": "trl", "processes": 2}, options=options)
    assert (a["framework"], a["processes"], a["plan"]["rollouts_per_epoch"]) == ("open-r1", 4, 250)
    assert (b["framework"], b["processes"]) == ("trl", 2)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 70), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from(["no", "steps", "epoch", "1e-6", "auto", "eight", "nan", "inf", "grpo", "cispo", "server"]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(["tp_size", "split_batches", "x"]), st.integers(-1, 4), max_size=2),
)  # fmt: skip
NAMES = sorted({*trl.SAME, *trl.EXTRA, *trl.RENAMED, *table()["keys"], "env", "num_processes"})
KEYS = st.one_of(st.sampled_from(NAMES), st.text(max_size=8))


@settings(max_examples=examples(400), deadline=None)
@given(
    st.dictionaries(KEYS, VALUES, max_size=9),
    st.sampled_from(["trl", "open-r1"]),
    st.sampled_from(["0.14", "0.16", "0.17", "0.18", "0.21", "1.0", "1.10", "1.16", "2.0"]),
    st.one_of(st.none(), st.integers(1, 9)),
    st.one_of(st.none(), st.integers(1, 5000)),
)
def test_no_mapping_crashes_the_linter(
    config: dict[str, Any], framework: str, version: str, processes: int | None, prompts: int | None
) -> None:
    """For every recipe the answer is one valid JSON object."""
    record = {"id": 0, "framework": framework, "trl_version": version, "processes": processes, "dataset_size": prompts}
    code, (answer,) = ask({**record, "config": config})
    assert "error" not in answer
    assert code == (0 if answer["ok"] else 1)


def test_real_recipes_agree_with_the_real_class() -> None:
    """Batch families at TRL 1.10, as one stream, against the error that GRPOConfig itself gave for each number of processes."""
    asked = [
        ({"id": row["id"], "framework": "trl", "processes": int(processes), "config": row["config"]}, error == "")
        for row in known_recipes("trl", "open-r1")
        for processes, error in row["expected"].get("trl_batch_errors", {}).items()
    ]
    options = Options("trl", parse_version("1.10"))
    code, answers = ask(*(record for record, _ in asked), options=options, chosen=select_rules(["GB,GE"]))
    assert code == 1
    assert len(answers) == 1688
    assert [answer["id"] for answer, (_, ok) in zip(answers, asked, strict=True) if answer["ok"] != ok] == []


def test_an_error_says_where_its_values_come_from() -> None:
    """Stated in the recipe, or a documented default; a warning rests on the same, and needs no proof."""
    line = b'{"config": {"num_generations": 8, "per_device_train_batch_size": 3}, "framework": "trl", "processes": 1}'
    out = io.StringIO()
    lint_lines([line], out, Options(), select_rules())
    (found,) = [each for each in json.loads(out.getvalue())["problems"] if each["code"] == "GB101"]
    assert found["sources"]["num_generations"] == "stated"
    assert found["sources"]["gradient_accumulation_steps"] in ("read", "documented")


def test_no_advice_is_given_on_a_batch_that_is_refused() -> None:
    """The prompts of a step mean nothing until its size is corrected."""
    config = {"num_generations": 8, "per_device_train_batch_size": 1, "model_name_or_path": "Qwen/Qwen2.5-7B"}
    out = io.StringIO()
    lint_lines(
        [json.dumps({"config": config, "framework": "trl", "processes": 1}).encode()], out, Options(), select_rules()
    )
    codes = {each["code"] for each in json.loads(out.getvalue())["problems"]}
    assert "GB101" in codes
    assert not codes & {"GA201", "GA203"}
