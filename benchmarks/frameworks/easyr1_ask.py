"""What EasyR1's own classes and checks say to overrides; run by an interpreter with its imports,
JSON lines in and out.

EASYR1_SRC names a checkout. In: ``{"overrides": [...], "prompts": 1000}``. First out: versions.
Then, a line each, ``{"error": ""}`` or the error, of: the configuration classes under OmegaConf,
``RayPPOTrainer.__init__``, the workers' ``_init_dist_mesh``, and ``DataProto.chunk`` and ``split``
on what a rollout would be. Ray, vLLM and process groups are stand-ins.
"""

import contextlib
import io
import json
import os
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from stubs import stub

SOURCE = Path(os.environ["EASYR1_SRC"])
sys.path.insert(0, str(SOURCE))
stub(
    "ray",
    "vllm",
    "torchdata",
    "PIL",
    "flash_attn",
    "mathruler",
    "qwen_vl_utils",
    "wandb",
    "pylatexenc",
    "swanlab",
    "mlflow",
    "msgspec",
)

import torch  # noqa: E402  # behind the stand-ins
import transformers.modeling_utils  # noqa: E402

# A context manager of transformers 4 that loads weights, which nothing here does.
vars(transformers.modeling_utils).setdefault("no_init_weights", contextlib.nullcontext)

from omegaconf import OmegaConf  # noqa: E402
from verl.protocol import DataProto  # noqa: E402
from verl.trainer.config import PPOConfig  # noqa: E402
from verl.trainer.core_algos import compute_kl, compute_policy_loss  # noqa: E402
from verl.trainer.ray_trainer import RayPPOTrainer  # noqa: E402
from verl.workers import fsdp_workers  # noqa: E402


def judge(overrides: list[str], prompts: int) -> dict[str, str]:
    """The first error on the way to an optimizer step."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            _run(overrides, prompts)
    except Exception as error:  # noqa: BLE001 - any error that EasyR1 raises is its verdict
        return {"error": f"{type(error).__name__}: {error}"[:400]}
    return {"error": ""}


def _run(overrides: list[str], prompts: int) -> None:
    """verl/trainer/main.py, then what its workers do first."""
    config = OmegaConf.to_object(
        OmegaConf.merge(OmegaConf.structured(PPOConfig()), OmegaConf.from_dotlist(overrides))
    )
    config.deep_post_init()
    fetched = config.data.mini_rollout_batch_size or config.data.rollout_batch_size
    # drop_last
    batches = prompts // fetched
    # data_loader.py
    assert batches >= 1
    loader = mock.MagicMock(__len__=lambda _: batches)
    RayPPOTrainer(config, None, None, loader, loader, {}, None)
    world = config.trainer.nnodes * config.trainer.n_gpus_per_node
    _workers(config, world)
    _rollout(config, world, fetched)
    _objective(config)


def _workers(config: Any, world: int) -> None:
    """FSDPWorker._init_dist_mesh and the checks of _build_rollout, in a world of so many
    processes.
    """

    def mesh(_device: str, mesh_shape: tuple[int, ...], **_: Any) -> None:
        size = 1
        for length in mesh_shape:
            size *= length
        assert size == world, f"a mesh of {mesh_shape} in a world of {world}"

    worker = SimpleNamespace(config=config.worker, print_rank0=lambda *_: None)
    patches = {"dist": mock.MagicMock(get_world_size=lambda: world), "init_device_mesh": mesh}
    with mock.patch.multiple(fsdp_workers, FSDPUlyssesShardingManager=mock.MagicMock(), **patches):
        fsdp_workers.FSDPWorker._init_dist_mesh(worker, config.worker.actor, "actor")
    size, rollout = config.worker.rollout.tensor_parallel_size, config.worker.rollout
    # fsdp_workers.py _build_rollout, whose other half needs vLLM
    if world % size != 0:
        raise ValueError(f"rollout world size {world} is not divisible by tp size {size}.")
    # vllm_rollout_spmd.py
    if rollout.max_num_batched_tokens < rollout.prompt_length + rollout.response_length:
        raise ValueError(
            "max_num_batched_tokens should be greater than prompt_length + response_length."
        )
    # fsdp_workers.py:366
    if config.worker.actor.optim.lr_scheduler_type not in ("constant", "cosine"):
        raise NotImplementedError(
            f"LR scheduler type {config.worker.actor.optim.lr_scheduler_type} is not supported"
        )


def _rollout(config: Any, world: int, fetched: int) -> None:
    """Generation in equal chunks, and an update in equal splits, by DataProto itself."""
    _proto(fetched).chunk(world)
    batch = _proto(config.data.rollout_batch_size * config.worker.rollout.n)
    rank = len(batch.chunk(world)[0]) * config.worker.actor.ulysses_size
    _proto(rank).split(config.worker.actor.global_batch_size_per_device)


def _proto(length: int) -> DataProto:
    return DataProto.from_dict(tensors={"x": torch.zeros(length, 1)})


def _objective(config: Any) -> None:
    """One loss on four tokens, with the words that are set."""
    actor, mask = config.worker.actor, torch.ones(2, 4)
    compute_policy_loss(
        torch.zeros(2, 4),
        torch.zeros(2, 4),
        torch.ones(2, 4),
        mask,
        actor.clip_ratio_low,
        actor.clip_ratio_high,
        actor.clip_ratio_dual,
        actor.tau_positive,
        actor.tau_negative,
        actor.loss_type,
        actor.loss_avg_mode,
    )
    if not config.algorithm.disable_kl:
        assert (
            compute_kl(torch.zeros(2, 4), torch.ones(2, 4), config.algorithm.kl_penalty).shape
            == mask.shape
        )


def main() -> None:
    """Answer every line."""
    warnings.simplefilter("ignore")
    from verl import __version__

    print(
        json.dumps(
            {"EasyR1": __version__, "omegaconf": _version("omegaconf"), "torch": torch.__version__}
        ),
        flush=True,
    )
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(judge(asked["overrides"], asked["prompts"])), flush=True)


def _version(name: str) -> str:
    from importlib.metadata import version

    return version(name)


if __name__ == "__main__":
    main()
