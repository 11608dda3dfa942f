"""Configuration groups of what a trial learns: model, task, sizes, optimizer, loss, length and sampling.

Batch keys have TRL's names and count completions, unless the name says prompts.
"""

from dataclasses import dataclass, field
from typing import Any

AUTO = "auto"


@dataclass
class Shape:
    """The model's architecture, so that lint and plan need no download. ``parameters`` counts all weights.

    ``head_dim`` is the width of an attention head (0: hidden / heads), ``model_type`` transformers' name for how its layers
    are built: llama, mistral, qwen2, qwen3, gemma, gemma3_text.
    """

    parameters: int = 0
    layers: int = 0
    hidden: int = 0
    intermediate: int = 0
    heads: int = 0
    kv_heads: int = 0
    vocabulary: int = 0
    tied_embeddings: bool = True
    head_dim: int = 0
    model_type: str = "llama"


@dataclass
class Lora:
    """Low-rank adapters (peft); ``target_modules`` as peft takes it, ``all-linear`` for every linear layer."""

    enabled: bool = field(default=False, metadata={"setting": "lora"})
    r: int = field(default=16, metadata={"setting": "lora_rank"})
    alpha: int = field(default=32, metadata={"setting": "lora_alpha"})
    dropout: float = field(default=0.0, metadata={"setting": "lora_dropout"})
    target_modules: list[str] = field(default_factory=lambda: ["all-linear"])


@dataclass
class Model:
    """The trained model: ``path`` is a hub id, a local folder, ``embedded`` for a tiny model that
    grposweep creates, or ``embedded-text`` for an untrained one that reads any text.

    ``dtype`` is the type of the weights: float32, bfloat16, float16 (with LoRA and fp16 only), or auto: float32 for weights that
    are trained, the type of the mixed precision for those under an adapter. ``mixed_precision`` is bf16, fp16 (GPUs older than
    Ampere) or none; null means what ``dtype`` implies (bfloat16: bf16, float32: none, auto: bf16). Without a GPU all is float32.
    ``tf32`` lets float32 products use TensorFloat-32 (null: torch's setting). ``quantization`` (4bit, 8bit) is bitsandbytes' for
    the frozen weights under LoRA (QLoRA), without vLLM.

    ``attn_implementation`` (null: transformers chooses), ``trust_remote_code`` and ``use_kernels`` (kernels of the hub) are
    from_pretrained's, ``chat_template_kwargs`` variables of the tokenizer's chat template.
    """

    path: str = "embedded"
    revision: str | None = None
    dtype: str = field(default="float32", metadata={"setting": "weights_dtype"})
    mixed_precision: str | None = field(default=None, metadata={"setting": "autocast_dtype"})
    tf32: bool | None = None
    quantization: str | None = None
    attn_implementation: str | None = None
    trust_remote_code: bool = False
    use_kernels: bool = False
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    gradient_checkpointing: bool = field(default=False, metadata={"setting": "gradient_checkpointing"})
    lora: Lora = field(default_factory=Lora)
    shape: Shape = field(default_factory=Shape)


@dataclass
class Task:
    """Prompts, their answers, and the rewards of a completion.

    ``rewards`` are names of built-in rewards, ``package.module:function`` or ``path/to/file.py:function``.
    ``train_prompts`` limits the training prompts (null: all); ``eval_prompts`` are held out, never trained on. The options of
    batch use ``eval_generations`` as ``batch.num_generations_eval``: how many completions an evaluation samples for each of them.
    ``keep_between`` trains only on prompts whose pass rate is within these bounds, such as [0.2,0.8], by a screen of the
    untrained model ('grposweep screen', or ``search.screen``). ``screen`` is the hash of its pass rates (null: the newest that
    matches).
    """

    kind: str = "arithmetic"
    path: str | None = None
    subset: str | None = None
    train_split: str = "train"
    eval_split: str | None = None
    prompt_column: str = "prompt"
    answer_column: str = "answer"
    system_prompt: str | None = None
    chat: bool = field(default=False, metadata={"setting": "chat"})
    rewards: list[str] = field(default_factory=lambda: ["exact"])
    reward_weights: list[float] | None = None
    train_prompts: int | None = field(default=None, metadata={"setting": "train_prompts"})
    eval_prompts: int = field(default=256, metadata={"setting": "eval_prompts"})
    eval_generations: int = 8
    keep_between: list[float] | None = None
    screen: str | None = None
    max_completion_length: int = 256


@dataclass
class Batch:
    """TRL's batch fields, in completions. Hardware sizes may be ``auto`` if ``prompts_per_step`` is set.

    ``steps_per_generation`` counts micro-steps and defaults to the accumulation, as in TRL.
    ``max_per_device_train_batch_size`` bounds what ``auto`` may choose. ``num_generations_eval`` is the same for all points,
    so that objectives are measured in the same way (null: TRL's default, ``num_generations``).
    """

    num_generations: int = 8
    prompts_per_step: int | None = None
    per_device_train_batch_size: int | str = AUTO
    gradient_accumulation_steps: int | str = AUTO
    steps_per_generation: int | None = None
    num_iterations: int = 1
    max_per_device_train_batch_size: int = 64
    per_device_eval_batch_size: int | str = AUTO
    num_generations_eval: int | None = 8


@dataclass
class Kl:
    """The KL penalty against a reference model; ``enabled`` is whether KL is used, ``beta`` the coefficient passed to TRL."""

    enabled: bool = field(default=False, metadata={"setting": "kl_enabled"})
    beta: float = 0.0
    use_bias_correction_kl: bool = True
    sync_ref_model: bool = False
    ref_model_sync_steps: int = 512
    ref_model_mixup_alpha: float = 0.6


@dataclass
class Optimizer:
    """AdamW and its schedule. ``warmup_steps`` below 1 is a share of all optimizer steps, otherwise a count."""

    optim: str = "adamw_torch"
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    lr_scheduler_type: str = "constant"
    warmup_steps: float = 0.0


@dataclass
class Loss:
    """TRL's GRPO loss and its options, under TRL's names. Null leaves an option to TRL, and out of a trial's identity.

    ``entropy_coef`` weighs a bonus for the mean entropy of a token. With ``use_adaptive_entropy`` it moves each optimizer step
    by ``entropy_coef_delta``, between ``entropy_coef_min`` and ``entropy_coef_max``, towards ``entropy_target`` (nats per token).
    ``top_entropy_quantile`` is the share of tokens, highest entropy first, that the loss counts (0 to 1).
    ``off_policy_mask_threshold`` leaves out sequences with a negative advantage that are further off-policy (nats per token).
    The sapo loss has two temperatures, vespo two exponents and two decays, for tokens or sequences with a positive and a
    negative advantage. The cispo loss clips its weights at ``epsilon_high``. ``multi_objective_aggregation`` sets whether
    several rewards are summed before they are normalised (``sum_then_normalize``) or after (``normalize_then_sum``).
    """

    loss_type: str = "dapo"
    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    scale_rewards: str = "group"
    importance_sampling_level: str = "token"
    mask_truncated_completions: bool = False
    entropy_coef: float | None = None
    use_adaptive_entropy: bool | None = None
    entropy_coef_min: float | None = None
    entropy_coef_max: float | None = None
    entropy_coef_delta: float | None = None
    entropy_target: float | None = None
    top_entropy_quantile: float | None = None
    off_policy_mask_threshold: float | None = None
    sapo_temperature_neg: float | None = None
    sapo_temperature_pos: float | None = None
    vespo_k_pos: float | None = None
    vespo_lambda_pos: float | None = None
    vespo_k_neg: float | None = None
    vespo_lambda_neg: float | None = None
    multi_objective_aggregation: str | None = None


@dataclass
class Schedule:
    """The length of a trial: exactly one of a budget in generated completions, optimizer steps, or epochs.

    ``evaluations`` and ``checkpoints`` are counts, spread evenly over the run and placed on optimizer steps
    (checkpoints on rollout boundaries, where TRL can resume exactly). Besides these there is a checkpoint at the first
    boundary after ``checkpoint_minutes`` without one (null: none; with ``trainer.keep=all``, which keeps every one, none).
    """

    budget_completions: int | None = None
    max_steps: int | None = None
    epochs: float | None = None
    evaluations: int = 4
    eval_at_start: bool = True
    checkpoints: int = 2
    checkpoint_minutes: float | None = 30.0


@dataclass
class Generation:
    """How completions are sampled, and by which engine. The length in tokens is the task's unless set here.

    ``vllm_max_model_length`` bounds a sequence in tokens (null: the longest prompt that preparation found, and a completion).
    ``min_p`` (0 to 1) is the least probability of a token, relative to the likeliest; ``generation_kwargs`` are passed to
    transformers' GenerationConfig, or to vLLM's SamplingParams. ``vllm_importance_sampling_correction`` weighs tokens by how
    far the trainer's probabilities are from vLLM's. Its ``mode`` truncates ratios (or masks tokens or sequences) outside of
    ``clip_min`` and ``clip_max`` (``inf``: no upper bound). ``vllm_enable_sleep_mode`` lets a colocated engine free its memory
    during optimizer steps. Null leaves each of these to TRL, and out of a trial's identity. With ``use_vllm`` vLLM generates:
    ``colocate`` in the training processes, ``server`` apart from them. ``vllm_gpus`` of a Slurm job's GPUs run its own server
    (of several nodes, all of the last one), or on this machine that many GPUs in addition to the trial's ranks. They are not
    training ranks. ``vllm_server_base_url`` is a server that runs already, ``vllm_server_command`` a shell line that starts
    another one than TRL's, on port $GRPOSWEEP_VLLM_PORT. ``vllm_server_args`` are further options of TRL's (``vllm serve``).
    The server has ``vllm_server_timeout`` seconds to answer.
    """

    max_completion_length: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None
    repetition_penalty: float | None = None
    generation_kwargs: dict[str, Any] = field(default_factory=dict)
    use_vllm: bool = False
    vllm_mode: str = "colocate"
    vllm_tensor_parallel_size: int = 1
    vllm_gpu_memory_utilization: float = 0.3
    vllm_max_model_length: int | None = None
    vllm_enable_sleep_mode: bool | None = None
    vllm_importance_sampling_correction: bool | None = None
    vllm_importance_sampling_mode: str | None = None
    vllm_importance_sampling_clip_min: float | None = None
    vllm_importance_sampling_clip_max: float | None = None
    vllm_gpus: int = field(default=0, metadata={"setting": "server_gpus"})
    vllm_server_base_url: str | None = field(default=None, metadata={"setting": ""})
    vllm_server_command: str | None = field(default=None, metadata={"setting": "server_command"})
    vllm_server_args: list[str] = field(default_factory=list)
    vllm_server_timeout: int = 600
