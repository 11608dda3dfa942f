"""The asynchronous trainer's arguments, rewards and batches, with TRL's own classes and without a server."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, IterableDataset

from grporecipe.errors import UserError
from grposweep.schema import Experiment
from grposweep.train import async_trl
from grposweep.train.attempt import load_attempt
from grposweep.train.models import Loaded
from grposweep.train.rewards import RewardError
from grposweep.train.tiny import build_text_tokenizer, build_tokenizer

from .conftest import MakeTrial

pytestmark = pytest.mark.slow  # torch and TRL take 8 s to import

SERVED = ("trainer.kind=async_trl", "loss.loss_type=bnpo", "generation.use_vllm=true", "generation.vllm_mode=server",
          "generation.vllm_server_base_url=http://n1:8000")  # fmt: skip
MODEL = Loaded("model", None, None, {"dtype": "float32"})  # type: ignore[arg-type]  # neither is read


def test_the_real_config_takes_what_the_experiment_says(make_trial: MakeTrial) -> None:
    """Its own keys, those it shares with GRPOConfig, and the plan's batch."""
    folder = make_trial(
        *SERVED, "trainer.max_staleness=2", "trainer.weight_sync_steps=3", "loss.epsilon_high=0.28", "generation.top_p=0.9",
        "batch.gradient_accumulation_steps=2", "trainer.args.weight_sync_timeout=60",
    )  # fmt: skip
    config = async_trl.build_config(load_attempt(folder), MODEL)
    assert (config.max_staleness, config.weight_sync_steps, config.weight_sync_timeout) == (2, 3, 60)
    assert (config.learning_rate, config.epsilon_high, config.top_p, config.num_generations) == (1e-3, 0.28, 0.9, 4)
    assert (config.per_device_train_batch_size, config.gradient_accumulation_steps, config.token_budget) == (8, 2, 0)
    assert config.vllm_server_base_url == "http://n1:8000"
    assert config.max_steps == 4


@pytest.mark.parametrize(("stale", "ahead"), [(0, 8), (1, 8), (3, 24)])
def test_no_more_is_sampled_than_can_be_trained_on(make_trial: MakeTrial, stale: int, ahead: int) -> None:
    """At once and in the queue; TRL's queue alone would hold 1,024."""
    folder = make_trial(*SERVED, f"trainer.max_staleness={stale}")
    arguments = async_trl.async_arguments(load_attempt(folder), MODEL)
    assert (arguments["max_inflight_tasks"], arguments["queue_maxsize"]) == (ahead, ahead)
    given = make_trial(*SERVED, "trainer.queue_maxsize=100", name="0001-b")
    assert async_trl.async_arguments(load_attempt(given), MODEL)["queue_maxsize"] == 100


def test_a_machine_without_a_gpu_is_refused() -> None:
    """TRL itself fails when it loads its only attention, after the server has started."""
    with pytest.raises(UserError, match=r"no GPU is visible\. Set trainer=trl"):
        async_trl.check_attention(Experiment())


def test_a_plain_prompt_is_sampled_from_as_its_tokens() -> None:
    """Through a template, because TRL takes conversations alone; the tokenizer that is saved has none."""
    tokenizer = build_tokenizer()
    sampler = async_trl.sampling_tokenizer(tokenizer, chat=False)
    found = sampler.apply_chat_template(
        async_trl.as_conversation("12+3="), add_generation_prompt=True, return_dict=False
    )
    assert found == tokenizer("12+3=")["input_ids"]
    assert tokenizer.chat_template is None


@pytest.mark.parametrize("chat", [False, True])
def test_a_reward_in_another_process_sees_what_grpo_trainer_passes(tmp_path: Path, chat: bool) -> None:
    """Prompts and completions as text or turns, without special tokens, and the columns that it names."""
    file = tmp_path / "mine.py"
    file.write_text("def seen(prompts, completions, answer):\n    raise ValueError([prompts, completions, answer])\n")
    tokenizer = async_trl.sampling_tokenizer(build_text_tokenizer(), chat)
    reward = pickle.loads(pickle.dumps(async_trl.ScoredText(f"{file}:seen", True, tokenizer, chat)))
    ids = [[*tokenizer("five")["input_ids"], tokenizer.eos_token_id]]
    turn = [{"role": "user", "content": "2+3"}]
    wanted = [[turn], [[{"role": "assistant", "content": "five"}]], ["5"]] if chat else [["2+3"], ["five"], ["5"]]
    with pytest.raises(RewardError) as caught:
        reward(prompts=[turn], completions=["ignored"], completion_ids=ids, answer=["5"], prompt_id=[0])
    assert str(wanted) in str(caught.value)
    assert reward.__name__ == "seen"


def test_a_failure_in_the_process_that_samples_is_named() -> None:
    """TRL says only that it failed."""
    with pytest.raises(RewardError, match=r"^mine\.py raised$"), async_trl.failures_of_rewards():
        raise RuntimeError("Rollout worker child has failed; see chained exception.") from RuntimeError(
            "RewardError: mine.py raised\nTraceback"
        )
    with pytest.raises(RuntimeError, match="samples and scores ended: ValueError: no"), async_trl.failures_of_rewards():
        raise RuntimeError("Rollout worker child has failed; see chained exception.") from RuntimeError(
            "ValueError: no"
        )


class Clock(IterableDataset[int]):
    """The time at which each element is taken."""

    now = 0

    def __iter__(self) -> Iterator[int]:
        while True:
            yield self.now


def test_a_batch_is_taken_when_its_step_begins() -> None:
    """accelerate's own loader takes it one step before, by when its completions were sampled from other weights."""
    taken: dict[str, list[int]] = {}
    prepared = Accelerator(cpu=True).prepare(DataLoader(Clock()))
    for name, loader in (
        ("theirs", prepared),
        ("ours", async_trl.Batches(prepared.base_dataloader, torch.device("cpu"))),
    ):
        Clock.now, batches, taken[name] = 0, iter(loader), []
        for step in range(4):
            Clock.now = step
            taken[name].append(int(next(batches)))
    assert taken == {"theirs": [0, 0, 1, 2], "ours": [0, 1, 2, 3]}
