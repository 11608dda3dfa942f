"""What a vLLM server receives while an adapter is trained. vLLM's client is in this process, and
copies as late as vLLM does.
"""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
import torch
from trl.generation.vllm_generation import VLLMGeneration

from grposweep.train import trl as grpo
from grposweep.train.attempt import load_attempt

from .conftest import MakeTrial

# torch and a real adapter: the default tier is for seconds
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cool_tiny")]

SERVED = (
    "generation.use_vllm=true",
    "generation.vllm_mode=server",
    "generation.vllm_server_timeout=20",
    "model.lora.r=16",
    "model.lora.r=4",
    "model.lora.alpha=8",
    "model.lora.target_modules=[all-linear]",
)


class Recorder:
    """Packs weights as vLLM 0.31 does (pack_tensors): it keeps views, and copies once the iteration
    has ended.
    """

    def __init__(self) -> None:
        self.received: dict[str, torch.Tensor] = {}

    def update_named_params(
        self, metadata: list[Any], weights: Iterator[tuple[str, torch.Tensor]]
    ) -> None:
        """Receive all weights in one buffer, as of a model below 1 GiB."""
        views = [
            (name, weight.contiguous().view(torch.uint8).view(-1), weight)
            for name, weight in weights
        ]
        self.received = {
            name: view.clone().view(weight.dtype).view(weight.shape) for name, view, weight in views
        }
        assert [name for name, _, _ in metadata] == list(self.received)

    def reset_prefix_cache(self) -> None:
        """Nothing is cached."""

    def get_server_info(self) -> dict[str, Any]:
        """What TRL wants to see."""
        return {"model_config": {"logprobs_mode": "processed_logprobs", "max_logprobs": -1}}


class Healthy(BaseHTTPRequestHandler):
    """A server that is there; the recorder takes everything else."""

    def do_GET(self) -> None:
        """As vLLM's /health."""
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()


@pytest.fixture
def server() -> Iterator[str]:
    """Its address."""
    with HTTPServer(("127.0.0.1", 0), Healthy) as found:
        Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()


@pytest.fixture
def trainer(make_trial: MakeTrial, server: str, monkeypatch: pytest.MonkeyPatch) -> grpo.Trainer:
    """The trainer of a trial with an adapter that has been trained."""
    monkeypatch.setattr(
        VLLMGeneration, "_init_vllm", lambda self: setattr(self, "vllm_client", Recorder())
    )
    attempt = load_attempt(make_trial(*SERVED, f"generation.vllm_server_base_url={server}"))
    data = grpo.load_data(attempt.experiment.task)
    model = grpo.load_model(attempt.experiment.model, grpo.locate_model(attempt))
    grpo.check_counts(attempt, data)
    trainer = grpo.build_trainer(
        attempt, model, data, grpo.build_config(attempt, model), resumed_at=0
    )
    for name, weight in trainer.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    return trainer


def policy(trainer: grpo.Trainer, is_merged: bool) -> dict[str, torch.Tensor]:
    """The weights of the policy, with or without its adapter, under vLLM's names."""
    if is_merged:
        trainer.model.merge_adapter()
    found = {
        name.removeprefix("base_model.model.").replace(".base_layer", ""): weight.detach().clone()
        for name, weight in trainer.model.named_parameters()
        if "lora_" not in name
    }
    if is_merged:
        trainer.model.unmerge_adapter()
    return found


def received(trainer: grpo.Trainer) -> dict[str, torch.Tensor]:
    """What a weight update sends."""
    trainer.vllm_generation.sync_weights()
    return dict(trainer.vllm_generation.vllm_client.received)


def test_a_server_receives_the_merged_weights_of_an_adapter(trainer: grpo.Trainer) -> None:
    """In both of two updates: the first one also walks over the weights for their names and
    shapes.
    """
    for _ in range(2):
        expected = policy(trainer, is_merged=True)
        found = received(trainer)
        assert set(found) == set(expected)
        assert all(torch.allclose(found[name], expected[name], atol=1e-5) for name in expected)


def test_trl_alone_sends_the_weights_of_the_base_model(trainer: grpo.Trainer) -> None:
    """Where this fails, a release of TRL has become right: our copies and rule GT107 are for those
    before it.
    """
    # ours, which hides the class's
    del trainer.vllm_generation._iter_named_params
    base = policy(trainer, is_merged=False)
    merged = policy(trainer, is_merged=True)
    found = received(trainer)
    assert all(torch.allclose(found[name], base[name], atol=1e-5) for name in base)
    assert not all(torch.allclose(found[name], merged[name], atol=1e-2) for name in base)
