"""Parameters of a script: what would reach nothing is refused, and keys that it declares itself are
swept.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grposweep.command.checks import check_reach
from grposweep.command.trial_recipe import write_program
from grposweep.config.points import Points
from grposweep.config.to_setting import read_setting
from grposweep.schema import Trainer
from grposweep.search.parse import parse_space
from grposweep.search.validity import Validator, check_space
from support import check_experiment, read, sampled


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("model.lora.r", "trainer.args.lora_r"),
        ("model.path", "trainer.args.model_name_or_path"),
        ("model.dtype", "trainer.args.dtype"),
        ("task.path", "trainer.args.dataset_name"),
        ("task", "trainer.args.dataset_name"),
        ("trainer.sharding", "accelerate launch --config_file FILE"),
        ("generation.use_vllm", "trainer.args.use_vllm"),
    ],
)
def test_a_parameter_that_reaches_nothing_is_refused_and_the_nearest_that_does_is_named(
    key: str, nearest: str
) -> None:
    """All trials of such a sweep would train the same."""
    (problem,) = check_reach(Trainer(kind="command", command="bash launch.sh"), [key])
    assert re.match(f"{key}: trainer=command does not read it.*{nearest}", problem)
    assert not [*check_reach(Trainer(kind="trl"), [key])]


def test_what_reaches_the_script_passes() -> None:
    """Numbers of the recipe, the trainer's own keys, and where trials run."""
    read = ["lr", "batch", "kl.beta", "trainer.args.rounds", "trainer", "cluster.nodes", "search"]
    assert not [*check_reach(Trainer(kind="command", command="bash launch.sh"), read)]


@pytest.mark.slow
def test_an_option_of_the_script_is_swept_over_an_interval(
    points: Callable[..., Points], here: Path
) -> None:
    """Options are appended to its command; fields of its configuration enter with the values."""
    space, _ = parse_space(
        ["trainer.args.penalty=interval(0.1,0.9)", "trainer.args.lora_like=8,16"], {}
    )
    made = points()
    check_space(space, made)
    experiment = made.experiment({"trainer.args.penalty": 0.5, "trainer.args.lora_like": 8})
    write_program(here, experiment, read_setting(experiment), {"trainer.args.penalty"})
    changed = read(here / "changed.json")
    assert (changed["options"], changed["keys"]) == ({"penalty": 0.5}, {"lora_like": 8})
    assert "--penalty 0.5" in (here / "program.sh").read_text()


@pytest.mark.slow
def test_an_option_of_the_script_is_swept_over_lists(points: Callable[..., Points]) -> None:
    """Each list is one value, and its text is the label."""
    space, _ = parse_space(["trainer.args.note=[1,2],[3]"], {})
    made = points()
    check_space(space, made)
    assert Validator(space, made).is_valid({"trainer.args.note": "[3]"})


@pytest.mark.parametrize(
    ("override", "message"),
    sampled(
        [
            ("trainer.args.learning_rate=0.1", "Set lr instead"),
            ("trainer.args.output_dir=x", "Set outputs instead"),
            ("trainer.args.logging_steps=many", "takes a number"),
        ],
        3,
    ),
)
def test_a_key_of_the_script_that_cannot_be_set_is_refused(
    points: Callable[..., Points], override: str, message: str
) -> None:
    """It is ours to set, or its value has another type."""
    with pytest.raises(UserError, match=message):
        check_experiment(points(override).base)


@pytest.mark.slow
def test_an_option_that_the_script_does_not_know_is_asked_about_once(
    points: Callable[..., Points], here: Path
) -> None:
    """An answer may take 20 s, and its other values would be refused for the same reason."""
    refuse = (
        "open('../asked', 'a').write('x')\nimport sys\nif '--bogus' in sys.argv: "
        "sys.exit('unrecognized: --bogus')\n"
    )
    (here / "train.py").write_text(refuse + (here / "train.py").read_text())
    space, _ = parse_space(["trainer.args.bogus=1,2,3"], {})
    with pytest.raises(UserError, match="unrecognized: --bogus"):
        check_space(space, points())
    # without the option, and with its first value
    assert (here.parent / "asked").read_text() == "xx"
