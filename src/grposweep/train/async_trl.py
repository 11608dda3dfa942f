"""The asynchronous trainer: run one attempt with TRL's AsyncGRPOTrainer, which trains while a vLLM server samples.

TRL samples and scores training completions in a process of its own. It has no held-out evaluation, so that is here.
Source: trl 1.16 experimental/async_grpo (async_grpo_trainer.py, async_rollout_worker.py).
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from typing import Any

import requests
import torch
import transformers
from accelerate.utils import send_to_device
from datasets import Dataset
from transformers import PreTrainedTokenizerBase
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer  # exported there until TRL 2.0

from grporecipe.errors import UserError
from grposweep.config.evaluation import TOKEN_SAMPLING
from grposweep.config.precision import read_precision
from grposweep.config.trl_args import SINGLE_PRECISION
from grposweep.process import STEP_SIGNALS, end_children_with, signals_blocked
from grposweep.schema import Experiment, Task, keys_with, value_at
from grposweep.storage import paths
from grposweep.train import trl
from grposweep.train.attempt import Attempt, Outcome
from grposweep.train.evaluation import HeldOutEvaluation, judge
from grposweep.train.models import Loaded
from grposweep.train.rewards import Reward, RewardError, load_rewards
from grposweep.train.shared_engine import drop_adapters, name_adapter, one_version_later
from grposweep.train.tasks import Data
from grposweep.train.trl_callbacks import TrialControlCallback, UpdateNormCallback, peak_gib
from grposweep.train.trl_config import copied_arguments, course_arguments, device_arguments, sharding_options
from grposweep.train.vllm import server_address, wait_for_server

AT_ONCE = 16  # held-out prompts that the server samples for at once


def train(attempt: Attempt) -> Outcome:
    """Train one rank of one attempt, as `grposweep.train.trl.train`."""
    check_attention(attempt.experiment)
    os.environ.update(end_children_with(os.getpid()))  # the process that samples would outlive a killed trainer
    with failures_of_rewards():
        return trl.train(attempt, (build_config, build_trainer))


def check_attention(experiment: Experiment) -> None:
    """Raise UserError if FlashAttention 3, the only attention of AsyncGRPOTrainer, cannot run here."""
    if not torch.cuda.is_available():
        raise UserError(
            "trainer=async_trl: TRL's AsyncGRPOTrainer computes attention with FlashAttention 3 only, and no GPU is visible. Set "
            "trainer=trl, or train on a GPU."
        )
    if find_spec("kernels") is None:
        raise UserError(
            "trainer=async_trl: TRL's AsyncGRPOTrainer loads FlashAttention 3 with the package kernels, which is not installed "
            "here. Run pip install kernels, or set trainer=trl."
        )
    if read_precision(experiment.model).computed == "float32":
        raise UserError(SINGLE_PRECISION)


@contextmanager
def failures_of_rewards() -> Iterator[None]:
    """Raise what ended the process that samples and scores: TRL's own message names only that it ended."""
    try:
        yield
    except RuntimeError as error:
        if error.__cause__ is None or "Rollout worker child" not in str(error):
            raise
        kind, _, said = str(error.__cause__).partition("\n")[0].partition(": ")
        if kind == RewardError.__name__:
            raise RewardError(said) from error
        raise RuntimeError(f"the process that samples and scores ended: {error.__cause__}") from error


def build_config(attempt: Attempt, model: Loaded) -> AsyncGRPOConfig:
    """Return AsyncGRPOConfig for one rank of an attempt. With several ranks this connects them."""
    return AsyncGRPOConfig(**async_arguments(attempt, model))


def async_arguments(attempt: Attempt, model: Loaded) -> dict[str, Any]:
    """Return AsyncGRPOConfig's arguments by name: those that it shares with GRPOConfig, and its own.

    Without a token budget an optimizer step is the plan's number of completions.
    """
    experiment, plan = attempt.experiment, attempt.plan
    ahead = max(experiment.trainer.max_staleness, 1) * (plan.completions_per_step or plan.num_generations)
    own = {name: value_at(experiment, key) for key, name in keys_with("async_trl").items()}
    shared = {
        **copied_arguments(experiment),
        "data_seed": experiment.seed,
        **course_arguments(attempt),
        "eval_strategy": "no",  # it takes no held-out data
        **device_arguments(attempt, model),
        **server_address(experiment.generation, attempt.folder.parent.parent),
        **sharding_options(experiment),
    }
    names = {each.name for each in fields(AsyncGRPOConfig)}
    return {
        **{name: value for name, value in shared.items() if name in names},
        **{name: ahead if value is None else value for name, value in own.items()},
        "per_device_train_batch_size": plan.per_device_train_batch_size,
        "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        "num_generations": plan.num_generations,
        "token_budget": 0,
        **experiment.trainer.args,
    }


@dataclass
class ScoredText:
    """A reward for the process that samples: it is pickled, and takes the completions as GRPOTrainer would pass them."""

    spec: str
    is_only: bool
    tokenizer: PreTrainedTokenizerBase
    chat: bool
    _loaded: list[Reward] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.__name__ = self.spec.rpartition(":")[2]

    def __call__(self, prompts: list[Any], completion_ids: list[list[int]], **columns: Any) -> list[float | None]:
        if not self._loaded:
            self._loaded = load_rewards(Task(rewards=[self.spec]))
            self._loaded[0].is_only = self.is_only
        texts = decode(self.tokenizer, completion_ids, self.chat)
        given = prompts if self.chat else [prompt[0]["content"] for prompt in prompts]
        return self._loaded[0](given, **{**columns, "completions": texts, "completion_ids": completion_ids})


def decode(tokenizer: PreTrainedTokenizerBase, completions: list[list[int]], chat: bool) -> list[Any]:
    """Return the texts of completions, as turns of a conversation if the prompts are."""
    texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
    return [[{"role": "assistant", "content": text}] for text in texts] if chat else list(texts)


def as_conversation(prompt: Any) -> Any:
    """Return a prompt as the turns of a conversation, which is all that TRL samples for here."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def sampling_tokenizer(tokenizer: PreTrainedTokenizerBase, chat: bool) -> PreTrainedTokenizerBase:
    """Return a tokenizer for sampling: a prompt that is no conversation is its text, after the token that begins a text.

    TRL reads answers by a template as well, and stops at chat templates that it does not know. `ScoredText` needs no answers.
    """
    made = deepcopy(tokenizer)
    made.response_template = {"defaults": {"role": "assistant"}, "fields": {"content": {"content": "text"}}}
    if not chat:
        begins = made("0")["input_ids"][:1] == [made.bos_token_id]
        made.chat_template = ("{{ bos_token }}" if begins else "") + "{{ messages[0]['content'] }}"
    return made


@dataclass
class Batches:
    """The batches of a loader, each taken when the trainer requests it.

    accelerate takes the next one before it gives one out. So TRL finds completions fresh enough before the optimizer step after
    which it trains on them: with ``max_staleness=0`` all but the first step's would be one step old.
    Source: accelerate 1.15 data_loader.py, DataLoaderDispatcher.
    """

    loader: Any
    device: torch.device

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            yield send_to_device(batch, self.device)


class AsyncTrainer(AsyncGRPOTrainer):  # type: ignore[misc]  # trl is not typed
    """AsyncGRPOTrainer with held-out evaluations, which the same server samples."""

    _keep_best = trl.Trainer._keep_best

    def __init__(self, attempt: Attempt, held_out: Dataset, rewards: list[Reward], chat: bool, **kwargs: Any) -> None:
        self.attempt, self.held_out, self.rewards, self.is_chat = attempt, held_out, rewards, chat
        self.sampler, self.adapter_name = kwargs["processing_class"], name_adapter(attempt)
        super().__init__(**kwargs)
        if attempt.is_main and attempt.experiment.generation.vllm_shared_gpus:
            # A version has a new name, so requests for the one before need not stop; they may be another trial's.
            client = self.vllm_client
            client.pause = client.resume = lambda: None
            client.unload_lora_adapter = one_version_later(client.unload_lora_adapter)
            drop_adapters(attempt, self.args.vllm_server_base_url)
        self._lora_dir = str((attempt.folder / paths.ADAPTERS).resolve())

    @property
    def _lora_name(self) -> str:
        return self.adapter_name

    @_lora_name.setter
    def _lora_name(self, name: str) -> None:
        """Keep the trial's own name: TRL gives the adapters of every trainer the same one."""

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Return the metrics of the held-out prompts on rank 0, sampled with the present weights."""
        step, attempt = self.state.global_step, self.attempt
        if step % self.args.weight_sync_steps:
            self._sync_weight()
        values: dict[str, Any] = self._judge_held_out(step) if attempt.is_main else {}
        self.accelerator.wait_for_everyone()
        attempt.log("eval", step, values)
        if attempt.experiment.search.at == "best" and attempt.experiment.trainer.keep != "none":
            self._keep_best(step)
        self.callback_handler.on_evaluate(self.args, self.state, self.control, values)
        return values

    def get_train_dataloader(self) -> Any:
        """TRL's, without accelerate's batch in advance if there is one rank."""
        loader = super().get_train_dataloader()
        alone = self.accelerator.num_processes == 1
        return Batches(loader.base_dataloader, self.accelerator.device) if alone else loader

    def _judge_held_out(self, step: int) -> dict[str, Any]:
        began, attempt, weights = time.perf_counter(), self.attempt, self.attempt.experiment.task.reward_weights
        generations = attempt.setting.num_generations_eval or attempt.plan.num_generations
        held_out = HeldOutEvaluation(weights or [1.0] * len(self.rewards), attempt.experiment.task.family_column)
        held_out.ends = frozenset([*self.eos_token_ids, self.processing_class.pad_token_id])
        held_out.start()
        heard = [trl.listen(reward, number, held_out) for number, reward in enumerate(self.rewards)]
        lengths: list[int] = []
        for row, ids in self._sample_held_out(step, generations):
            columns = {name: [value] * generations for name, value in row.items() if name != "prompt"}
            texts = decode(self.sampler, ids, self.is_chat)
            for reward in heard:
                reward([row["prompt"]] * generations, texts, completion_ids=ids, **columns)
            lengths += map(len, ids)
            attempt.beat(step)
        names = [reward.__name__ for reward in self.rewards]
        completions = held_out.completions(0)
        parts = [[row[3].parts[number] for row in completions] for number in range(len(names))]
        known = [[value for value in values if value is not None] for values in parts]
        values = {
            **{
                f"eval_rewards/{name}/mean": sum(rewards) / len(rewards)
                for name, rewards in zip(names, known, strict=True)
                if rewards
            },
            "eval_completions/mean_length": sum(lengths) / len(lengths),
            "eval_completions/clipped_ratio": sum(row[3].truncated for row in completions) / len(completions),
            "eval_runtime": time.perf_counter() - began,
        }
        return values | judge(attempt, step, held_out.rows(0), completions, generations, names, values, began)

    def _sample_held_out(self, step: int, generations: int) -> Iterator[tuple[dict[str, Any], list[list[int]]]]:
        """Yield each held-out row with the tokens of its completions; trials of one seed share their random numbers."""
        args, draws = self.args, random.Random(self.args.seed * 1_000_003 + step)
        name = self.rollout_worker._loop_kwargs["model_name"]
        shared = {
            "model": f"{self._lora_name}-v{self.model_version}" if self._lora_sync else name,
            "max_tokens": args.max_completion_length,
            **{key: value for key in TOKEN_SAMPLING if (value := getattr(args, key)) is not None},
            "n": generations,
            "return_token_ids": True,
        }
        template = args.chat_template_kwargs or {}
        rows = [dict(row) for row in self.held_out]
        asked = [
            {
                **shared,
                "prompt": self.sampler.apply_chat_template(
                    as_conversation(row["prompt"]), add_generation_prompt=True, return_dict=False, **template
                ),
                "seed": draws.getrandbits(62),
            }
            for row in rows
        ]

        def ask(payload: dict[str, Any]) -> list[list[int]]:
            url = f"{args.vllm_server_base_url.rstrip('/')}/v1/completions"
            answer = requests.post(url, json=payload, timeout=args.request_timeout)
            answer.raise_for_status()
            return [choice["token_ids"] for choice in answer.json()["choices"]]

        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield from zip(rows, pool.map(ask, asked), strict=True)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """TRL's line of a step, with what the step cost. Its ``kl`` is not of a reference: it has another name here."""
        train = self._metrics["train"]
        if "kl" in train:
            train["sampling/kl"] = train.pop("kl")
        if "loss" in logs:
            seconds, waited = sum(train.get("perf/step_s", ())), sum(train.get("perf/rollout_wait_s", ()))
            shares = {"time/step": seconds, "time_share/generation": min(waited / seconds, 1.0)} if seconds else {}
            logs = {**logs, **shares, "memory/peak": peak_gib()}
        super().log(logs, start_time)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no model card: a sweep writes hundreds of checkpoints, whose cards have no reader."""


def build_trainer(
    attempt: Attempt,
    model: Loaded,
    data: Data,
    arguments: AsyncGRPOConfig,
    resumed_at: int,  # noqa: ARG001 - TRL finds it
) -> AsyncTrainer:
    """Build the trainer. Its prompts are shuffled once by the seed: TRL takes them in order, over and over."""
    rewards, updates = load_rewards(attempt.task), UpdateNormCallback()
    chat = not isinstance(data.train[0]["prompt"], str)
    tokenizer = sampling_tokenizer(model.tokenizer, chat)
    transformers.set_seed(attempt.experiment.seed)
    if attempt.rank == 0:
        wait_for_server(str(arguments.vllm_server_base_url), arguments.vllm_server_timeout)
    trainer = AsyncTrainer(
        attempt,
        data.held_out,
        rewards,
        chat,
        model=model.path,
        reward_funcs=[ScoredText(reward.spec, reward.is_only, tokenizer, chat) for reward in rewards],
        args=arguments,
        train_dataset=data.train.map(lambda row: {"prompt": as_conversation(row["prompt"])}).shuffle(
            attempt.experiment.seed
        ),
        processing_class=tokenizer,
        peft_config=model.peft_config,
        callbacks=[updates, TrialControlCallback(attempt, updates)],
    )
    trainer.processing_class = model.tokenizer  # which is saved
    if attempt.ranks > 1:
        trl._alive.append(trainer)
    if trainer.rollout_worker is not None:
        trainer.rollout_worker.start = unsignalled(trainer.rollout_worker.start)
    trainer.remove_callback(transformers.PrinterCallback)  # prints every log if there is no progress bar
    return trainer


def unsignalled(start: Callable[[], None]) -> Callable[[], None]:
    """Return a start of a process that signals do not end: the trainer ends it, after a checkpoint."""

    def started() -> None:
        with signals_blocked(*STEP_SIGNALS):
            start()

    return started
