"""The plan's total against real training: TRL's trainer really runs, and its global_step is the
plan's number.
"""

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from grporecipe.model import planning
from grporecipe.model.setting import Setting
from grporecipe.rules.check import check, errors

pytestmark = pytest.mark.slow
# `make thorough`: 36
RUNS = int(os.environ.get("GRPOSWEEP_PLANNED_RUNS", "12"))


@dataclass(frozen=True)
class Tiny:
    """A random model and its tokenizer, on disk."""

    path: Path
    tokenizer: Any


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """One layer, 16 wide: what it says does not matter here."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from grposweep.train._tiny import VOCABULARY, build_tokenizer

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(VOCABULARY),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
        tie_word_embeddings=True,
    )
    folder = tmp_path_factory.mktemp("model")
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return Tiny(folder, build_tokenizer())


def random_setting(choose: random.Random) -> Setting:
    """A valid setting of one process: short runs of every shape, straddling steps and fractional
    epochs included.
    """
    while True:
        setting = Setting(
            processes=1,
            num_generations=choose.choice([2, 3, 4]),
            per_device_train_batch_size=choose.choice([2, 3, 4, 6, 8]),
            gradient_accumulation_steps=choose.choice([1, 2, 3, 4]),
            steps_per_generation=choose.choice([None, 1, 2, 3]),
            num_iterations=choose.choice([1, 1, 2, 3]),
            evaluates=False,
            train_prompts=choose.randint(4, 24),
            max_steps=choose.choice([None, None, 1, 5]),
            epochs=choose.choice([1.0, 1.5, 2.0]),
        )
        # two lengths: TRL lets max_steps win
        blamed = {problem.code for problem in errors(check(setting))} - {"GS101"}
        if not blamed and (planning.total_steps(setting) or 99) <= 24:
            return setting


def train(setting: Setting, tiny: Tiny, folder: Path) -> int:
    """The optimizer steps that TRL really takes."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        gradient_checkpointing=False,
        max_completion_length=2,
        num_generations=setting.num_generations,
        per_device_train_batch_size=setting.per_device_train_batch_size,
        gradient_accumulation_steps=setting.gradient_accumulation_steps,
        steps_per_generation=setting.steps_per_generation,
        num_iterations=setting.num_iterations,
        max_steps=setting.max_steps or -1,
        num_train_epochs=setting.epochs or 0.0,
    )
    prompts = [f"{10 + n}+{11 + n}=" for n in range(setting.train_prompts or 0)]
    trainer = GRPOTrainer(
        model=str(tiny.path),
        args=config,
        processing_class=tiny.tokenizer,
        reward_funcs=lambda completions, **_: [float(len(text)) for text in completions],
        train_dataset=Dataset.from_dict({"prompt": prompts}),
    )
    trainer.train()
    return int(trainer.state.global_step)


def test_the_total_is_what_trl_really_trains(tiny: Tiny, tmp_path: Path) -> None:
    """Random configurations, all equal."""
    choose = random.Random(20)
    settings = [random_setting(choose) for _ in range(RUNS)]
    planned = [planning.total_steps(setting) for setting in settings]
    trained = [
        train(setting, tiny, tmp_path / str(number)) for number, setting in enumerate(settings)
    ]
    assert trained == planned
    assert len(set(planned)) > 5
