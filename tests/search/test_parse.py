"""From what people type, and what sweep files hold, to parameters."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

from grporecipe.errors import UserError
from grposweep.config.compose import override_text, register_schema
from grposweep.process import PROJECT
from grposweep.search.parse import check_numbers, parse_space, parse_values, split_tokens
from grposweep.search.space import Choice, Interval, Space
from refused import says


def space_of(*arguments: str, **params: Any) -> Space:
    """The space of a command line and a sweep file."""
    return parse_space(list(arguments), params)[0]


def parameter(argument: str) -> Choice | Interval:
    """The domain of a single parameter."""
    (only,) = space_of(argument).parameters
    return only.domain


@pytest.mark.parametrize(
    ("token", "parts"),
    [
        ("lr=1e-6,5e-6,batch=8,16", ["lr=1e-6,5e-6", "batch=8,16"]),
        ("lr=1e-6,5e-6", ["lr=1e-6,5e-6"]),
        (
            "lr=choice(1,2),kl=none,low,kl.beta=0.1",
            ["lr=choice(1,2)", "kl=none,low", "kl.beta=0.1"],
        ),
        ("lr=tag(log,interval(1e-5,1e-3)),seed=1", ["lr=tag(log,interval(1e-5,1e-3))", "seed=1"]),
        ("task.system_prompt='a,b=c',lr=1", ["task.system_prompt='a,b=c'", "lr=1"]),
        ('task.system_prompt="it\'s, x=1",lr=1', ['task.system_prompt="it\'s, x=1"', "lr=1"]),
        (r"task.system_prompt='it\'s, x=1',lr=1", [r"task.system_prompt='it\'s, x=1'", "lr=1"]),
        ("search.enqueue=[{lr:1,a=b:2}],seed=1", ["search.enqueue=[{lr:1,a=b:2}]", "seed=1"]),
        ("a={x:1,y:2},b/c@d=e", ["a={x:1,y:2}", "b/c@d=e"]),
        ("-m", ["-m"]),
        ("lr=", ["lr="]),
    ],
)
def test_two_parameters_in_one_token_become_two(token: str, parts: list[str]) -> None:
    """Commas inside quotes and brackets belong to the value."""
    assert split_tokens([token]) == parts
    assert split_tokens(parts) == parts


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("lr=1e-3,1e-4", (1e-3, 1e-4)),
        ("lr=choice(1,2.5)", (1, 2.5)),
        ("n=range(2,8,3)", (2, 5)),
        ("n=range(1,2,0.5)", (1.0, 1.5)),
        ("kl=none,low", ("none", "low")),
        ("flag=true,false", (True, False)),
        ("loss.epsilon_high=null,2.0", (None, 2.0)),
        ("p='a,b','c'", ("a,b", "c")),
        ("task.rewards=[exact],[exact,math]", (["exact"], ["exact", "math"])),
        ("x={a:1},{a:2}", ({"a": 1}, {"a": 2})),
        ("+lr=1,2", (1, 2)),
    ],
)
def test_a_list_of_values_is_a_choice(argument: str, values: tuple[object, ...]) -> None:
    """The configuration gets the values, tables and studies get labels that they can hold."""
    domain = parameter(argument)
    assert isinstance(domain, Choice)
    assert domain.values == values
    assert all(
        label is None or isinstance(label, str | int | float | bool) for label in domain.labels
    )
    assert tuple(domain.value(label) for label in domain.labels) == values


def test_values_of_different_types_are_several() -> None:
    """1, 1.0, true and '1' are not the same value."""
    domain = parameter("x=1,1.0,true,'1'")
    assert isinstance(domain, Choice)
    assert [(type(v).__name__, v) for v in map(domain.value, domain.labels)] == [
        ("int", 1),
        ("float", 1.0),
        ("bool", True),
        ("str", "1"),
    ]


@pytest.mark.parametrize(
    ("argument", "interval"),
    [
        ("lr=interval(0,1)", Interval(0.0, 1.0)),
        ("lr=tag(log,interval(1e-5,1e-3))", Interval(1e-5, 1e-3, log=True)),
        ("n=int(interval(2,16))", Interval(2, 16, integer=True)),
        ("n=tag(log,int(interval(2,16)))", Interval(2, 16, log=True, integer=True)),
        ("n=tag(int,interval(2,16))", Interval(2, 16, integer=True)),
    ],
)
def test_an_interval_is_continuous_unless_it_is_cast(argument: str, interval: Interval) -> None:
    """As in Hydra: interval(0,1) are floats."""
    assert parameter(argument) == interval
    assert space_of(argument).is_finite is False


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("lr=interval(1,1)", "lr"),
        ("lr=interval(2,1)", "lr ... interval(2 ... smaller end first"),
        ("n=range(3,3)", "n"),
        ("lr=tag(log,interval(0,1))", "lr ... logarithm ... above 0"),
        ("lr=(1,2", "lr"),
        ("lr=interval(1)", "lr"),
        ("lr=nope(1,2)", "lr"),
        ("lr=choice()", "lr=choice()"),
    ],
)
def test_what_spans_nothing_or_parses_as_nothing_is_bad_input(argument: str, words: str) -> None:
    """One message with the argument, no traceback."""
    with pytest.raises(UserError, match=says(words)) as caught:
        space_of(argument)
    assert "\n" not in str(caught.value)


@pytest.fixture
def loader() -> Iterator[ConfigLoader]:
    """Hydra's own loader over conf/, which knows the options of every group."""
    register_schema()
    with initialize_config_dir(config_dir=str(PROJECT / "conf"), version_base="1.3"):
        yield GlobalHydra.instance().config_loader()


def test_a_glob_is_all_options_that_match(loader: ConfigLoader) -> None:
    """``loss=glob(*grpo)`` follows the folder; one that matches nothing is told."""
    space, _ = parse_space(["loss=glob(*grpo)", "kl=glob(*,exclude=[high,s*])"], {}, loader)
    assert space.parameters[0].domain == Choice(*(2 * (("dr_grpo", "grpo"),)))
    assert space.parameters[1].domain == Choice(*(2 * (("auto", "low", "none"),)))
    for empty in ("batch=glob(nothing*)", "seed=glob(*)"):
        with pytest.raises(UserError, match="no value is left"):
            parse_space([empty], {}, loader)


def test_the_command_line_wins_over_the_sweep_file() -> None:
    """A parameter of the file is replaced, or fixed; the rest of the file stays."""
    params = {"lr": "1e-3,1e-4", "batch": "small,medium", "seed": 3}
    space, fixed = parse_space(["lr=0.1,0.2,0.3", "batch=small"], params)
    assert [(d.name, d.domain.values) for d in space.parameters] == [("lr", (0.1, 0.2, 0.3))]  # type: ignore[union-attr]
    assert sorted(fixed) == ["batch=small", "seed=3"]


@pytest.mark.parametrize("prefix", ["+", "++"])
def test_a_forced_override_also_wins_over_the_sweep_file(prefix: str) -> None:
    """``++kl.beta=0.1`` is the same parameter, said louder."""
    params = {"kl.beta": "0.001,0.04"}
    assert parse_space([f"{prefix}kl.beta=0.1"], params) == (Space(), [f"{prefix}kl.beta=0.1"])


def test_a_sweep_file_holds_plain_values_and_conditions() -> None:
    """A single value is no parameter; a condition names another parameter and its labels."""
    params = {
        "kl.beta": {"when": {"kl": ["low"]}, "space": "interval(0.001,0.1)"},
        "kl": "none,low",
        "seed": 7,
    }
    space, fixed = parse_space([], params)
    assert [d.name for d in space.parameters] == ["kl", "kl.beta"]
    assert space.parameters[1].when == {"kl": ("low",)}
    assert fixed == ["seed=7"]


@pytest.mark.parametrize(
    "content",
    [
        {"when": {"kl": ["low"]}},
        {"space": "1,2", "if": {"kl": "low"}},
        {"when": {"nothing": ["low"]}, "space": "1,2"},
        {"when": {"kl.beta": [1]}, "space": "1,2"},
        "interval(2,1)",
        "1,(",
    ],
)
def test_a_malformed_entry_of_a_sweep_file_is_bad_input(content: object) -> None:
    """Missing space, unknown words, a condition on something that is not searched, or on itself."""
    with pytest.raises(UserError, match=r"kl\.beta"):
        parse_space([], {"kl": "none,low", "kl.beta": content})


VALUES = st.lists(
    st.sampled_from(["1", "2.5", "x", "'a b'", "null"]), min_size=2, max_size=4, unique=True
)


@settings(max_examples=40)
@given(
    parameters=st.dictionaries(
        st.sampled_from(["lr", "seed", "kl.beta", "batch"]), VALUES, min_size=1
    )
)
def test_the_grid_goes_in_the_order_of_hydras_own_sweeper(parameters: dict[str, list[str]]) -> None:
    """Who replaces Hydra's grid by ours finds job 3 where it was."""
    arguments = [f"{name}={','.join(values)}" for name, values in parameters.items()]
    parser = OverridesParser.create()
    hydra = BasicSweeper.split_arguments(parser.parse_overrides(arguments), max_batch_size=None)
    ours = [
        [f"{name}={label}" for name, label in point.items()]
        for point in space_of(*arguments).finite_points()
    ]
    assert ours == [
        [text.replace("'", "").replace("=null", "=None") for text in job] for job in hydra[0]
    ]


TEXTS = [
    "",
    "a\\b",
    r"\d+",
    "C:\\x\\",
    "a\nb",
    "\\\n",
    "é",
    "²",
    'say "it\'s"',
    '\\"',
    "{a: [b, c}",
    "${x}",
    "a,b=c",
    " 1e-3",
    "null",
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_arrives_through_hydras_grammar_as_it_is(text: str) -> None:
    """Backslashes, line ends and letters outside of ASCII among it; also in a list and in a
    dictionary.
    """
    for value in (text, [text, text], {"key": text, "other": [text]}):
        assert parse_values([f"p={override_text(value)}"]) == {"p": value}


def test_ordinary_text_stays_unquoted() -> None:
    """Commands of trials look as they were typed."""
    typed = {
        "Qwen/Qwen3-0.6B": "Qwen/Qwen3-0.6B",
        "a b": '"a b"',
        "1e-3": '"1e-3"',
        'say "x"': r'"say \"x\""',
    }
    assert {text: override_text(text) for text in typed} == typed


def test_all_numbers_that_are_not_finite_are_named_at_once() -> None:
    """Those of the command line, of the sweep file and of a single run; quoted they are text."""
    odd = ["lr=1e-4,nan", "kl.beta=inf", "seed=choice(nan)", "b=[1.0,-inf]"]
    with pytest.raises(UserError) as refused:
        parse_space([*odd, "a='inf','nan'"], {"loss.epsilon_high": "interval(0,inf)"})
    named = re.findall(r"^- (.*): \S+ is no finite", str(refused.value), re.MULTILINE)
    assert named == [*odd, "loss.epsilon_high=interval(0,inf)"]
    with pytest.raises(UserError, match="2 keys cannot work"):
        check_numbers(["lr=nan", "kl.beta=inf"])
