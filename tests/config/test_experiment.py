"""From a composed configuration to an experiment: nothing slips in unnoticed, and nothing gets lost
on disk.
"""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from grporecipe.errors import UserError
from grporecipe.model.architecture import Architecture
from grposweep.config.compose import (
    known_keys,
    load_experiment,
    render_experiment,
    to_experiment,
    unknown_key,
    unknown_option,
)
from grposweep.config.points import Compose
from grposweep.config.to_setting import read_setting
from grposweep.config.validate import REGISTERED, check_installed, check_packages, choices
from grposweep.schema import Experiment, Model, Trainer, keys_with, sizes
from support import check_experiment

KNOBS = Path(__file__).with_name("knobs.txt")
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="$"), max_size=12)


def test_a_key_unlike_any_other_points_to_the_list() -> None:
    """No guess is better than a wild one; a near one is taken from the last word too."""
    assert "kl.beta" in unknown_key("kl.betta")
    assert "batch.num_generations" in unknown_key("num_generation")
    assert "'--cfg job' shows all keys" in unknown_key("zzzzzzzz")
    assert "Did you mean" not in unknown_key("zzzzzzzz")


@pytest.mark.slow
@settings(max_examples=5)
@given(
    lr=st.floats(1e-12, 1e3),
    texts=st.lists(TEXTS, min_size=3, max_size=3),
    size=st.one_of(st.integers(1, 512), st.just("auto")),
    delta=st.one_of(st.none(), st.floats(0, 10)),
)
def test_a_rendered_experiment_loads_as_the_same(
    lr: float,
    texts: list[str],
    size: int | str,
    delta: float | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Floats keep every bit, texts every character, auto and null their meaning."""
    experiment = Experiment(lr=lr, name=texts[0])
    experiment.task.system_prompt = texts[1]
    experiment.loss.epsilon_high = delta
    experiment.tracker.tags = texts
    experiment.batch.per_device_train_batch_size = size
    experiment.search.enqueue = [{"lr": lr, "kl": {"beta": 0.1}}]
    path = tmp_path_factory.mktemp("trial") / "config.yaml"
    path.write_text(render_experiment(experiment), encoding="utf-8")
    assert load_experiment(path) == experiment


def test_a_rendered_experiment_is_what_omegaconf_would_write(compose: Compose) -> None:
    """Byte for byte: a trial's record has a hash of it."""
    experiment = to_experiment(compose(["name='on: [yes]'", "lr=1e-3", "verbose=true"]))
    content: Any = OmegaConf.to_container(OmegaConf.structured(experiment))
    del content["verbose"]
    wanted = OmegaConf.to_yaml(OmegaConf.create(content))
    assert render_experiment(experiment) == wanted


def test_the_set_of_keys_that_a_user_may_set_changes_only_on_purpose() -> None:
    """Renaming a key breaks people's sweeps: a change belongs in the changelog, then in
    knobs.txt.
    """
    now = sorted(known_keys())
    frozen = KNOBS.read_text().split()
    show = 'from grposweep.config.compose import *; print(*sorted(known_keys()), sep="\n")'
    accept = f"PYTHONPATH=src python -c '{show}' > {KNOBS}"
    assert now == frozen, (
        f"new: {set(now) - set(frozen)}, gone: {set(frozen) - set(now)}; to accept: {accept}"
    )


def check(*overrides: str) -> None:
    """Check the experiment with these overrides."""
    check_experiment(to_experiment(OmegaConf.from_dotlist([*overrides])))


@pytest.mark.parametrize("key", [*keys_with("choices"), *REGISTERED])
def test_every_word_of_a_list_passes_and_another_is_refused(key: str) -> None:
    """The message names the words that would do."""
    lora = "model.lora.r=16"
    needs = {
        "jsonl": ["task.path=p.jsonl"],
        "4bit": [lora],
        "8bit": [lora],
        "command": ["trainer.command='p {output}'", "trainer.metrics='{output}/log'"],
        "optimizer": ["trainer.sharding=zero2"],
        "all": ["trainer.sharding=zero3"],
        "float16": [lora, "model.mixed_precision=fp16"],
    }
    # which need a command of the user's
    for word in set(choices(key)) - {"script", "open-r1"}:
        check(f"{key}={word}", *needs.get(word, []))
    with pytest.raises(UserError) as caught:
        check(f"{key}=nonsense")
    assert all(word in str(caught.value) for word in (f"{key}=nonsense", *choices(key)))


@pytest.mark.parametrize("key", sorted(sizes()))
def test_a_size_is_a_number_or_auto(key: str) -> None:
    """``automatic`` would otherwise be found out by the trainer."""
    check(f"{key}=auto")
    check(f"{key}=2")
    with pytest.raises(UserError, match=f"{key}=automatic"):
        check(f"{key}=automatic")


@pytest.mark.parametrize("key", keys_with("range"))
def test_a_number_outside_its_range_is_refused(key: str) -> None:
    """Zero threads, trials or evaluations are typing errors, and so is a negative share."""
    check(f"{key}=1")
    with pytest.raises(UserError, match=f"{key}=-1"):
        check(f"{key}=-1")


def test_an_option_that_does_not_exist_names_the_options_and_the_parameter() -> None:
    """``kl=0.04`` meant kl.beta, ``kl=lo`` meant low, ``klm`` is no group."""
    assert "kl.beta" in unknown_option("kl", "0.04", ["high", "low", "none"])
    assert "Did you mean kl=low?" in unknown_option("kl", "lo", ["high", "low", "none"])
    assert "there is no group klm" in unknown_option("klm", "x", [])


@pytest.mark.parametrize("length", ["schedule.max_steps=40", "schedule.epochs=2"])
def test_another_length_takes_the_place_of_the_default_budget(
    compose: Compose, length: str
) -> None:
    """A budget of the user's own is kept, and then there are two lengths, which GS101 refuses."""
    assert to_experiment(compose([])).schedule.budget_completions == 6_400
    assert to_experiment(compose([length])).schedule.budget_completions is None
    assert (
        to_experiment(
            compose([length, "schedule.budget_completions=64"])
        ).schedule.budget_completions
        == 64
    )


SHAPE = vars(Architecture(2, 64, 128, 4, 4, 16, 1000))


@pytest.mark.parametrize(
    ("recorded", "known"),
    [
        (SHAPE, True),
        (None, False),
        ([], False),
        ({}, False),
        ({"layers": 2}, False),
        (SHAPE | {"extra": 1}, False),
    ],
    ids=["whole", "none", "a list", "empty", "too few", "too many"],
)
def test_a_recorded_model_shape_is_taken_only_if_it_is_whole(recorded: object, known: bool) -> None:
    """A file of another version, or a damaged one, leaves the architecture unknown."""
    found = read_setting(Experiment(), {"model": recorded}).architecture
    assert found == (Architecture(**SHAPE) if known else None)


@pytest.mark.parametrize(("positions", "wanted"), [(1024, 800), (800, 800), (799, None), (0, 800)])
def test_vllm_keeps_room_for_no_more_than_the_model_reads(
    positions: int, wanted: int | None
) -> None:
    """Beyond the model's own maximum vLLM does not start; an unknown one (0) is not judged."""
    experiment = Experiment()
    experiment.generation.max_completion_length = 500
    prepared = {"longest_prompt": 300, "model": {"positions": positions}}
    assert read_setting(experiment, prepared).vllm_max_model_length == wanted


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything starts; the fake trainer needs none of it."""
    monkeypatch.setattr("grposweep.config.validate.find_spec", lambda _: None)
    model = Model(quantization="4bit", attn_implementation="flash_attention_2")
    bits, flash = check_packages(Experiment(model=model))
    assert "model.quantization=4bit: bitsandbytes is not installed here" in bits
    assert "pip install flash-attn" in flash
    (problem,) = check_installed(Experiment())
    assert "pip install '.[train]'" in problem
    assert not [*check_installed(Experiment(trainer=Trainer(kind="fake")))]
