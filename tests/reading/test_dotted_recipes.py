"""EasyR1's and verl's recipes: YAML, command lines and JSON make the same setting, in TRL's
words.
"""

from pathlib import Path
from typing import Any

import pytest

from grporecipe.errors import UserError
from grporecipe.fields.recipes import read_recipe
from grporecipe.files import Json, read_own_yaml
from grporecipe.linting.linter import lint_recipe, plan_numbers
from grporecipe.model import planning
from grporecipe.model.setting import Setting
from grporecipe.model.values import resolve
from grporecipe.reading._detect import detect_framework
from grporecipe.reading.load import Options, build_recipe, load_recipe
from grporecipe.reading.yaml_text import parse_nested, parse_override

ACTOR = "actor_rollout_ref.actor"
NESTED = """\
data:
  rollout_batch_size: 32
worker:
  actor: {global_batch_size: 8, micro_batch_size_per_device_for_update: 1}  # small
  rollout:
    n: 5
algorithm:
  kl_coef: 1e-2
"""
DOTTED = {
    "data.rollout_batch_size": 32,
    "worker.actor.global_batch_size": 8,
    "worker.rollout.n": 5,
    "algorithm.kl_coef": 0.01,
    "worker.actor.micro_batch_size_per_device_for_update": 1,
}


def setting(
    config: Json, framework: str = "easyr1", version: str | None = None, **options: Any
) -> Setting:
    """The setting behind dotted keys."""
    return read_recipe(
        build_recipe(config, Options(framework, own_version=version, **options))
    ).setting


def script(folder: Path, text: str) -> Any:
    """The recipe in a script."""
    path = folder / "run.sh"
    path.write_text(text)
    return load_recipe(path, Options())


def test_a_nested_yaml_is_its_dotted_keys(tmp_path: Path) -> None:
    """With the line of each; ``1e-2`` is a number to OmegaConf."""
    path = tmp_path / "easy.yaml"
    path.write_text(NESTED)
    recipe = load_recipe(path, Options())
    assert recipe.framework == "easyr1"
    assert recipe.config == DOTTED
    assert (recipe.lines["worker.rollout.n"], recipe.lines["worker.actor.global_batch_size"]) == (
        6,
        4,
    )
    assert read_recipe(recipe).setting == setting(DOTTED)


def test_a_command_line_is_its_overrides_over_the_file_it_names(tmp_path: Path) -> None:
    """Variables and quotes are bash's; the last of two overrides counts, and both lines are
    named.
    """
    (tmp_path / "base.yaml").write_text(NESTED)
    recipe = script(
        tmp_path,
        """\
N=7
python3 -m verl.trainer.main config=base.yaml worker.rollout.n=6 \\
    worker.actor.optim.lr=5e-6 \\
    worker.rollout.n=$N trainer.experiment_name="a b"
""",
    )
    assert recipe.config == {
        **DOTTED,
        "worker.rollout.n": 7,
        "worker.actor.optim.lr": 5e-6,
        "trainer.experiment_name": "a b",
    }
    assert recipe.base == "base.yaml"
    assert [(twice.first_line, twice.line) for twice in recipe.duplicates] == [(2, 4)]


def test_easyr1_s_own_example_is_known(tmp_path: Path) -> None:
    """Most scripts build on it; other files must be found."""
    recipe = script(
        tmp_path,
        "python3 -m verl.trainer.main config=examples/config.yaml trainer.n_gpus_per_node=4\n",
    )
    assert read_recipe(recipe).setting.prompts_per_rollout == 512
    with pytest.raises(UserError, match="no such file"):
        script(
            tmp_path,
            "python3 -m verl.trainer.main config=examples/mine.yaml trainer.n_gpus_per_node=4\n",
        )


def test_a_comment_inside_a_command_ends_it(tmp_path: Path) -> None:
    """The overrides behind it are lost, which is reported, and the setting is without them."""
    recipe = script(
        tmp_path,
        f"""\
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    actor_rollout_ref.rollout.name=vllm {ACTOR}.ppo_micro_batch_size_per_gpu=1 \\
    # eight completions
    actor_rollout_ref.rollout.n=8 \\
    data.train_batch_size=256
""",
    )
    assert read_recipe(recipe).setting.num_generations == 1
    finding = next(
        finding for finding in lint_recipe(recipe).diagnostics if finding.code == "GV107"
    )
    assert finding.line == 4


def test_the_framework_is_detected_by_keys_and_programs() -> None:
    """EasyR1 and verl are imported by the same name, so the import does not show which one it
    is.
    """
    assert detect_framework({"actor_rollout_ref.rollout.n": 8}) == "verl"
    assert detect_framework({"+actor_rollout_ref.x": 8}) == "verl"
    assert detect_framework({"worker": {"rollout": {"n": 5}}}) == "easyr1"
    assert detect_framework({"data.train_batch_size": 8}, "verl.trainer.main_ppo") == "verl"
    assert detect_framework({"data.seed": 8}, "verl.trainer.main") == "easyr1"


MEANINGS = read_own_yaml(__file__, "dotted.yaml")


@pytest.mark.parametrize("row", MEANINGS.values(), ids=MEANINGS)
def test_keys_become_fields_and_numbers_of_the_plan(row: Json) -> None:
    """As the framework trains with them."""
    s = setting(row["config"], row["framework"], **row.get("options", {}))
    fields, plan = row.get("fields", {}), row.get("plan", {})
    assert {name: getattr(s, name) for name in fields} == fields
    assert {name: getattr(planning, name)(s) for name in plan} == plan


def test_values_known_only_to_a_running_shell_are_not_judged(tmp_path: Path) -> None:
    """The plan has no number that depends on it, and no rule that does is judged."""
    recipe = script(
        tmp_path,
        "python3 -m verl.trainer.main_ppo trainer.nnodes=$NODES actor_rollout_ref.rollout.n=8\n",
    )
    reading = read_recipe(recipe)
    assert reading.setting.processes is None
    assert "processes" in reading.unknown
    assert plan_numbers(reading.setting, reading.unknown)["completions_per_step"] is None


def test_words_of_a_command_line_are_overrides_or_nothing() -> None:
    """Values as YAML has them, with OmegaConf's numbers."""
    assert parse_override("a.b=1e-6") == ("", "a.b", 1e-6)
    assert parse_override("+a.b=[x,1]") == ("+", "a.b", ["x", 1])
    assert parse_override("~a.b") == ("~", "a.b", None)
    assert parse_override("a='x y'") == ("", "a", "x y")
    assert parse_override("--flag") is None
    assert parse_override("word") is None


def test_references_are_followed_and_do_not_loop() -> None:
    """As far as Hydra's own configuration uses them."""
    assert resolve({"a": "${b.c}", "b.c": 3}, "a") == 3
    assert resolve({"a": "${oc.select:b.c, 7}"}, "a") == 7
    assert resolve({"a": "${b}", "b": "${a}"}, "a") is None
    assert resolve({"a": "x${b}"}, "a") is None


def test_a_key_set_twice_in_a_file_is_noticed() -> None:
    """Also where one of the two is nested and the other not."""
    assert [twice.key for twice in parse_nested("a:\n  b: 1\n  b: 2\n").duplicates] == ["a.b"]
