"""The memory estimator against torch, without a GPU and without weights: architectures of real
models on fake tensors.

Counts what torch itself would allocate: parameters, AdamW's states, what autograd saves in a
forward pass (with and without gradient checkpointing), and the peak of a forward and backward pass
(of four layers). ``python benchmarks/memory/architectures.py``; shapes are those of the published
config.json files. Needs some minutes and 2 GiB.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.multiprocessing.reductions import StorageWeakRef

from grporecipe.memory.estimate import GIB, find_activations
from grporecipe.memory.parts import FLOAT, Need, find_states
from grporecipe.model.architecture import Architecture

BATCH, PROMPT, COMPLETION = 4, 128, 384
# bytes: bfloat16
WIDTH = 2
PEAK_LAYERS = 4


# layers, hidden, intermediate, heads, key-value heads, head dimension, vocabulary, tied,
# model_type, published parameters
SHAPES: dict[str, tuple[Any, ...]] = {
    "Qwen2.5-0.5B": (24, 896, 4864, 14, 2, 64, 151_936, True, "qwen2", 494_032_768),
    "Qwen2.5-1.5B": (28, 1536, 8960, 12, 2, 128, 151_936, True, "qwen2", 1_543_714_304),
    "Qwen2.5-7B": (28, 3584, 18_944, 28, 4, 128, 152_064, False, "qwen2", 7_615_616_512),
    "Qwen3-0.6B": (28, 1024, 3072, 16, 8, 128, 151_936, True, "qwen3", 596_049_920),
    "Qwen3-1.7B": (28, 2048, 6144, 16, 8, 128, 151_936, True, "qwen3", 1_720_574_976),
    "Qwen3-4B": (36, 2560, 9728, 32, 8, 128, 151_936, True, "qwen3", 4_022_468_096),
    "Qwen3-8B": (36, 4096, 12_288, 32, 8, 128, 151_936, False, "qwen3", 8_190_735_360),
    "Llama-3.2-1B": (16, 2048, 8192, 32, 8, 64, 128_256, True, "llama", 1_235_814_400),
    "Llama-3.2-3B": (28, 3072, 8192, 24, 8, 128, 128_256, True, "llama", 3_212_749_824),
    "Llama-3.1-8B": (32, 4096, 14_336, 32, 8, 128, 128_256, False, "llama", 8_030_261_248),
    "Mistral-7B": (32, 4096, 14_336, 32, 8, 128, 32_768, False, "mistral", 7_248_023_552),
    "Gemma-2B": (18, 2048, 16_384, 8, 1, 256, 256_000, True, "gemma", 2_506_172_416),
    "Gemma-3-1B": (26, 1152, 6912, 4, 1, 256, 262_144, True, "gemma3_text", 999_885_952),
}
CONFIGS = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "gemma": transformers.GemmaConfig,
    "gemma3_text": transformers.Gemma3TextConfig,
}


@dataclass(frozen=True)
class Counted:
    """What torch counts of one model: parameters, and bytes."""

    parameters: int
    optimizer: int
    saved: int
    # of a forward and backward pass of few layers, with the gradients and states of an earlier one
    peak: int


def architecture(name: str) -> Architecture:
    """The estimator's view of a model."""
    return Architecture(*SHAPES[name])


def build_config(a: Architecture) -> Any:
    """Its configuration in transformers."""
    window = {} if a.model_type == "gemma3_text" else {"sliding_window": None}
    return CONFIGS[a.model_type](
        num_hidden_layers=a.layers,
        hidden_size=a.hidden,
        intermediate_size=a.intermediate,
        num_attention_heads=a.heads,
        num_key_value_heads=a.kv_heads,
        head_dim=a.head_dim,
        vocab_size=a.vocabulary,
        tie_word_embeddings=a.tied_embeddings,
        **window,
    )


def count(a: Architecture, checkpoints: bool, batch: int = BATCH) -> Counted:
    """One decoder counted by torch on tensors that have shapes and no storage; its peak with a few
    of its layers.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = build_model(a, checkpoints)
        with _watch(model) as seen:
            run(model, batch)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        optimizer = step_once(model)
        states = [
            tensor
            for kept in optimizer.state.values()
            for tensor in kept.values()
            if tensor.dim() > 0
        ]
        peak = count_peak(few_layers(a), checkpoints, batch)
        return Counted(parameters, sum(map(_bytes, states)), sum(seen.values()), peak)


def step_once(model: Any) -> torch.optim.AdamW:
    """AdamW with the states that its first step makes; gradients are there afterwards."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()
    return optimizer


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def count_saved_under_autocast(a: Architecture) -> int:
    """Bytes that a forward pass of float32 weights saves which computes in bfloat16."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = build_model(a, checkpoints=False, dtype=torch.float32)
        with _watch(model) as seen, torch.autocast("cpu", dtype=torch.bfloat16):
            run(model, BATCH)
        return sum(seen.values())


def count_saved_by_adapters(
    a: Architecture, targets: tuple[str, ...], width: int, batch: int = BATCH
) -> int:
    """The same of adapters on frozen weights of so many bytes, on real tensors: peft moves weights
    about.
    """
    from peft import LoraConfig, get_peft_model

    modules = "all-linear" if targets == ("all-linear",) else list(targets)
    model = build_model(
        a, checkpoints=False, dtype=torch.float32 if width == FLOAT else torch.bfloat16
    )
    adapted = get_peft_model(
        model, LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules=modules)
    )
    # else the first layer, here one of two, saves less
    adapted.enable_input_require_grads()
    with _watch(adapted) as seen, torch.autocast("cpu", dtype=torch.bfloat16):
        run(adapted.base_model.model, batch)
    return sum(seen.values())


def build_model(a: Architecture, checkpoints: bool, dtype: torch.dtype = torch.bfloat16) -> Any:
    """The model of transformers, its attention as TRL runs it."""
    model = transformers.AutoModelForCausalLM.from_config(
        build_config(a), dtype=dtype, attn_implementation="sdpa"
    )
    model.train()
    if checkpoints:
        model.gradient_checkpointing_enable()
    return model


def run(model: Any, batch: int) -> torch.Tensor:
    """The decoder's forward pass, without a head: TRL has a kernel of its own for that."""
    ids, mask = (torch.ones(batch, PROMPT + COMPLETION, dtype=torch.long) for _ in range(2))
    hidden: torch.Tensor = model.model(
        input_ids=ids, attention_mask=mask, use_cache=False
    ).last_hidden_state
    return hidden


def few_layers(a: Architecture) -> Architecture:
    """The same with its first layers only: following every tensor of a pass takes long."""
    return replace(a, layers=PEAK_LAYERS, parameters=0)


def count_peak(a: Architecture, checkpoints: bool, batch: int) -> int:
    """Bytes at the peak of a forward and backward pass, in addition to the gradients and AdamW's
    states of an earlier one.
    """
    model = build_model(a, checkpoints)
    optimizer = step_once(model)
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    with tracker:
        run(model, batch).sum().backward()
        return int(max(device["Total"] for device in tracker.get_tracker_snapshot("peak").values()))


@contextmanager
def _watch(model: torch.nn.Module) -> Iterator[dict[StorageWeakRef, int]]:
    """The storages that autograd saves, each once, parameters not among them."""
    ours = {StorageWeakRef(parameter.untyped_storage()) for parameter in model.parameters()}
    seen: dict[StorageWeakRef, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        key = StorageWeakRef(tensor.untyped_storage())
        if key not in ours:
            seen[key] = _bytes(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield seen


def build_need(a: Architecture, checkpoints: bool, batch: int = BATCH) -> Need:
    """The same micro-batch for the estimator: one rank, all weights trained, gradients from an
    earlier micro-batch.
    """
    return Need(
        model=a,
        width=WIDTH,
        compute=WIDTH,
        batch=batch,
        rollout=0,
        scored=batch,
        prompt=PROMPT,
        completion=COMPLETION,
        processes=1,
        accumulates=True,
        checkpoints=checkpoints,
        has_reference=False,
        optim="adamw_torch",
        sharding="none",
        lora=None,
        uses_vllm=False,
        engine_share=0.0,
        gpu_gib=None,
        engine_sleeps=False,
        is_filtered=False,
        is_nucleus=False,
    )


def predict(a: Architecture, checkpoints: bool, batch: int = BATCH) -> Counted:
    """What the estimator says to the same questions."""
    need = build_need(replace(a, parameters=0), checkpoints, batch)
    return Counted(
        a.count(),
        int(find_states(need).optimizer),
        int(find_activations(need)[0]),
        predict_peak(a, checkpoints, batch),
    )


def predict_peak(a: Architecture, checkpoints: bool, batch: int) -> int:
    """The estimator's peak, of few layers as well."""
    need = build_need(few_layers(a), checkpoints, batch)
    states = find_states(need)
    # the embedding's gradient, before it joins the others at the very end
    dense = a.head_parameters * WIDTH
    stays = states.weights + states.gradients + states.optimizer
    return int(stays + max(sum(find_activations(need)), dense))


def main() -> None:
    """One line a model and way of training."""
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    print(
        f"{BATCH} sequences of {PROMPT + COMPLETION} tokens, bfloat16, AdamW; GiB counted by "
        "torch (error of the estimate)\n"
    )
    print("| model | parameters | AdamW | saved | checkpointed | peak, 4 layers | checkpointed |")
    print("|---|---|---|---|---|---|---|")
    worst = 0.0
    for name in SHAPES:
        a = architecture(name)
        (plain, wanted), (spared, less) = ((count(a, on), predict(a, on)) for on in (False, True))
        cells = [
            (plain.optimizer, wanted.optimizer),
            (plain.saved, wanted.saved),
            (spared.saved, less.saved),
            (plain.peak, wanted.peak),
            (spared.peak, less.peak),
        ]
        assert plain.parameters == wanted.parameters == a.parameters, (
            name,
            plain.parameters,
            wanted.parameters,
        )
        worst = max(worst, *(abs(ours / theirs - 1) for theirs, ours in cells))
        shown = " | ".join(
            f"{theirs / GIB:.3f} ({ours / theirs - 1:+.1%})" for theirs, ours in cells
        )
        print(f"| {name} | {plain.parameters:,} (exact) | {shown} |", flush=True)
    print(
        f"\nlargest error {worst:.1%}; torch {torch.__version__}, transformers "
        f"{transformers.__version__}"
    )


if __name__ == "__main__":
    main()
