"""One point of gpu_grid.py, in a process of its own: real GRPO steps of TRL, and how much GPU
memory they took.

Everything is imported first; then the point comes as a JSON line on standard input, and the last
line on standard output says what was seen. So other processes may wait, ready, while this one
measures, and CUDA is not touched before.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grporecipe.memory.catalog import known_models
from grporecipe.model.setting import Setting

GIB = 2**30
# tokens
PROMPT = 128
GENERATIONS = 8
# optimizer steps: in the second one the optimizer's states are there while activations are at their
# largest
STEPS = 2
ACCUMULATION = 2


@dataclass(frozen=True)
class Point:
    """One run: a model of ``memory/models.json``, completions per micro-step, tokens per
    completion, and four switches.

    Without ``generates`` the rollouts are random tokens, as if another GPU had sampled them:
    seconds instead of half a minute.
    """

    model: str
    batch: int
    completion: int
    checkpoints: bool
    lora: bool
    kl: bool
    generates: bool = False

    @property
    def setting(self) -> Setting:
        """The same for the estimator; two micro-steps per optimizer step."""
        return Setting(
            processes=1,
            num_generations=GENERATIONS,
            per_device_train_batch_size=self.batch,
            gradient_accumulation_steps=ACCUMULATION,
            architecture=known_models()[self.model],
            weights_dtype="bfloat16",
            gradient_checkpointing=self.checkpoints,
            lora=self.lora,
            beta=0.04 if self.kl else 0.0,
            max_prompt_length=PROMPT,
            max_completion_length=self.completion,
            optim="adamw_torch",
            evaluates=False,
        )


def measure(point: Point, weights: Path) -> dict[str, Any]:
    """GiB reserved and allocated at most, or that memory ran out; random weights of the model's
    shape are made once.
    """
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from grposweep.train._tiny import build_tokenizer

    make_weights(point.model, weights)
    has_gpu = torch.cuda.is_available()
    rows = Dataset.from_list([{"prompt": "1" * PROMPT}] * (GENERATIONS * point.batch))
    arguments = GRPOConfig(
        output_dir=str(weights / "out"),
        model_init_kwargs={"dtype": "bfloat16"},
        bf16=has_gpu,
        use_cpu=not has_gpu,
        max_steps=STEPS,
        beta=point.setting.beta,
        per_device_train_batch_size=point.batch,
        gradient_accumulation_steps=ACCUMULATION,
        num_generations=GENERATIONS,
        gradient_checkpointing=point.checkpoints,
        max_completion_length=point.completion,
        generation_kwargs={"min_new_tokens": point.completion},
        optim="adamw_torch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    try:
        trainer = GRPOTrainer(
            str(weights),
            lambda completions, **_: [float(n % 2) for n in range(len(completions))],
            arguments,
            rows,
            processing_class=build_tokenizer(),
            peft_config=_lora() if point.lora else None,
            rollout_func=None if point.generates else _random_rollouts(point),
        )
        trainer.train()
    except torch.OutOfMemoryError:
        return {"reserved_gib": None, "allocated_gib": None, "ran_out": True}
    reserved, allocated = torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()
    return {"reserved_gib": reserved / GIB, "allocated_gib": allocated / GIB, "ran_out": False}


def _random_rollouts(point: Point) -> Callable[[list[Any], Any], dict[str, Any]]:
    """Return TRL's rollout_func that gives each prompt a completion of full length."""
    import torch

    def roll(prompts: list[Any], _trainer: Any) -> dict[str, Any]:
        texts = torch.randint(3, 12, (len(prompts), PROMPT + point.completion)).tolist()
        return {
            "prompt_ids": [text[:PROMPT] for text in texts],
            "completion_ids": [text[PROMPT:] for text in texts],
            "logprobs": None,
        }

    return roll


def make_weights(model: str, folder: Path) -> None:
    """A checkpoint of random weights, made on the GPU where there is one; nothing of it stays
    there.
    """
    import torch
    from transformers import AutoModelForCausalLM

    if (folder / "config.json").is_file():
        return
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from architectures import build_config

    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        made = AutoModelForCausalLM.from_config(
            build_config(known_models()[model]), dtype=torch.bfloat16
        )
    made.save_pretrained(folder / "made")
    del made
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    for file in (
        folder / "made"
        # at once and whole: a process that dies meanwhile leaves nothing half made
    ).iterdir():
        if file.name != "config.json":
            file.replace(folder / file.name)
    (folder / "made" / "config.json").replace(folder / "config.json")


def _lora() -> Any:
    from peft import LoraConfig

    return LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules="all-linear")


def main() -> None:
    """Be ready, wait for the point, measure it."""
    import torch
    import transformers
    import trl  # noqa: F401  # to have it imported

    transformers.logging.set_verbosity_error()
    asked = json.loads(sys.stdin.readline() or "null")
    if asked is None:
        # no point is left
        return
    if not torch.cuda.is_available():
        raise SystemExit("no GPU is visible to torch")
    print(json.dumps(measure(Point(**asked["point"]), Path(asked["weights"]))))


if __name__ == "__main__":
    main()
