"""Estimate vLLM's share of a GPU, and the bytes that this share must hold before vLLM starts."""

from dataclasses import dataclass

from grporecipe.memory.estimate import GIB
from grporecipe.memory.parts import ASSUMED_PROMPT_TOKENS, FLOAT, HALF, find_prompt
from grporecipe.setting import Setting

ENGINE = 1.0 * GIB  # vLLM itself (an assumption): activations of 4,096 tokens, a step's logits, CUDA graphs
DEFAULT_SHARE = 0.3  # trl 0.18 and later
OWN_LENGTH = (0, 26)  # before, TRL set max_prompt_length + max_completion_length


@dataclass(frozen=True)
class Engine:
    """Bytes of one GPU: vLLM's share, and the parts that it must hold before vLLM starts.

    ``cache`` are keys and values of one sequence of ``tokens``, the longest that vLLM accepts.
    """

    share: float
    weights: float
    cache: float
    tokens: int

    @property
    def needed(self) -> float:
        """Return the bytes that the share must hold."""
        return self.weights + self.cache + ENGINE


def find_engine(s: Setting) -> Engine | None:
    """Return vLLM's share if its GPU and the model are known; None without vLLM, or with a server elsewhere.

    It splits weights and key-value heads among its tensor parallel ranks, and converts float32 weights to half precision unless
    the type is set, as for a job's own server. Source: vllm v1/core/kv_cache_utils.py check_enough_kv_cache_memory.
    """
    model, gib, size = s.architecture, s.gpu_memory_gib, max(s.vllm_tensor_parallel_size, 1)
    if not s.use_vllm or model is None or gib is None or (s.vllm_mode != "colocate" and not s.server_gpus):
        return None
    is_float = s.vllm_mode != "colocate" and s.weights_dtype == "float32" and s.autocast_dtype is None
    width, tokens = FLOAT if is_float else HALF, find_longest_sequence(s)
    layers = -(-model.layers // model.kind.full_every)
    heads = max(model.kv_heads / size, 1)
    return Engine(
        share=(s.vllm_gpu_memory_utilization or DEFAULT_SHARE) * gib * GIB,
        weights=model.weights * width / size,
        cache=2 * layers * heads * model.head_dim * width * tokens,
        tokens=tokens,
    )


def find_longest_sequence(s: Setting) -> int:
    """Return vLLM's longest sequence in tokens: as set, as TRL derives it, or the model's maximum."""
    prompt, positions = find_prompt(s), s.architecture.positions if s.architecture else 0
    own = (prompt or ASSUMED_PROMPT_TOKENS) + s.max_completion_length
    if s.vllm_max_model_length is not None:
        return s.vllm_max_model_length
    # EasyR1 and verl pass prompt and response length to vLLM (workers/rollout/vllm_rollout_spmd.py).
    is_derived = s.framework.unit == "prompts" or (s.version < OWN_LENGTH and s.max_prompt_length is not None)
    return own if is_derived or not positions else positions
