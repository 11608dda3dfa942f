"""What verl's own configuration says to overrides; run by its environment's interpreter, JSON lines
in and out.

In: ``{"overrides": ["data.train_batch_size=64", ...]}``. First out: versions. Then, a line each,
``{"error": ""}`` or the error of Hydra, of the configuration classes, or of ``validate_config``, as
main_ppo meets them; and ``late``, the first assertion that the workers and the trainer would meet
after minutes, whose conditions are copied here.
"""

import contextlib
import io
import json
import logging
import sys
import warnings
from importlib.metadata import version
from math import ceil, lcm
from typing import Any

from stubs import stub

stub(
    "ray",
    "vllm",
    "transfer_queue",
    "pylatexenc",
    "liger_kernel",
    "sglang",
    "torchdata",
    "PIL",
    "zmq",
)

from hydra import compose, initialize_config_module  # noqa: E402  # behind the stand-ins
from verl.trainer.ppo.core_algos import get_kl_controller, kl_penalty  # noqa: E402
from verl.trainer.ppo.utils import need_critic, need_reference_policy  # noqa: E402
from verl.utils.config import omega_conf_to_dataclass, validate_config  # noqa: E402

PACKAGES = ("verl", "hydra-core", "omegaconf", "torch")


def judge(overrides: list[str]) -> dict[str, str]:
    """The errors that these overrides meet at start, and later."""
    base = (
        "ppo_megatron_trainer"
        if any("strategy=megatron" in word for word in overrides)
        else "ppo_trainer"
    )
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            config = compose(base, overrides=overrides)
            validate_config(config, need_reference_policy(config), need_critic(config))
            omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    except Exception as error:  # noqa: BLE001 - any error that verl raises is its verdict
        return {"error": f"{type(error).__name__}: {error}"[:400], "late": ""}
    try:
        return {"error": "", "late": late(config)}
    except ZeroDivisionError as error:
        return {"error": "", "late": f"ZeroDivisionError: {error}"}


def late(config: Any) -> str:
    """The first assertion of the workers or the trainer that fails, in verl's words; those on KL
    are its own functions.
    """
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    world = config.trainer.nnodes * config.trainer.n_gpus_per_node
    engine = (
        rollout.tensor_model_parallel_size
        * rollout.data_parallel_size
        * rollout.pipeline_model_parallel_size
    )
    if actor.use_dynamic_bsz != rollout.log_prob_use_dynamic_bsz:
        return "engine_workers.py:616 AssertionError"
    if not actor.use_dynamic_bsz and None in (
        actor.ppo_micro_batch_size_per_gpu,
        rollout.log_prob_micro_batch_size_per_gpu,
    ):
        return "engine_workers.py:636 AssertionError"
    if world % engine:
        return f"rollout world_size: {world} is not divisible by infer_world_size: {engine}"
    shared = _shared(actor)
    if world % shared:
        return "the device mesh cannot be made"
    fetched = config.data.gen_batch_size or config.data.train_batch_size
    if not config.algorithm.filter_groups.enable and config.data.train_batch_size % fetched:
        return "num_prompts must be a positive multiple of gen_batch_size"
    return _update(config, world // shared) or _objective(config)


def _shared(actor: Any) -> int:
    if actor.strategy == "megatron":
        sizes = (
            actor.megatron.tensor_model_parallel_size,
            actor.megatron.pipeline_model_parallel_size,
        )
        return int(sizes[0] * sizes[1] * actor.megatron.context_parallel_size)
    old = actor.get("ulysses_sequence_parallel_size", 1)
    return int(old if old > 1 else actor.fsdp_config.ulysses_sequence_parallel_size)


def _update(config: Any, ranks: int) -> str:
    """engine_workers.py:267 and workers/engine/utils.py:125, on the batch as _balance_batch pads
    it.
    """
    actor, rollout, ref = (config.actor_rollout_ref[name] for name in ("actor", "rollout", "ref"))
    step = actor.ppo_mini_batch_size * rollout.n
    if step % ranks:
        return f"Got mini_batch_size={step} and self.engine.get_data_parallel_size()={ranks}"
    if actor.use_dynamic_bsz:
        return ""
    whole = (
        ceil(config.data.train_batch_size * rollout.n / lcm(step, ranks))
        * lcm(step, ranks)
        // ranks
    )
    sizes = [
        (whole, rollout.log_prob_micro_batch_size_per_gpu),
        (step // ranks, actor.ppo_micro_batch_size_per_gpu),
    ]
    if need_reference_policy(config):
        sizes.append((whole, ref.log_prob_micro_batch_size_per_gpu))
    if any(size is None or data % size for data, size in sizes):
        return "data size must be divisible by force_group_size * micro_batch_size_per_gpu"
    return ""


def _objective(config: Any) -> str:
    """KL by verl's own functions, on two numbers."""
    import torch

    actor, algorithm = config.actor_rollout_ref.actor, config.algorithm
    words = [actor.kl_loss_type] if actor.use_kl_loss else []
    words += [algorithm.kl_penalty] if algorithm.use_kl_in_reward else []
    try:
        for word in words:
            kl_penalty(torch.zeros(1, 2), torch.ones(1, 2), word)
        if algorithm.use_kl_in_reward:
            get_kl_controller(algorithm.kl_ctrl)
    except Exception as error:  # noqa: BLE001 - as above
        return f"{type(error).__name__}: {error}"
    return (
        ""
        if actor.clip_ratio_c > 1.0
        else "The lower bound of the clip_ratio_c for dual-clip PPO should be greater than 1.0"
    )


def main() -> None:
    """Answer every line."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    print(json.dumps({name: version(name) for name in PACKAGES}), flush=True)
    with initialize_config_module(config_module="verl.trainer.config", version_base=None):
        for line in sys.stdin:
            print(json.dumps(judge(json.loads(line)["overrides"])), flush=True)


if __name__ == "__main__":
    main()
