"""Unsloth's recipes have TRL's keys, and defaults, keys and corrections of Unsloth's own."""

from itertools import product
from pathlib import Path

import pytest

from grporecipe.fields.reading import release_defaults
from grporecipe.fields.recipes import read_recipe
from grporecipe.files import Json
from grporecipe.linting.apply_fixes import fix_file
from grporecipe.linting.linter import LintResult, lint_recipe, select_rules
from grporecipe.linting.output import describe_version
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.reading.load import Options, build_recipe
from verdicts import lint_text

SCRIPT = """
from unsloth import FastLanguageModel
from trl import GRPOConfig, GRPOTrainer

model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Qwen3-4B", max_seq_length=2048, fast_inference=True)
model = FastLanguageModel.get_peft_model(model, r=16)
args = GRPOConfig(
    learning_rate=5e-6,
    per_device_train_batch_size=1,
    gradient_accumulation_steps=1,
    num_generations=6,
    max_steps=50,
)
GRPOTrainer(model=model, args=args, reward_funcs=[len], train_dataset=None).train()
"""


def linted(config: Json, processes: int | None = 1) -> LintResult:
    """The answer to keys."""
    return lint_recipe(build_recipe(config, Options("unsloth", processes=processes)))


def found(result: LintResult, severity: str) -> set[str]:
    """The codes of this severity."""
    return {finding.code for finding in result.diagnostics if finding.severity == severity}


def test_a_python_file_that_imports_it_is_its_recipe(tmp_path: Path) -> None:
    """TRL would refuse one completion per step for groups of six; Unsloth takes six."""
    result = lint_text(tmp_path, SCRIPT, "train.py", processes=1)
    assert (result.recipe.framework, found(result, "error")) == ("unsloth", set())
    assert "GB701" in found(result, "warning")
    assert (result.plan["completions_per_rollout"], result.setting.per_device_train_batch_size) == (
        6,
        6,
    )
    assert (result.setting.beta, result.setting.loss_type, result.setting.warmup_steps) == (
        0.001,
        "bnpo",
        0.1,
    )


def test_a_size_that_is_not_known_is_not_corrected(tmp_path: Path) -> None:
    """The default was judged in its place; the version is that of the TRL beneath."""
    script = SCRIPT.replace("size=1", "size=size_of_mine()")
    result = lint_text(tmp_path, script, "train.py", processes=1)
    assert not {"GB701", "GB101"} & found(result, "warning") | found(result, "error")
    assert describe_version(result.recipe).startswith("Unsloth on TRL 0.24.0 (")


def test_defaults_are_unsloths() -> None:
    """As the generated configuration has them (rl.py, replacements)."""
    default = release_defaults(FRAMEWORKS["unsloth"], (0, 24, 0))
    wanted = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "learning_rate": 5e-5,
        "optim": "adamw_8bit",
        "weight_decay": 0.001,
        "seed": 3407,
        "beta": 0.001,
        "loss_type": "bnpo",
        "vllm_mode": "colocate",
    }
    assert {name: default[name] for name in wanted} == wanted


def test_the_batch_is_corrected_if_unsloth_corrects_it() -> None:
    """rl.py: ``if (ga * world_size * per_device_train_batch_size) % num_generations != 0``, without
    sizes of a rollout.
    """
    for size, accumulation, world, group in product((1, 2, 3, 8), (1, 2, 3), (1, 2), (2, 4, 6)):
        wanted = group if (accumulation * world * size) % group != 0 else size
        config = {
            "per_device_train_batch_size": size,
            "gradient_accumulation_steps": accumulation,
            "num_generations": group,
        }
        result = linted(config, world)
        assert result.setting.per_device_train_batch_size == wanted
        assert ("GB701" in found(result, "warning")) == (wanted != size)
        assert found(result, "error") == set()
        kept = linted({**config, "steps_per_generation": accumulation}, world)
        assert ("GB101" in found(kept, "error")) == ((accumulation * world * size) % group != 0)


@pytest.mark.parametrize(
    ("config", "code", "severity"),
    [
        ({"temperature": 12.0}, "GL702", "error"),
        ({"temperature": 0.0}, "GL104", "error"),
        ({"unsloth_grpo_mini_batch": 64}, "GB702", "error"),
        ({"loss_type": "dapo", "epsilon_high": 0.3}, "GL701", "warning"),
        ({"loss_type": "dr_grpo", "scale_rewards": True}, "GL701", "warning"),
        ({"learnign_rate": 1e-5}, "GV102", "warning"),
        ({"use_bias_correction_kl": True}, "GV101", "warning"),
    ],
)
def test_its_own_checks_are_reported(config: Json, code: str, severity: str) -> None:
    """Keys that TRL does not take are dropped with a line of its log."""
    result = linted({"num_generations": 4, **config})
    assert code in found(result, severity)
    assert found(result, "error") == ({code} if severity == "error" else set())


def test_its_own_keys_are_taken_and_tell_it(tmp_path: Path) -> None:
    """A YAML with one of them is Unsloth's."""
    keys = "num_generations: 4\nunsloth_num_chunks: -1\nmax_seq_length: 2048\n"
    path = tmp_path / "recipe.yaml"
    text = f"{keys}per_device_train_batch_size: 3\n"
    result = lint_text(tmp_path, text, path.name, processes=1)
    assert (result.recipe.framework, found(result, "error")) == ("unsloth", set())
    fix_file(path, Options(processes=1), select_rules(), unsafe=True)
    assert "per_device_train_batch_size: 4\n" in path.read_text()


def test_dapo_and_dr_grpo_are_what_unsloth_makes_of_them() -> None:
    """rl.py, check_dr_grpo."""
    dapo = read_recipe(
        build_recipe({"loss_type": "DAPO", "num_generations": 4}, Options("unsloth"))
    ).setting
    assert (dapo.epsilon_high, dapo.mask_truncated_completions) == (0.28, True)
    assert linted({"loss_type": "dr_grpo", "scale_rewards": True}).setting.scale_rewards == "none"
