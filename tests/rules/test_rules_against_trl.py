"""The rules and the fixes compared with the real GRPOConfig of the installed TRL, in worlds of 1 to
9 processes.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from grporecipe.files import Json
from grporecipe.linting.linter import lint_recipe
from grporecipe.model.setting import TRL
from grporecipe.reading.load import Options, build_recipe
from grporecipe.rules.check import REGISTRY
from grporecipe.rules.loss import MISMATCH, weight_left
from real_asker import ask
from real_trl import ASK, CHECKED, compare, draw_arguments, draw_setting, fixed

pytestmark = pytest.mark.slow

# `make thorough`: 5,000
ASKED = int(os.environ.get("GRPOSWEEP_ASKED_SETTINGS", "600"))


def test_trl_refuses_what_the_rules_refuse_for_the_same_reason_and_accepts_the_rest_and_every_fix() -> (
    None
):
    """Random settings; TRL stops at its first complaint, the rules name all, so TRL's must be among
    them.
    """
    done = compare(sys.executable, TRL, ASKED, seed=0)
    assert done.versions["trl"] == ".".join(map(str, TRL))
    assert done.differences == []
    assert done.asked == ASKED
    assert min(done.accepted, done.refused) > 0.3 * ASKED
    assert done.fixes > 0.4 * ASKED


def test_transformers_refuses_the_arguments_that_lint_refuses_and_takes_the_rest() -> None:
    """Random arguments of GRPOConfig that no rule on batches reads."""
    random = Random(0)
    configs = [{"num_generations": 8, **draw_arguments(random)} for _ in range(ASKED)]
    _, answers = ask(
        sys.executable, ASK, [{"processes": 1, "config": config} for config in configs]
    )
    found = [lint_recipe(build_recipe(config, Options("trl", TRL, 1))).ok for config in configs]
    different = [
        (config, answer["error"])
        for config, answer, ok in zip(configs, answers, found, strict=True)
        if ok is bool(answer["error"])
    ]
    assert different == []
    assert 0.2 * ASKED < sum(found) < 0.8 * ASKED


def test_the_drawn_settings_break_every_rule_that_trl_checks() -> None:
    """Otherwise agreement would say little; each has settings with a fix that are asked about as
    well.
    """
    from grporecipe.rules.check import check, errors

    random = Random(0)
    settings = [draw_setting(random, TRL) for _ in range(2000)]
    seen = {problem.code for s in settings for problem in errors(check(s))}
    assert seen >= CHECKED
    assert set(REGISTRY) >= CHECKED
    assert sum(len(fixed(s)) for s in settings) > 1000


Train = Callable[..., list[Json]]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Train a random model of 64 words with TRL's own trainer; a function of ours generates in
    place of vLLM.
    """
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    def run(
        rollout: Callable[..., Any], corrects: bool = True, steps: int = 1, **options: Any
    ) -> list[Json]:
        torch.manual_seed(0)
        words = {f"w{n}": n for n in range(62)} | {"<pad>": 62, "<eos>": 63}
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")),
            pad_token="<pad>",
            eos_token="<eos>",
        )
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=64,
                hidden_size=32,
                intermediate_size=32,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_key_value_heads=2,
            )
        )
        args = GRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=64,
            max_steps=steps,
            logging_steps=1,
            report_to="none",
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            **options,
        )
        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            args=args,
            rollout_func=rollout,
            reward_funcs=lambda completions, **_: [float(n % 7) for n, _ in enumerate(completions)],
            train_dataset=Dataset.from_dict({"prompt": ["w1"] * 64}),
        )
        if corrects:
            trainer.use_vllm = True
            trainer._last_loaded_step = -1
            trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
        trainer.train()
        return list(trainer.state.log_history)

    return run


def _log_probabilities(trainer: Any, ids: Any) -> Any:
    import torch

    with torch.no_grad():
        return trainer.model(ids).logits[:, :-1].float().log_softmax(-1)


def _answer(prompts: list[Any], ids: Any, said: Any) -> Json:
    return {
        "prompt_ids": [[1]] * len(prompts),
        "completion_ids": ids[:, 1:].tolist(),
        "logprobs": said.tolist(),
    }


def _noisy(length: int, deviation: float) -> Callable[..., Any]:
    """Random completions, with log-probabilities that differ from the trainer's as those of the
    same policy do.
    """

    def rollout(prompts: list[Any], trainer: Any) -> Json:
        import torch

        ids = torch.cat(
            [
                torch.ones(len(prompts), 1, dtype=torch.long),
                torch.randint(0, 60, (len(prompts), length)),
            ],
            1,
        )
        own = _log_probabilities(trainer, ids).gather(2, ids[:, 1:, None])[..., 0]
        return _answer(prompts, ids, own - torch.randn_like(own) * deviation + deviation**2 / 2)

    return rollout


def _nucleus(length: int, top_p: float) -> Callable[..., Any]:
    """Completions from the nucleus, with log-probabilities among its tokens, as vLLM reports
    them.
    """

    def rollout(prompts: list[Any], trainer: Any) -> Json:
        import torch

        ids = torch.ones(len(prompts), 1, dtype=torch.long)
        said = []
        for _ in range(length):
            probabilities = _log_probabilities(trainer, torch.cat([ids, ids[:, :1]], 1))[
                :, -1
            ].exp()
            order = probabilities.sort(descending=True)
            kept = order.values * (order.values.cumsum(-1) - order.values < top_p)
            left = torch.zeros_like(probabilities).scatter(1, order.indices, kept)
            left = left / left.sum(-1, keepdim=True)
            token = left.multinomial(1)
            said.append(left.gather(1, token).log())
            ids = torch.cat([ids, token], 1)
        return _answer(prompts, ids, torch.cat(said, 1))

    return rollout


RATIO = "sampling/importance_sampling_ratio"


@pytest.mark.parametrize("length", [256, 1500])
def test_trl_leaves_long_completions_the_weight_that_gl211_says(train: Train, length: int) -> None:
    """Of the same policy, so without masking it would be 1 on average. 64 completions: a standard
    error of about 0.1.
    """
    said = train(_noisy(length, MISMATCH), max_completion_length=length)[0][f"{RATIO}/mean"]
    assert said == pytest.approx(weight_left(length, 3.0), abs=0.2)


def test_trl_makes_the_ratio_of_a_truncated_policy_too_small(train: Train) -> None:
    """GL210: the policy has not changed, and without truncation each ratio is 1."""
    by_mode = {
        mode: [
            train(
                _nucleus(12, top_p), max_completion_length=12, vllm_importance_sampling_mode=mode
            )[0]
            for top_p in (1.0, 0.8)
        ]
        for mode in ("token_truncate", "sequence_mask")
    }
    for plain, _ in by_mode.values():
        assert plain[f"{RATIO}/mean"] == pytest.approx(1.0, abs=1e-4)
    tokens, sequences = (truncated for _, truncated in by_mode.values())
    assert 0.75 < tokens[f"{RATIO}/mean"] < 0.9
    assert sequences[f"{RATIO}/mean"] == pytest.approx(tokens[f"{RATIO}/mean"] ** 12, rel=0.3)


def test_trl_clips_sequences_at_the_epsilon_of_gspo_and_none_at_that_of_tokens(
    train: Train,
) -> None:
    """GL208: the same training of four passes over a rollout."""
    clipped = []
    for epsilon in ({"epsilon": 0.2}, {"epsilon": 3e-4, "epsilon_high": 4e-4}):
        log = train(
            _noisy(64, 0.0),
            corrects=False,
            steps=4,
            num_iterations=4,
            importance_sampling_level="sequence",
            loss_type="grpo",
            learning_rate=1e-4,
            max_completion_length=64,
            **epsilon,
        )
        clipped.append([line["clip_ratio/region_mean"] for line in log if "loss" in line])
    assert clipped[0] == [0.0] * 4
    assert min(clipped[1][1:]) > 0.5
