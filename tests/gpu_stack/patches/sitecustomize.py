"""Let sharded training run on CPU ranks: loaded by every Python whose PYTHONPATH names this folder.
For tests only.

Nothing is imported here. Each patch is applied when the module it belongs to has been imported.
accelerate 1.15 and DeepSpeed 0.19 need two small changes. Two more let a test see what was trained,
and choose FSDP's kind of state. Those for vLLM are in vllm_on_cpus.py.
"""

import importlib.abc
import importlib.machinery
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from vllm_on_cpus import VLLM


def take_fsdp_on_cpus(state: ModuleType) -> None:
    """Accelerate uses its FSDP plugin only where ranks have accelerators; nothing below that
    decision needs one.
    """
    from accelerate.utils import DistributedType

    init = state.AcceleratorState.__init__

    def patched(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        plugin = None if os.environ.get("GPU_STACK_STOCK_ACCELERATE") else kwargs.get("fsdp_plugin")
        if plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.FSDP
            self.fsdp_plugin = plugin
            # later instances copy it
            state.PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    state.AcceleratorState.__init__ = patched


def use_gloo_alone(ops: ModuleType) -> None:
    """DeepSpeed compiles an all-reduce of its own for CPUs, which takes minutes and a compiler."""
    ops.__compatible_ops__["deepspeed_shm_comm"] = False


def allow_fsdp_on_cpus(sharding: ModuleType) -> None:
    """Let grposweep take what it refuses because accelerate would silently not do it."""
    sharding.SHARDED_ON_CPUS.add("fsdp")


def tell_what_trains(trainer: ModuleType) -> None:
    """Write the type of the wrapped model into the trial folder: FSDP that was dropped still
    trains, as DDP.
    """
    train = trainer.Trainer.train

    def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return train(self, *args, **kwargs)
        finally:
            path = Path(self.args.output_dir).parent / f"wrapped-{self.args.process_index}.json"
            path.write_text(json.dumps(type(self.model_wrapped).__name__))

    trainer.Trainer.train = patched


def choose_fsdp_state(arguments: ModuleType) -> None:
    """Use the kind of state dictionary in $GPU_STACK_STATE, which grposweep has no parameter
    for.
    """
    init = arguments.TrainingArguments.__post_init__

    def patched(self: Any) -> None:
        if self.fsdp and (kind := os.environ.get("GPU_STACK_STATE")):
            self.fsdp_config = {**self.fsdp_config, "state_dict_type": kind}
        init(self)

    arguments.TrainingArguments.__post_init__ = patched


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "accelerate.state": take_fsdp_on_cpus,
    "deepspeed.ops": use_gloo_alone,
    "grposweep.train._trl_config": allow_fsdp_on_cpus,
    "transformers.trainer": tell_what_trains,
    "transformers.training_args": choose_fsdp_state,
    **VLLM,
}


class Patching(importlib.abc.MetaPathFinder):
    """Finds the modules to patch as everyone else does, and patches them once they have run."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in PATCHES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_patch(module: ModuleType) -> None:
                run(module)
                PATCHES[name](module)

            spec.loader.exec_module = run_and_patch  # type: ignore[method-assign]  # of this one loader
        return spec


sys.meta_path.insert(0, Patching())
