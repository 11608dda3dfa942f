"""The memory estimator against a GPU: real GRPO steps of TRL over a grid of points, some of which run out of memory.

``python benchmarks/memory/gpu_grid.py`` on a machine with one GPU of at least 24 GiB; nothing is downloaded: weights are
random, of the real shape. Each point runs in a process of its own, two optimizer steps after one of warm-up. Prints
``torch.cuda.max_memory_reserved`` beside the estimate, and writes grid.jsonl beside this file. ``--list`` only shows the
points with their estimates, which needs no GPU.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grposweep.memory.estimate import CONTEXT, GIB, estimate
from grposweep.memory.recipes import MODELS
from grposweep.setting import Setting

HERE = Path(__file__).resolve().parent
PROMPT = 128  # tokens
GENERATIONS, STEPS = 8, 3
TOLERANCE = 0.15  # of what was reserved


@dataclass(frozen=True)
class Point:
    """One run: a model of ``MODELS``, completions a micro-step, tokens a completion, and three switches."""

    model: str
    batch: int
    completion: int
    checkpoints: bool
    lora: bool
    kl: bool

    @property
    def setting(self) -> Setting:
        """The same for the estimator; two micro-steps an optimizer step."""
        return Setting(
            processes=1, num_generations=GENERATIONS, per_device_train_batch_size=self.batch, gradient_accumulation_steps=2,
            architecture=MODELS[self.model], dtype="bfloat16", gradient_checkpointing=self.checkpoints, lora=self.lora,
            beta=0.04 if self.kl else 0.0, max_prompt_length=PROMPT, max_completion_length=self.completion,
            optim="adamw_torch", evaluates=False,
        )  # fmt: skip

    @property
    def estimate_gib(self) -> float:
        """What it needs, without CUDA's context, which torch does not count."""
        memory = estimate(self.setting)
        assert memory is not None  # the model is known
        return (memory.peak - CONTEXT) / GIB


@dataclass(frozen=True)
class Outcome:
    """What a GPU said: GiB reserved at most, or that it ran out of memory; anything else is an error of the run."""

    point: Point
    reserved_gib: float | None
    ran_out: bool = False
    error: str = ""

    def is_close(self) -> bool:
        """Whether the estimate is within the tolerance; of a run that ran out there is nothing to compare."""
        return self.reserved_gib is None or abs(self.point.estimate_gib / self.reserved_gib - 1) <= TOLERANCE

    def was_called_safe(self, gpu_gib: float) -> bool:
        """Whether the estimator would have let a point start that ran out of memory: there must be none."""
        return self.ran_out and self.point.estimate_gib + CONTEXT / GIB <= gpu_gib


def grid() -> list[Point]:
    """The points: each switch on its own and together, three model sizes, and some that no GPU of today holds."""
    return [*_small(), *_medium(), *_large()]


def _small() -> Iterator[Point]:
    for checkpoints in (False, True):
        for lora in (False, True):
            for kl in (False, True):
                yield Point("qwen2.5-0.5b", 8, 256, checkpoints, lora, kl)
    for batch, completion in ((8, 1024), (16, 512), (32, 512), (8, 2048), (64, 2048)):
        yield Point("qwen2.5-0.5b", batch, completion, batch * completion > 16_384, False, False)
    yield Point("qwen2.5-0.5b", 256, 4096, False, False, True)  # runs out


def _medium() -> Iterator[Point]:
    for checkpoints, lora, kl in ((False, False, False), (True, False, True), (True, True, True), (False, True, False)):
        yield Point("qwen2.5-1.5b", 8, 512, checkpoints, lora, kl)
        yield Point("qwen3-0.6b", 16, 256, checkpoints, lora, kl)
    yield Point("llama-3.2-1b", 8, 1024, True, False, False)
    yield Point("qwen2.5-1.5b", 128, 4096, False, False, True)  # runs out


def _large() -> Iterator[Point]:
    yield Point("llama-3.2-3b", 8, 512, True, True, False)
    yield Point("qwen3-4b", 8, 512, True, True, True)
    yield Point("qwen2.5-7b", 8, 256, True, True, False)
    yield Point("qwen2.5-7b", 8, 1024, True, False, True)  # full fine-tuning: 61 GiB before the first activation
    yield Point("qwen2.5-7b", 64, 4096, False, False, True)  # runs out


def measure(point: Point) -> dict[str, Any]:
    """In a process of its own: real GRPO steps; GiB reserved at most, or that memory ran out."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    from grposweep.train.tiny import build_tokenizer

    sys.path.insert(0, str(HERE))
    from architectures import build_config

    tokenizer = build_tokenizer()
    config = build_config(MODELS[point.model])
    rows = Dataset.from_list([{"prompt": "1" * PROMPT}] * 64)
    try:
        with tempfile.TemporaryDirectory() as folder:
            AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
            arguments = GRPOConfig(
                output_dir=folder, model_init_kwargs={"dtype": "bfloat16"}, bf16=torch.cuda.is_available(),
                max_steps=STEPS, beta=point.setting.beta,
                per_device_train_batch_size=point.batch, gradient_accumulation_steps=2, num_generations=GENERATIONS,
                gradient_checkpointing=point.checkpoints, max_completion_length=point.completion, optim="adamw_torch",
                generation_kwargs={"min_new_tokens": point.completion}, save_strategy="no", report_to=[], disable_tqdm=True,
            )  # fmt: skip
            trainer = GRPOTrainer(
                folder, lambda completions, **_: [float(n % 2) for n in range(len(completions))], arguments, rows,
                processing_class=tokenizer, peft_config=_lora() if point.lora else None,
            )  # fmt: skip
            trainer.train()
    except torch.OutOfMemoryError:
        return {"reserved_gib": None, "ran_out": True}
    return {"reserved_gib": torch.cuda.max_memory_reserved() / GIB, "ran_out": False}


def _lora() -> Any:
    from peft import LoraConfig

    return LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules="all-linear")


def run(point: Point) -> Outcome:
    """One point in a fresh process."""
    command = [sys.executable, str(Path(__file__).resolve()), "--one", json.dumps(asdict(point))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return read_outcome(point, done.stdout, done.stderr)


def read_outcome(point: Point, out: str, log: str) -> Outcome:
    """What a process said in its last line; CUDA may also run out where Python cannot catch it."""
    lines = out.strip().splitlines()
    try:
        return Outcome(point, **json.loads(lines[-1]))
    except (IndexError, ValueError, TypeError):
        ran_out = "out of memory" in log.lower()
        return Outcome(point, None, ran_out, "" if ran_out else (log.strip().splitlines() or ["no output"])[-1])


def row(outcome: Outcome, gpu_gib: float) -> str:
    """One line of the table."""
    point = outcome.point
    ways = ", ".join(
        name for name, on in (("checkpointing", point.checkpoints), ("LoRA", point.lora), ("KL", point.kl)) if on
    )
    if outcome.error:
        seen = f"error: {outcome.error}"
    elif outcome.reserved_gib is None:
        seen = "out of memory" + (", CALLED SAFE" if outcome.was_called_safe(gpu_gib) else "")
    else:
        seen = f"{outcome.reserved_gib:.2f} | {point.estimate_gib / outcome.reserved_gib - 1:+.1%}"
    return (
        f"| {point.model} | {point.batch} | {point.completion} | {ways or 'none'} | {point.estimate_gib:.2f} | {seen} |"
    )


def main() -> int:
    """The whole grid; 0 where every estimate holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="only the points and their estimates")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(Point(**json.loads(asked.one)))))
        return 0
    print(
        "| model | micro-batch | completion | with | estimate GiB | reserved GiB | error |\n|---|---|---|---|---|---|---|"
    )
    if asked.list:
        print("\n".join(row(Outcome(point, None, error="not run"), 0.0) for point in grid()))
        return 0
    import torch

    if not torch.cuda.is_available():
        print("no GPU is visible: --list shows the points", file=sys.stderr)
        return 2
    name, gpu_gib = torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory / GIB
    outcomes = []
    with (HERE / "grid.jsonl").open("w") as file:
        for point in grid():
            outcomes.append(run(point))
            print(row(outcomes[-1], gpu_gib), flush=True)
            file.write(json.dumps({"gpu": name, "estimate_gib": point.estimate_gib, **asdict(outcomes[-1])}) + "\n")
    close, unsafe = sum(o.is_close() for o in outcomes), sum(o.was_called_safe(gpu_gib) for o in outcomes)
    print(
        f"\n{name}, {gpu_gib:.1f} GiB: {close} of {len(outcomes)} within {TOLERANCE:.0%}; {unsafe} called safe that ran out"
    )
    return int(close < len(outcomes) or unsafe > 0 or any(o.error for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
