"""Estimate the main memory of a node: loading models, offloaded states, vLLM asleep, processes and
their workers.

Sources: transformers 5.23 modeling_utils.py (a rank loads a whole model unless it divides it),
accelerate 1.15 utils/fsdp_utils.py (float32 before it is divided), vLLM device_allocator/cumem.py
(sleep level 1 copies the weights to pinned memory).
"""

from dataclasses import dataclass

from grporecipe.memory.estimate import GIB
from grporecipe.memory.parts import (
    FLOAT,
    HALF,
    READS,
    WEIGHTS_SHARDED,
    Need,
    find_states,
    read_need,
)
from grporecipe.model.setting import Setting

# a rank with torch and CUDA's libraries, its tokenizer and data: 3-5 GiB resident
PROCESS = 4.0 * GIB
# of a dataloader; Ray's own processes count as one a rank
WORKER = 1.0 * GIB
# per GPU: vLLM's swap_space until 0.10
SWAP = 4.0 * GIB
HOST_READS = (*READS, "gpus_per_node", "loads_on_every_rank", "framework", "version")


@dataclass(frozen=True)
class HostMemory:
    """Bytes of main memory on one node. Loading ends before training begins, so the peak is the
    larger of the two.
    """

    loading: float
    offloaded: float
    asleep: float
    swap: float
    processes: float

    @property
    def kept(self) -> float:
        """Return the bytes that stay in main memory while the run trains, without its processes."""
        return self.offloaded + self.asleep + self.swap

    @property
    def peak(self) -> float:
        """Return the node's peak."""
        return self.processes + max(self.loading, self.kept)

    def as_gib(self) -> dict[str, float]:
        """Return the parts and the peak in GiB."""
        names = ("loading", "offloaded", "asleep", "swap", "processes", "peak")
        return {name: round(getattr(self, name) / GIB, 1) for name in names}


def find_host_memory(s: Setting) -> HostMemory | None:
    """Estimate the main memory of a node; None if the model or the number of ranks is unknown."""
    need = read_need(s)
    if need is None or s.processes is None:
        return None
    ranks = min(s.processes, s.gpus_per_node or 8)
    states = find_states(need)
    offloaded = sum(getattr(states, part) for part in sorted(need.runtime.offloads))
    # ZeRO-Offload copies gradients there too
    if need.runtime.computes_offloaded:
        offloaded += states.gradients
    sleeps = need.engine_sleeps and need.engine_share
    asleep = need.model.weights * HALF / need.engine_ranks if sleeps else 0.0
    is_colocated = s.use_vllm and s.vllm_mode == "colocate"
    has_swap = is_colocated and s.framework.follows_trl and s.version < (0, 20, 0)
    swap = ranks * SWAP if has_swap else 0.0
    return HostMemory(
        loading=_loading(s, need, ranks),
        offloaded=ranks * offloaded,
        asleep=ranks * asleep,
        swap=swap,
        processes=ranks * (PROCESS + WORKER),
    )


def _loading(s: Setting, n: Need, ranks: int) -> float:
    """Return bytes while loading: a model for each loading rank, in its type, with FSDP in float32.
    ZeRO-3 divides as it loads.

    verl and EasyR1 load on the first rank only (``sync_module_states``); the others make empty
    weights.
    """
    width = FLOAT if n.sharding == "fsdp" else n.stored
    models = 1 + n.has_reference
    if n.sharding == "zero3":
        return models * n.model.weights * width / n.processes * ranks
    loading = ranks if n.sharding not in WEIGHTS_SHARDED or loads_on_every_rank(s) else 1
    if n.runtime.head == "packed":
        loading = 1
        models = 1
    return loading * models * n.model.weights * width


def loads_on_every_rank(s: Setting) -> bool:
    """Return whether each rank of FSDP loads the whole model."""
    has_reference = s.beta != 0 and not s.lora
    return has_reference if s.loads_on_every_rank is None else s.loads_on_every_rank
