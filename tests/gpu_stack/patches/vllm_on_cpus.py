"""What vLLM's CPU build needs besides TRL, and the negative controls of its tests. Nothing is
imported before it is used.
"""

import contextlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any


def use_two_heads(tiny: ModuleType) -> None:
    """Give the tiny model heads of 32: vLLM's attention on CPUs knows no heads of 16."""
    if os.environ.get("GPU_STACK_VLLM"):
        tiny.RECIPE["config"] |= {"num_attention_heads": 2, "num_key_value_heads": 2}


def keep_weights(utils: ModuleType) -> None:
    """Leave the weights of linear layers where new ones can be loaded, as on GPUs.

    vLLM packs them for oneDNN and drops the parameter; of the output layer it keeps one that is
    never read.
    """
    import torch

    def keep(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = lambda x, weight, bias: torch.nn.functional.linear(x, weight, bias)

    utils.dispatch_cpu_unquantized_gemm = keep


def send_through_tcp(nccl_common: ModuleType) -> None:
    """Replace NCCL by the TCP store that trainer and server have met at."""
    from vllm.distributed.utils import StatelessProcessGroup

    class Store:
        def __init__(self, group: Any) -> None:
            self.group = group

        def broadcast(self, tensor: Any, src: int, stream: Any = None) -> None:
            received = self.group.broadcast(tensor, src)
            if self.group.rank != src:
                tensor.copy_(received)

    def meet(host: str, port: int, rank: int, world_size: int, device: Any) -> Store:
        return Store(
            StatelessProcessGroup.create(host=host, port=port, rank=rank, world_size=world_size)
        )

    nccl_common.stateless_init_process_group = meet


def do_without_streams(packed_tensor: ModuleType) -> None:
    """There are no CUDA streams, so nothing has to wait for one."""
    import torch

    class Still:
        def synchronize(self) -> None:
            """All is done."""

    packed_tensor._get_streams = lambda device, count: tuple(Still() for _ in range(count))
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    torch.accelerator.current_device_index = lambda: 0


def take_any_device(client: ModuleType) -> None:
    """TRL asks for a CUDA device by its name, and with no index does nothing with it."""
    init = client.VLLMClient.init_communicator
    client.VLLMClient.init_communicator = lambda self, device=0: init(self, device="cuda")


def generate_in_single_precision(generation: ModuleType) -> None:
    """TRL leaves the type to vLLM, which makes bfloat16 of float32. And the negative control:
    weights are never sent.
    """
    if hasattr(generation, "LLM"):
        made = generation.LLM
        generation.LLM = lambda **options: made(
            **{"dtype": os.environ.get("GPU_STACK_DTYPE", "float32"), **options}
        )
    sync = generation.VLLMGeneration.sync_weights

    def patched(self: Any) -> None:
        if not os.environ.get("GPU_STACK_NO_SYNC"):
            sync(self)

    generation.VLLMGeneration.sync_weights = patched


def control_shared(engine: ModuleType) -> None:
    """Allow a negative control: a shared server that gets the first version of an adapter only."""
    sync = engine.SharedEngine.sync_weights

    def patched(self: Any) -> None:
        if self.vllm_client.version == 0 or not os.environ.get("GPU_STACK_NO_SYNC"):
            sync(self)

    engine.SharedEngine.sync_weights = patched


def control_adapters(vllm: ModuleType) -> None:
    """Allow a negative control: TRL alone, without our copies of an adapter's merged weights."""
    copy = vllm.copy_merged_weights
    vllm.copy_merged_weights = lambda engine: (
        None if os.environ.get("GPU_STACK_STOCK_LORA") else copy(engine)
    )


VLLM: dict[str, Callable[[ModuleType], None]] = {
    "grposweep.train._shared_engine": control_shared,
    "grposweep.train._tiny": use_two_heads,
    "grposweep.train._vllm": control_adapters,
    "trl.generation.vllm_client": take_any_device,
    "trl.generation.vllm_generation": generate_in_single_precision,
    "vllm.distributed.weight_transfer.nccl_common": send_through_tcp,
    "vllm.distributed.weight_transfer.packed_tensor": do_without_streams,
    "vllm.model_executor.layers.utils": keep_weights,
}
