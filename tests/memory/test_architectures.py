"""The estimator against torch: parameters, optimizer states, saved activations and peaks of real
shapes on fake tensors.

The whole comparison, with all models and layers, is benchmarks/memory/architectures.py; here each
with two layers.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "memory"))


# another size of the same family
THOROUGH = pytest.mark.thorough


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "Qwen2.5-0.5B",
        pytest.param("Qwen2.5-7B", marks=THOROUGH),
        "Qwen3-0.6B",
        pytest.param("Qwen3-8B", marks=THOROUGH),
        "Llama-3.2-1B",
        pytest.param("Llama-3.2-3B", marks=THOROUGH),
        pytest.param("Llama-3.1-8B", marks=THOROUGH),
        "Mistral-7B",
        "Gemma-2B",
        "Gemma-3-1B",
    ],
)
def test_the_estimate_is_what_torch_counts(
    monkeypatch: pytest.MonkeyPatch, name: str, checkpoints: bool
) -> None:
    """Parameters and AdamW exactly, saved activations and peaks within five per cent."""
    import architectures

    monkeypatch.setattr(architectures, "PEAK_LAYERS", 2)
    a = replace(architectures.architecture(name), layers=2, parameters=0)
    counted = architectures.count(a, checkpoints)
    estimated = architectures.predict(a, checkpoints)
    assert (counted.parameters, counted.optimizer) == (estimated.parameters, estimated.optimizer)
    # the head's input is saved too, by a kernel that these passes leave out
    head = (
        architectures.BATCH
        * (architectures.PROMPT + architectures.COMPLETION)
        * a.hidden
        * architectures.WIDTH
    )
    assert estimated.saved - head == pytest.approx(counted.saved, rel=0.01)
    assert estimated.peak == pytest.approx(counted.peak, rel=0.05)


@pytest.mark.parametrize(
    "name",
    [
        "Qwen2.5-0.5B",
        pytest.param("Qwen2.5-7B", marks=THOROUGH),
        "Qwen3-0.6B",
        "Llama-3.2-1B",
        pytest.param("Mistral-7B", marks=THOROUGH),
        "Gemma-2B",
    ],
)
def test_float32_weights_under_autocast_save_what_torch_counts(name: str) -> None:
    """What TRL does with a recipe that names no dtype; copies of the weights among it."""
    import architectures

    from grporecipe.memory.estimate import find_activations

    a = replace(architectures.architecture(name), layers=2, parameters=0)
    need = replace(architectures.build_need(a, checkpoints=False), width=4, compute=2)
    # as above
    head = need.tokens * a.hidden * need.width
    estimated = find_activations(need)[0] - head
    assert estimated == pytest.approx(architectures.count_saved_under_autocast(a), rel=0.02)


EVERYTHING = ("all-linear",)
SOME = ("q_proj", "v_proj")
SHORTEST = {
    ("Qwen2.5-0.5B", EVERYTHING, 2),
    ("Llama-3.2-1B", SOME, 4),
    ("Qwen3-0.6B", EVERYTHING, 4),
    ("Qwen3-0.6B", SOME, 2),
}


@pytest.mark.parametrize(
    ("name", "targets", "width"),
    [
        pytest.param(*case, marks=() if case in SHORTEST else THOROUGH)
        for case in product(
            ("Qwen2.5-0.5B", "Llama-3.2-1B", "Qwen3-0.6B"), (EVERYTHING, SOME), (2, 4)
        )
    ],
)
def test_adapters_under_autocast_save_no_more_than_estimated(
    name: str, targets: tuple[str, ...], width: int
) -> None:
    """And at least nine tenths of it, whether the frozen weights are float32 (copied then) or
    bfloat16.
    """
    import architectures

    from grporecipe.memory.estimate import find_activations
    from grporecipe.memory.parts import Lora

    a = replace(architectures.architecture(name), layers=2, parameters=0, vocabulary=1000)
    need = replace(
        architectures.build_need(a, checkpoints=False, batch=1),
        width=width,
        compute=2,
        lora=Lora(16, targets),
    )
    estimated = find_activations(need)[0] - need.tokens * a.hidden * width
    assert (
        0.9 * estimated
        < architectures.count_saved_by_adapters(a, targets, width, batch=1)
        < estimated
    )


@pytest.mark.parametrize("top_p", [1.0, 0.9])
@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, 0), (0.9, 0), (1.0, 50)])
def test_a_tokens_draw_takes_what_transformers_takes(
    temperature: float, top_k: int, top_p: float
) -> None:
    """The bytes a word of the vocabulary at the peak of its own logits processors, counted by
    torch.
    """
    from transformers.generation import logits_process

    from grporecipe.memory.estimate import sampled_bytes

    steps: list[Callable[[Any, Any], Any]] = []
    steps += [logits_process.TemperatureLogitsWarper(temperature)] if temperature != 1 else []
    steps += [logits_process.TopKLogitsWarper(top_k)] if top_k else []
    steps += [logits_process.TopPLogitsWarper(top_p)] if top_p < 1 else []
    counted = _peak_of_a_draw(logits_process.LogitsProcessorList(steps), words=152_000)
    assert counted == pytest.approx(
        sampled_bytes(2, temperature != 1 or top_k > 0, top_p < 1), abs=0.1
    )


def _peak_of_a_draw(processors: Any, words: int) -> float:
    """As transformers' _sample draws: the last logits as float32, what is made of them, and their
    probabilities.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode():
        logits = torch.empty(64, 1, words, dtype=torch.bfloat16)
        with MemTracker() as tracker:
            scores = logits[:, -1, :].to(copy=True, dtype=torch.float32)
            chances = torch.softmax(processors(None, scores), dim=-1)
        assert chances.shape == (64, words)
        return float(next(iter(tracker.get_tracker_snapshot("peak").values()))["Total"]) / (
            64 * words
        )
