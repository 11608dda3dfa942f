"""Screen a task: sample the untrained model with TRL's own generation and rewards, and write down each prompt's samples.

Prompts are sampled in portions of a fixed order, each with random numbers of its own. So an interrupted screen continues with
the next portion, and ends with the same samples.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import accelerate.utils
import torch
import transformers
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from grposweep.storage.screens import PromptSamples, ScreenedData, ScreenRequest, read_samples, screening_order
from grposweep.train import process as watchdog
from grposweep.train.attempt import Attempt, Outcome
from grposweep.train.callback import broadcast_any
from grposweep.train.models import Loaded, build_quantization, load_model
from grposweep.train.prepare import check_packages, check_prompts, check_tools, hash_model
from grposweep.train.rewards import TRIED, Reward, load_rewards, load_tools, text_of, try_rewards
from grposweep.train.tasks import hash_rows, load_data
from grposweep.train.trl import calm, locate_model, sampling_group, seed_generation, use_devices
from grposweep.train.trl_config import build_config
from grposweep.train.vllm import wait_for_server

SEED = 20  # of a screen's samples, independent of the trials' seeds
PORTION = 64  # prompts between two looks at whether to stop
EXAMPLE = 400  # characters of a completion that are kept


@dataclass
class Sample:
    """One completion with what each reward function gave it."""

    prompt: int
    text: str
    answer: str
    length: int
    truncated: bool
    rewards: list[float | None] = field(default_factory=list)

    @property
    def mentions(self) -> bool:
        """Return whether the completion contains the answer, as a word of its own."""
        wanted = self.answer.strip()
        return bool(wanted) and re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", self.text) is not None


class Screener(GRPOTrainer):  # type: ignore[misc]  # trl is not typed
    """GRPOTrainer whose evaluation generates and scores, and computes no loss. The rewards keep the samples."""

    beat: Callable[[], None]  # a sign of life

    def prediction_step(self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None) -> Any:  # noqa: ARG002 - transformers' arguments
        """Generate and score one batch."""
        self._prepare_inputs(inputs)
        self.beat()
        return None, None, None

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:  # noqa: ARG002 - transformers' arguments
        """Drop TRL's metrics of a portion, which would pile up."""
        self._metrics["eval"].clear()


def screen_prompts(attempt: Attempt) -> Outcome:
    """Sample what is not sampled yet, until all is done or the attempt is asked to stop."""
    calm()
    use_devices(attempt)
    experiment, request = attempt.experiment, ScreenRequest.read(attempt.folder)
    assert request is not None  # run_attempt has seen it
    check_packages(experiment)
    folder = locate_model(attempt)
    model, rewards = load_model(experiment.model, folder), load_rewards(experiment.task)
    rows = load_data(experiment.task, has_template=model.has_template).train
    check_prompts(experiment, model.tokenizer, rows)
    check_tools(experiment, model.tokenizer, rows)
    try_rewards(rewards, [rows[number] for number in range(min(TRIED, len(rows)))])
    order = screening_order(len(rows))[: request.prompts]
    attempt.heartbeat.total = len(order)
    if attempt.is_main:
        describe(attempt, rows, hash_model(experiment, folder), rewards).write(attempt.folder)
    done = agreed(attempt, len(read_samples(attempt.folder)) // PORTION * PORTION)  # a portion may be torn
    samples: list[Sample] = []
    trainer = build_screener(attempt, model, build_config(attempt, model), rewards, rows, samples)
    for start in range(done, len(order), PORTION):
        attempt.beat(start, force=True)
        if broadcast_any(attempt.asks_to_stop(start), attempt.ranks, trainer.args.device):
            return Outcome(stopped=True, step=start)
        portion = order[start : start + PORTION]
        with seed_generation(SEED * 1_000_003 + start + sampling_group(attempt, trainer.args)):
            trainer.evaluate(rows.select(portion))
        gathered = accelerate.utils.gather_object(samples) if attempt.ranks > 1 else list(samples)
        samples.clear()
        if attempt.is_main:
            for prompt in portion:
                collect_samples(rows[prompt], gathered, request.samples).append(attempt.folder)
    attempt.beat(len(order), force=True)
    return Outcome(stopped=False, step=len(order))


def agreed(attempt: Attempt, done: int) -> int:
    """Return rank 0's count on every rank: on a network file system others may still see an older state."""
    shared = [done]
    if attempt.ranks > 1:
        torch.distributed.broadcast_object_list(shared, src=0)
    return shared[0]


def describe(attempt: Attempt, rows: Dataset, weights: str, rewards: list[Reward]) -> ScreenedData:
    """Return the screened data, with the prompts that occur more than once."""
    answers: dict[str, str] = {}
    duplicates = conflicts = 0
    repeated = ""
    for prompt, answer in zip(map(str, rows["prompt"]), rows["answer"], strict=True):
        if prompt in answers:
            duplicates += 1
            conflicts += answers[prompt] != answer
            repeated = repeated or prompt[:EXAMPLE]
        answers.setdefault(prompt, answer)
    return ScreenedData(
        train_prompts=len(rows),
        hashes={"train": hash_rows(rows), "model": weights},
        rewards=tuple(reward.__name__ for reward in rewards),
        weights=tuple(attempt.experiment.task.reward_weights or [1.0] * len(rewards)),
        duplicates=duplicates,
        conflicts=conflicts,
        repeated=repeated,
    )


def build_screener(
    attempt: Attempt, model: Loaded, arguments: GRPOConfig, rewards: list[Reward], rows: Dataset, samples: list[Sample]
) -> Screener:
    """Return the trainer, whose rewards append to ``samples``."""
    transformers.set_seed(SEED)
    tools = load_tools(attempt.experiment.task)
    if arguments.use_vllm and arguments.vllm_mode == "server" and attempt.is_main:
        wait_for_server(str(arguments.vllm_server_base_url), arguments.vllm_server_timeout)
    ends = {model.tokenizer.eos_token_id, model.tokenizer.pad_token_id}
    trainer = Screener(
        model=model.path,
        reward_funcs=[tap_reward(reward, number, samples, ends) for number, reward in enumerate(rewards)],
        args=arguments,
        train_dataset=rows,
        eval_dataset=rows,
        processing_class=model.tokenizer,
        peft_config=model.peft_config,
        quantization_config=build_quantization(attempt.experiment.model),
        **tools,
    )
    trainer.beat = lambda: watchdog.feed(attempt.experiment.cluster.stall_min)
    ends |= set(trainer.eos_token_ids)  # a model may have several
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def tap_reward(reward: Reward, number: int, samples: list[Sample], ends: set[int]) -> Callable[..., list[float | None]]:
    """Return the same reward, which also records its calls and values. The first reward's calls make the samples."""

    def heard(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float | None]:
        values = reward(prompts, completions, **columns)
        if number == 0:
            samples.extend(
                Sample(prompt, text_of(completion), answer, len(ids), ids[-1] not in ends)
                for prompt, completion, answer, ids in zip(
                    columns["prompt_id"], completions, columns["answer"], columns["completion_ids"], strict=True
                )
            )
        for sample, value in zip(samples[-len(values) :], values, strict=True):
            sample.rewards.append(value)
        return values

    heard.__name__ = reward.__name__
    return heard


def collect_samples(row: dict[str, Any], gathered: list[Sample], count: int) -> PromptSamples:
    """Return a prompt's record; of several ranks the last batch is filled up with further samples, which are left out."""
    own = [sample for sample in gathered if sample.prompt == row["prompt_id"]][:count]
    lowest = sorted(own, key=lambda sample: (sum(value or 0.0 for value in sample.rewards), not sample.mentions))
    return PromptSamples(
        prompt=row["prompt_id"],
        question=row["prompt"],
        answer=row["answer"],
        rewards=tuple(zip(*(sample.rewards for sample in own), strict=True)),
        lengths=tuple(sample.length for sample in own),
        truncated=tuple(sample.truncated for sample in own),
        mentions=tuple(sample.mentions for sample in own),
        example=lowest[0].text[:EXAMPLE],
    )
