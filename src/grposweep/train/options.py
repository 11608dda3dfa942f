"""Every number that TRL is told: an experiment, its plan and its place as a GRPOConfig."""

import os
from typing import Any

import torch
from trl import GRPOConfig

from grposweep.config.schema import Generation
from grposweep.train.attempt import Attempt
from grposweep.train.models import Loaded
from grposweep.train.sharding import sharding_options

NEVER = 1 << 30  # optimizer steps


def vllm_options(generation: Generation) -> dict[str, Any]:
    """TRL's vLLM keys; a server that the job started says where it is in the environment."""
    if not generation.use_vllm:
        return {"use_vllm": False}
    options = {"use_vllm": True, "vllm_mode": generation.vllm_mode}
    if generation.vllm_mode == "server":
        url = os.environ.get("GRPOSWEEP_VLLM_SERVER") or generation.vllm_server_base_url
        # Two jobs on one node must not meet on the port over which weights are sent.
        group_port = 40_000 + int(os.environ.get("SLURM_JOB_ID") or 0) % 10_000
        return options | {
            "vllm_server_base_url": url,
            "vllm_server_timeout": float(generation.vllm_server_timeout),
            "vllm_group_port": group_port,
        }
    return options | {
        "vllm_tensor_parallel_size": generation.vllm_tensor_parallel_size,
        "vllm_gpu_memory_utilization": generation.vllm_gpu_memory_utilization,
        "vllm_max_model_length": generation.vllm_max_model_length,
    }


def build_config(attempt: Attempt, model: Loaded) -> GRPOConfig:
    """Every number that we know, explicitly: TRL's defaults have changed before."""
    experiment, plan, setting = attempt.experiment, attempt.plan, attempt.setting
    optimizer, kl, loss, generation = experiment.optimizer, experiment.kl, experiment.loss, experiment.generation
    cpu = not torch.cuda.is_available()
    evaluates = bool(plan.evaluation_steps)
    return GRPOConfig(
        output_dir=str(attempt.checkpoints),
        model_init_kwargs=model.init_kwargs,
        use_cpu=cpu,
        ddp_backend="gloo" if cpu and attempt.ranks > 1 else None,
        ddp_find_unused_parameters=False,  # every parameter has a gradient; looking for others costs a walk a step
        bf16=model.init_kwargs["dtype"] == "bfloat16",
        gradient_checkpointing=experiment.model.gradient_checkpointing,
        seed=experiment.seed,
        data_seed=experiment.seed,
        # the batch: only steps_per_generation, since TRL refuses it together with generation_batch_size
        per_device_train_batch_size=plan.per_device_train_batch_size,
        gradient_accumulation_steps=plan.gradient_accumulation_steps,
        steps_per_generation=plan.steps_per_generation,
        num_generations=plan.num_generations,
        num_iterations=setting.num_iterations,
        per_device_eval_batch_size=setting.per_device_eval_batch_size,
        num_generations_eval=setting.num_generations_eval or plan.num_generations,
        # the objective
        beta=kl.beta,
        use_bias_correction_kl=kl.use_bias_correction_kl,
        sync_ref_model=kl.sync_ref_model,
        ref_model_sync_steps=kl.ref_model_sync_steps,
        ref_model_mixup_alpha=kl.ref_model_mixup_alpha,
        loss_type=loss.loss_type,
        epsilon=loss.epsilon,
        epsilon_high=loss.epsilon_high,
        delta=loss.delta,
        scale_rewards=loss.scale_rewards,
        importance_sampling_level=loss.importance_sampling_level,
        mask_truncated_completions=loss.mask_truncated_completions,
        reward_weights=experiment.task.reward_weights,
        # the optimizer
        learning_rate=optimizer.learning_rate,
        optim=optimizer.optim,
        weight_decay=optimizer.weight_decay,
        adam_beta1=optimizer.adam_beta1,
        adam_beta2=optimizer.adam_beta2,
        adam_epsilon=optimizer.adam_epsilon,
        max_grad_norm=optimizer.max_grad_norm,
        lr_scheduler_type=optimizer.lr_scheduler_type,
        warmup_steps=optimizer.warmup_steps,
        max_steps=attempt.total,
        # generation
        max_completion_length=generation.max_completion_length,
        temperature=generation.temperature,
        top_p=generation.top_p,
        top_k=generation.top_k,
        **vllm_options(generation),
        # Evaluations and checkpoints are the Conductor's; eval_strategy is on so that TRL checks the evaluation batch.
        eval_strategy="steps" if evaluates else "no",
        eval_steps=NEVER if not evaluates else attempt.total,
        save_strategy="no",
        save_total_limit=None if experiment.trainer.keep == "all" else 1,
        logging_steps=1,
        log_completions=experiment.trainer.log_completions,  # to checkpoints/completions/*.parquet
        num_completions_to_print=0,
        report_to=["tensorboard"] if experiment.tracker.kind == "tensorboard" else [],  # other trackers are ours
        disable_tqdm=True,
        torch_compile=experiment.trainer.compile,
        **sharding_options(experiment.trainer.sharding),
    )
