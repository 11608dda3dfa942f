"""The fast way from a point to its experiment is Hydra's own composition, only faster; identities
change with the question.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from grporecipe.errors import UserError
from grporecipe.files import Json
from grporecipe.model.setting import Setting
from grposweep.config.compose import known_keys, resolved, to_experiment, typed
from grposweep.config.fields import KEYS
from grposweep.config.identity import ResolvedConfig, sweep_identity
from grposweep.config.points import Compose, Points
from grposweep.config.to_setting import read_setting
from grposweep.schema import Experiment

SHARED = [
    "search.trials=5",
    "generation.max_completion_length=${task.max_completion_length}",
    "kl.ref_model_sync_steps=32",
]
PARAMETERS: dict[str, st.SearchStrategy[Any]] = {
    "batch": st.sampled_from(["auto", "reuse"]),
    "kl": st.just("sync_ref"),
    "optimizer": st.just("adamw_cosine"),
    "task": st.just("gsm8k"),
    "schedule": st.just("steps"),
    "debug": st.sampled_from(["none", "smoke"]),
    "lr": st.floats(1e-6, 1.0),
    "seed": st.integers(0, 9),
    "kl.beta": st.floats(0, 1),
    "task.max_completion_length": st.integers(1, 99),
    "task.rewards": st.sampled_from([["exact"], ["exact", "math"]]),
    "batch.per_device_train_batch_size": st.sampled_from([4, "auto"]),
    "loss.epsilon_high": st.sampled_from([None, 2.0]),
    "model.lora.r": st.sampled_from([0, 16]),
    "task.system_prompt": st.sampled_from(["a, b=c", "it's", "x: y", "null"]),
}


def written(name: str, value: Any) -> str:
    """A value as a user types it for Hydra."""
    if isinstance(value, bool) or value is None:
        return f"{name}={'null' if value is None else str(value).lower()}"
    if name == "task.system_prompt":
        text = value.replace("'", "\\'")
        return f"{name}='{text}'"
    return f"{name}={value}"


@pytest.mark.slow
@settings(max_examples=2, suppress_health_check=[HealthCheck.too_slow])
@given(point=st.fixed_dictionaries({}, optional=PARAMETERS))
# the length follows the task's
@example(point={"task": "gsm8k", "generation": "transformers"})
@example(point={"optimizer": "adamw_cosine", "lr": 0.5})
# sets keys of other groups
@example(point={"debug": "smoke", "schedule": "steps", "lr": 0.5})
def test_a_point_is_the_experiment_that_hydra_composes(
    point: Json, points: Points, compose: Compose
) -> None:
    """Groups, values and both together, with shared overrides and interpolations."""
    slow = compose([*SHARED, *(written(name, value) for name, value in point.items())])
    assert points.experiment(point) == to_experiment(slow)


@pytest.fixture(scope="module")
def points(compose: Compose) -> Points:
    """The points of a sweep with some shared overrides."""
    return Points(compose, SHARED)


def test_one_point_leaves_no_trace_in_the_next(points: Points) -> None:
    """The base is copied, never patched."""
    points.experiment({"batch": "auto", "lr": 0.5, "task.max_completion_length": 7})
    assert points.experiment({}) == points.base
    assert points.base.lr != 0.5


def test_a_shared_override_survives_a_group_parameter(points: Points) -> None:
    """``kl=none,sync_ref kl.ref_model_sync_steps=32``: the option comes first, the override on
    top.
    """
    assert points.experiment({"kl": "sync_ref"}).kl.ref_model_sync_steps == 32
    assert points.experiment({"kl": "sync_ref"}).kl.sync_ref_model


def test_an_option_of_the_base_is_not_composed_again(compose: Compose) -> None:
    """Each composition takes 0.2 s."""
    asked: list[list[str]] = []

    def noted(overrides: list[str]) -> DictConfig:
        asked.append(overrides)
        return compose(overrides)

    points = Points(noted, [])
    assert points.experiment({"batch": "small", "kl": "auto"}) == points.base
    assert asked == [[]]


def test_options_of_several_groups_share_a_composition(compose: Compose) -> None:
    """Two options of each of two groups are two compositions; an option that sets a key of another
    group is alone.
    """
    asked: list[list[str]] = []

    def composed(words: list[str]) -> DictConfig:
        asked.append(words)
        return compose(
            [*words, *(["batch.num_generations=2"] if words == ["kl=high", "loss=grpo"] else [])]
        )

    points = Points(composed, [])
    points.compose_options({"batch": ["auto", "large"], "lr": [1.0], "kl": ["low", "sync_ref"]})
    points.experiment({"batch": "large", "kl": "low"})
    assert asked == [[], ["batch=auto", "kl=low"], ["batch=large", "kl=sync_ref"]]
    points.raw_values({"kl": ["high"], "loss": ["grpo"]})
    assert asked[3:] == [["kl=high", "loss=grpo"], ["kl=high"], ["loss=grpo"]]


@pytest.mark.parametrize(
    "point",
    [{"batch.num_generatons": 4}, {"nothing": 1}, {"batch.num_generations": 2.5}, {"lr": "fast"}],
)
def test_a_parameter_that_fits_no_key_is_bad_input(point: Json, points: Points) -> None:
    """The message names the parameter."""
    with pytest.raises(UserError, match=next(iter(point))):
        points.experiment(point)


@cache
def identify(*overrides: str) -> str:
    """The id of an experiment over the defaults of the schema, eight prompts per step."""
    written = OmegaConf.from_dotlist(
        ["batch.prompts_per_step=8", "schedule.max_steps=10", *overrides]
    )
    experiment = to_experiment(written)
    return ResolvedConfig.of(experiment).identity


def test_auto_and_the_same_sizes_written_out_are_one_experiment() -> None:
    """The configuration that ran counts, not the command."""
    sizes = ["batch.per_device_train_batch_size=64", "batch.gradient_accumulation_steps=1"]
    fixed = identify(*sizes, "batch.per_device_eval_batch_size=64", "batch.prompts_per_step=null")
    assert identify() == fixed == identify("batch.max_per_device_train_batch_size=64")
    # two micro-steps of 32
    assert identify("batch.max_per_device_train_batch_size=32") != fixed


@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "lr=0.5",
        "cluster.processes=2",
        "cluster.threads=2",
        "batch.num_generations=4",
        "batch.num_iterations=2",
        "task.train_prompts=100",
        "task.eval_prompts=7",
        "model.dtype=bfloat16",
        "model.revision=v2",
        "schedule.max_steps=11",
        "schedule.evaluations=2",
        "trainer.kind=fake",
        "trainer.args.noise=0.5",
        "generation.temperature=0.5",
        "trainer.args.mask_truncated_completions=true",
        "trainer.args.adam_beta2=0.95",
        "kl.beta=0.1",
    ],
)
def test_what_can_change_the_numbers_changes_the_experiments_id(override: str) -> None:
    """Two points are one trial only if all of it agrees."""
    assert identify(override) != identify()


@pytest.mark.parametrize(
    "override",
    [
        "name=x",
        "outputs=/elsewhere",
        "force=true",
        "tracker.kind=wandb",
        "tracker.tags=[a]",
        "cluster.warm=false",
        "cluster.gpus=2",
        "search.seed=3",
        "search.trials=3",
        "search.parallel=4",
        "search.last=2",
        "trainer.keep=all",
        "rules.ignore=[GD]",
    ],
)
def test_where_and_how_it_is_logged_leaves_the_experiments_id(override: str) -> None:
    """A finished trial is recognised after a move."""
    assert identify(override) == identify()


@cache
def question(*overrides: str, choices: tuple[float, ...] = (1e-4, 1e-3)) -> str:
    """The identity of a sweep over ``lr`` with fixed sizes."""
    written = OmegaConf.from_dotlist(["batch.per_device_train_batch_size=8", *overrides])
    return sweep_identity([{"parameter": "lr", "choices": list(choices)}], to_experiment(written))


@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "search.metric=eval_loss",
        "search.direction=minimize",
        "search.last=2",
        "cluster.processes=2",
        "cluster.threads=2",
        "batch.num_generations=4",
        "task.eval_prompts=7",
        "trainer.kind=fake",
    ],
)
def test_another_base_or_objective_is_another_sweep(override: str) -> None:
    """Results of two questions must not be mixed."""
    assert question(override) != question()


@pytest.mark.parametrize(
    "override",
    [
        "name=x",
        "outputs=/elsewhere",
        "force=true",
        "search.trials=99",
        "search.parallel=8",
        "search.sampler=tpe",
        "search.seed=5",
        "cluster.warm=false",
        "cluster.gpus=2",
        "tracker.kind=wandb",
        "trainer.keep=all",
    ],
)
def test_more_trials_on_other_machines_are_the_same_sweep(override: str) -> None:
    """Partition, parallelism, number of trials and tracker are no part of the question."""
    assert question(override) == question()


def test_another_space_is_another_sweep_and_auto_leaves_out_the_processes() -> None:
    """Under auto the sizes follow the machine, so the machine is no part of the question."""
    assert question(choices=(1e-4,)) != question()
    auto = "batch.per_device_train_batch_size=auto"
    assert question(auto, "cluster.processes=2") == question(auto)


def test_every_native_key_is_a_key_of_the_schema_and_a_field_of_the_setting() -> None:
    """A fix must name something that a user can type."""
    assert set(KEYS.values()) <= set(known_keys())
    assert set(KEYS) <= set(Setting.__dataclass_fields__)


def test_what_preparation_counted_wins_over_what_the_configuration_says() -> None:
    """The data as they are, after filtering."""
    experiment = Experiment()
    experiment.task.train_prompts = 1000
    counted = read_setting(experiment, {"train_prompts": 900, "eval_prompts": 90})
    assert (counted.train_prompts, counted.eval_prompts) == (900, 90)
    assert read_setting(experiment).train_prompts == 1000


@cache
def fixed_sizes() -> Experiment:
    """An experiment without ``auto``, so that no size follows from another."""
    names = (
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "per_device_eval_batch_size",
    )
    return to_experiment({"batch": dict.fromkeys(names, 6), "model": {"lora": {"r": 16}}})


@cache
def typed_sizes() -> DictConfig:
    """The same, typed once: that takes most of the time."""
    return typed(OmegaConf.structured(fixed_sizes()))


@pytest.mark.parametrize(("field", "key"), sorted(KEYS.items()))
def test_a_key_reaches_the_field_that_names_it(field: str, key: str) -> None:
    """Setting a key moves its field and nothing that it should not: no two keys are swapped."""
    base = fixed_sizes()
    before = getattr(read_setting(base), field)
    config = typed_sizes().copy()
    unset = "3" if field == "server_command" else 3
    value = (
        not before
        if isinstance(before, bool)
        else unset
        if before is None
        else before + type(before)(1)
    )
    special = {"generation_kwargs": {"k": 3}, "autocast_dtype": "bf16", "kl_enabled": True}
    value = special.get(field, value)
    OmegaConf.update(config, key, value)
    after = read_setting(resolved(config))
    assert getattr(after, field) == {
        "generation_kwargs": '{"k": 3}',
        "autocast_dtype": "bfloat16",
    }.get(field, value)
    assert replace(after, **{field: before}) == read_setting(base)
