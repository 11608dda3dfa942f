"""The estimator against torch: parameters, optimizer states, saved activations and peaks of real shapes on fake tensors.

The whole comparison, with all models and layers, is benchmarks/memory/architectures.py; here each with two layers.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "memory"))


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("name", ["Qwen2.5-0.5B", "Qwen2.5-7B", "Qwen3-0.6B", "Qwen3-8B", "Llama-3.2-1B", "Llama-3.2-3B",
                                  "Llama-3.1-8B", "Mistral-7B", "Gemma-2B", "Gemma-3-1B"])  # fmt: skip
def test_the_estimate_is_what_torch_counts(monkeypatch: pytest.MonkeyPatch, name: str, checkpoints: bool) -> None:
    """Parameters and AdamW exactly, saved activations and peaks within five per cent."""
    import architectures

    monkeypatch.setattr(architectures, "PEAK_LAYERS", 2)
    a = replace(architectures.architecture(name), layers=2, parameters=0)
    counted, estimated = architectures.count(a, checkpoints), architectures.predict(a, checkpoints)
    assert (counted.parameters, counted.optimizer) == (estimated.parameters, estimated.optimizer)
    # the head's input is saved too, by a kernel that these passes leave out
    head = architectures.BATCH * (architectures.PROMPT + architectures.COMPLETION) * a.hidden * architectures.WIDTH
    assert estimated.saved - head == pytest.approx(counted.saved, rel=0.01)
    assert estimated.peak == pytest.approx(counted.peak, rel=0.05)
