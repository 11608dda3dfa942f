"""What only GPUs can show of a larger model: forks before CUDA, memory in bfloat16, adapters, vLLM,
sharding over NCCL.
"""

import os
from importlib.util import find_spec

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from grposweep.train._tiny import EOS, PAD, VOCABULARY, build_tokenizer
from support import Ended, Run, lines, trials

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is visible to torch"),
]
DIFFERENCE = "sampling/sampling_logp_difference/mean"
STEPS = 12
SHORT = (
    "schedule.budget_completions=null",
    f"schedule.max_steps={STEPS}",
    "schedule.evaluations=1",
    "task.eval_prompts=8",
    "batch=small",
    "name=s",
    "model.gradient_checkpointing=true",
)
COLOCATED = ("generation=vllm_colocate", "generation.vllm_max_model_length=32")
ADAPTERS = ("model.lora.r=16", "model.dtype=bfloat16", "lr=1e-4")
needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed here")
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture(scope="session")
def half_a_billion(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Untrained weights of Qwen2.5-0.5B's shape that read and write two-digit addition. No
    download.
    """
    folder = tmp_path_factory.mktemp("model")
    config = Qwen2Config(
        vocab_size=len(VOCABULARY),
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=None,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return str(folder)


def train_lines(ended: Ended, number: int = 0) -> list[dict[str, float]]:
    """The optimizer steps of one trial."""
    assert ended.code == 0, ended.out + ended.err
    return [
        line
        for line in lines(trials(ended.sweep)[number] / "metrics.jsonl")
        if line["kind"] == "train"
    ]


@pytest.mark.parametrize(
    "precision", [("model.dtype=bfloat16",), ("model.dtype=float32",), ADAPTERS], ids=str
)
def test_half_a_billion_weights_move_and_fit_into_24_gib(
    run: Run, half_a_billion: str, precision: tuple[str, ...]
) -> None:
    """In each precision and with adapters; the peak is at least the weights."""
    found = train_lines(run(*SHORT, f"model.path={half_a_billion}", *precision, timeout=900))
    assert [line["step"] for line in found] == list(range(1, STEPS + 1))
    assert 0.6 < max(line["memory/peak"] for line in found) < 24


def test_trials_fork_from_a_server_that_has_not_started_cuda(run: Run) -> None:
    """Both train on the GPU, and the server did not have to give up forking."""
    ended = run(
        "-m", *SHORT, "model.dtype=float32", "lr=1e-4,1e-3", "search.parallel=1", timeout=900
    )
    assert "so no trial can be forked" not in ended.out + ended.err
    assert all(train_lines(ended, number)[-1]["memory/peak"] > 0 for number in (0, 1))


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed here")
def test_bitsandbytes_starts_cuda_at_import_and_trials_still_train(run: Run) -> None:
    """In new processes, which is reported once."""
    ended = run(
        "-m",
        *SHORT,
        "model.dtype=float32",
        "lr=1e-4,1e-3",
        "optimizer.optim=adamw_bnb_8bit",
        timeout=900,
    )
    assert (ended.out + ended.err).count("starts CUDA") == 1
    assert len(train_lines(ended, 1)) == STEPS


@needs_vllm
@pytest.mark.parametrize("options", [(), ADAPTERS], ids=["all weights", "LoRA"])
def test_a_colocated_vllm_samples_from_the_weights_that_are_trained(
    run: Run, half_a_billion: str, options: tuple[str, ...]
) -> None:
    """The difference in log-probability stays that of rounding while the weights move."""
    found = train_lines(
        run(*SHORT, f"model.path={half_a_billion}", *COLOCATED, *options, timeout=900)
    )
    differences = [line[DIFFERENCE] for line in found if DIFFERENCE in line]
    assert len(differences) == STEPS
    assert max(differences) < 0.05


@needs_two
@pytest.mark.parametrize("sharding", ["none", "zero2", "zero3", "fsdp"])
def test_two_gpus_train_together(run: Run, half_a_billion: str, sharding: str) -> None:
    """NCCL between them; every kind of sharding that is installed."""
    if sharding.startswith("zero") and find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed is not installed here")
    wanted = (f"model.path={half_a_billion}", "model.dtype=bfloat16", "cluster.processes=2")
    found = train_lines(run(*SHORT, *wanted, f"trainer.sharding={sharding}", timeout=900))
    assert len(found) == STEPS


@needs_two
def test_two_trials_get_a_gpu_each(run: Run) -> None:
    """They run at the same time."""
    assert len(os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")) >= 2
    ended = run("-m", *SHORT, "model.dtype=float32", "lr=1e-4,1e-3", timeout=900)
    assert "2 at once" in ended.out
    times = sorted([line["time"] for line in train_lines(ended, number)] for number in (0, 1))
    assert times[1][0] < times[0][-1]
