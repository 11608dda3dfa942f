"""TRL's and Open-R1's recipes as settings: defaults by release, types as TRL's parser makes them,
renamed keys.
"""

from typing import Any

import pytest

from grporecipe.errors import UserError
from grporecipe.fields.recipes import read_recipe, spell_keys
from grporecipe.files import Json, read_own_yaml
from grporecipe.frameworks.trl import keys
from grporecipe.frameworks.trl.recipes import native_keys
from grporecipe.model.framework import FRAMEWORKS, RELEASE, ParsedRecipe
from grporecipe.model.recipe import Recipe
from grporecipe.model.setting import Setting
from grporecipe.model.values import convert
from grporecipe.reading._detect import detect_framework
from grporecipe.reading.yaml_text import parse_yaml


def reading(
    config: Json, version: str = "1.16", framework: str = "trl", **more: Any
) -> ParsedRecipe:
    """A recipe's reading."""
    return read_recipe(Recipe(framework, keys.parse_version(version), config, **more))


def setting(config: Json, version: str = "1.16", framework: str = "trl") -> Setting:
    """A recipe's setting."""
    return reading(config, version, framework).setting


# as the facts of the releases say: field, release, default
DEFAULTS = {
    ("beta", "0.18", 0.04),
    ("beta", "0.19", 0.0),
    ("loss_type", "0.21", "bnpo"),
    ("loss_type", "0.22", "dapo"),
    ("temperature", "0.17", 0.9),
    ("temperature", "0.18", 1.0),
    ("vllm_mode", "0.29", "server"),
    ("vllm_mode", "1.0", "colocate"),
    ("max_completion_length", "1.9", 256),
    ("max_completion_length", "1.10", 512),
    ("use_bias_correction_kl", "1.9", False),
    ("use_bias_correction_kl", "1.10", True),
    ("use_bias_correction_kl", "0.25", None),
    ("per_device_train_batch_size", "0.14", 1),
    ("per_device_train_batch_size", "0.15", 8),
    ("scale_rewards", "0.16", "group"),
    ("scale_rewards", "1.16", "group"),
    ("vllm_importance_sampling_correction", "0.22", False),
    ("vllm_importance_sampling_correction", "0.23", True),
    ("vllm_importance_sampling_clip_max", "1.0", 3.0),
    ("epochs", "1.16", 3.0),
    ("evaluates", "1.16", False),
    ("max_steps", "1.16", None),
    ("num_generations_eval", "1.16", None),
}


@pytest.mark.parametrize(("field", "version", "default"), sorted(DEFAULTS, key=str))
def test_defaults_are_those_of_the_release(field: str, version: str, default: Any) -> None:
    """A recipe that sets nothing."""
    assert getattr(setting({}, version), field) == default


def test_open_r1_has_the_defaults_of_the_release_it_pins() -> None:
    """A reference model, unless the recipe sets beta."""
    found = setting({}, "0.18.0", "open-r1")
    assert (found.framework.name, found.version, found.beta, found.vllm_mode, found.rewards) == (
        "open-r1",
        (0, 18, 0),
        0.04,
        "server",
        3,
    )


TABLES = read_own_yaml(__file__, "trl_tables.yaml")


def test_what_a_user_set_is_given_with_its_line() -> None:
    """Under the names of the setting."""
    found = reading(
        {"num_train_epochs": 2, "beta": 0.1}, lines={"num_train_epochs": 3, "beta": 4}
    ).setting
    assert found.given == {"framework", "epochs", "beta"}
    assert found.lines == {"epochs": 3, "beta": 4}
    assert found.key("epochs") == "num_train_epochs"


@pytest.mark.parametrize(("config", "field", "value"), TABLES["fields"])
def test_keys_become_fields(config: Json, field: str, value: Any) -> None:
    """Renamed keys, booleans, lists, nested mappings, numbers in strings."""
    assert getattr(setting(config), field) == value


def test_a_value_that_cannot_be_read_is_unknown_and_not_a_default_in_disguise() -> None:
    """Rules that rest on it are not judged."""
    found = reading(
        {"num_generations": "eight", "beta": [], "epsilon": float("nan"), "max_steps": 10**30}
    )
    # max_steps overrides epochs
    assert found.unknown == {"num_generations", "beta", "epsilon", "max_steps", "epochs"}
    assert reading({"num_generations": "$G"}, unresolved={"num_generations": "$G"}).unknown == {
        "num_generations"
    }


def test_warmup_shares_are_steps_before_transformers_5() -> None:
    """0.1 steps of warmup are none."""
    assert setting({"warmup_steps": 0.1}, "0.18").warmup_steps == 0
    assert setting({"warmup_steps": 0.1}).warmup_steps == 0.1


@pytest.mark.parametrize(("config", "paths", "framework"), TABLES["frameworks"])
def test_the_framework_is_detected_by_keys_and_paths(
    config: Json, paths: list[str], framework: str
) -> None:
    """Never by what is installed here."""
    assert detect_framework(config, *paths) == framework


@pytest.mark.parametrize(
    ("version", "key", "default"),
    [
        ("1.5", "vllm_importance_sampling_cap", 3.0),
        ("1.6", "vllm_importance_sampling_clip_max", 3.0),
    ],
)
def test_a_renamed_key_is_read_fixed_and_written_by_release(
    version: str, key: str, default: float
) -> None:
    """Under the name that the release has; its default is known too."""
    field = "vllm_importance_sampling_clip_max"
    release = keys.parse_version(version)
    recipe = Recipe("trl", release, {key: 4.0})
    s = read_recipe(recipe).setting
    assert (getattr(s, field), s.key(field)) == (4.0, key)
    assert field in s.given
    assert spell_keys({field: 5.0}, recipe, s) == {key: 5.0}
    assert native_keys(FRAMEWORKS["trl"], s, release)[key] == 4.0
    assert getattr(setting({}, version), field) == default


def test_a_key_that_a_release_removed_has_a_successor_or_a_reason() -> None:
    """In frameworks/trl/names.yaml; else its field would lose its key."""
    rows = [row.key for row in FRAMEWORKS["trl"].fields if row.type == RELEASE]
    removed = [key for key in rows if (span := keys.span(key)) and span[1] is not None]
    assert [key for key in removed if key not in keys.DROPPED] == []


def test_fixes_speak_the_recipe_s_own_words() -> None:
    """Fields that have no word in a recipe make no fix."""
    recipe = Recipe("trl", (1, 16, 0), {"parallelism_config": {"tp_size": 2, "cp_size": 1}})
    now = read_recipe(recipe).setting
    assert spell_keys({"epochs": 2.0, "processes": 8}, recipe, now) == {
        "num_train_epochs": 2.0,
        "processes": 8,
    }
    assert spell_keys({"tensor_parallel_size": 1}, recipe, now) == {
        "parallelism_config": {"tp_size": 1, "cp_size": 1}
    }
    assert spell_keys({"evaluates": False}, recipe, now) == {"eval_strategy": "no"}
    assert spell_keys({"budget_completions": 6400}, recipe, now) is None
    assert spell_keys({"rewards": 2}, recipe, now) is None


@pytest.mark.parametrize(("value", "kind", "number", "trouble"), TABLES["values"])
def test_values_are_what_argparse_makes_of_them(
    value: Any, kind: str, number: Any, trouble: str
) -> None:
    """Strings are converted, the rest is taken as it is."""
    assert tuple(convert(value, kind)) == (number, trouble)


def test_yaml_is_read_as_trl_reads_it() -> None:
    """YAML 1.1, the last of two keys, the line of each."""
    flat = parse_yaml("a: 3e-06\nb: no\nc: 1_000\nb: yes\nd: &x [1]\ne: *x\n")
    assert flat.config == {"a": "3e-06", "b": True, "c": 1000, "d": [1], "e": [1]}
    assert flat.lines == {"a": 1, "b": 4, "c": 3, "d": 5, "e": 6}
    assert [(twice.key, twice.first_line, twice.line) for twice in flat.duplicates] == [("b", 2, 4)]


@pytest.mark.parametrize(
    "text",
    [
        "[1]: 2\n",
        "a: 2001-13-99\n",
        "? {a: 1}\n: 2\n",
        "a: !!python/object:os.system x\n",
        "a: *b\n",
        "\x00",
        "a: 'x",
    ],
)
def test_broken_yaml_is_bad_input(text: str) -> None:
    """One line, no traceback, nothing run."""
    with pytest.raises(UserError):
        parse_yaml(text)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("1.10", (1, 10, 0)),
        ("v0.18.0", (0, 18, 0)),
        ("1.10.0.dev0", (1, 10, 0)),
        ("2.0", (2, 0, 0)),
    ],
)
def test_versions_are_read(text: str, version: tuple[int, int, int]) -> None:
    """Newer ones than the table count as its newest."""
    assert keys.parse_version(text) == version
    assert "beta" in keys.known(version)
