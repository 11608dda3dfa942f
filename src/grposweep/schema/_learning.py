"""Configuration groups of what a trial learns: model, task, sizes, optimizer, loss, length and
sampling.

Batch keys have TRL's names and count completions, unless the name says prompts.
"""

from copy import copy
from dataclasses import dataclass, field
from typing import Any

AUTO = "auto"
WEIGHTS = (AUTO, "float32", "bfloat16", "float16")
MIXED = ("bf16", "fp16", "none")


def key(default: Any, **metadata: Any) -> Any:
    """Declare a key with its default, of which each object has its own copy.

    The ``metadata`` says what else it is:

    - ``setting``: the field of the neutral Setting that it sets (the same name in
      `grposweep.config.fields.NUMBERS`);
    - ``trl``: the GRPOConfig argument that it is copied to (the same name in
      `grposweep.schema.NAMED_AS_IN_TRL`);
    - ``native``: the keys of a TRL recipe that follow from it (and from others); the first one has
      its meaning;
    - ``choices``: its values, if its type alone does not define them;
    - ``length``: it decides how long a trial trains, and when it is evaluated and saved, not which
      point it is;
    - ``neutral``: it changes no number of a training, so identities omit it;
    - ``range``: its range, by a name in `grposweep.config.validate.RANGES`.
    """
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: copy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class Shape:
    """The model's architecture, so that lint and plan need no download."""

    parameters: int = 0
    """All weights (0: unknown)."""
    layers: int = 0
    """Transformer layers."""
    hidden: int = 0
    """Width of the hidden states."""
    intermediate: int = 0
    """Width of the feed-forward layers."""
    heads: int = 0
    """Attention heads."""
    kv_heads: int = 0
    """Heads of keys and values."""
    vocabulary: int = 0
    """Tokens of the embedding."""
    tied_embeddings: bool = True
    """Whether the output layer shares the embedding's weights."""
    head_dim: int = 0
    """Width of an attention head (0: hidden / heads)."""
    model_type: str = "llama"
    """Transformers' name for how layers are built: llama, mistral, qwen2, qwen3, gemma,
    gemma3_text.
    """


@dataclass
class Lora:
    """Low-rank adapters (peft)."""

    r: int = key(0, setting="lora_rank", native="lora_r use_peft", range="not negative")
    """Rank of the adapters, which are trained instead of the model's weights (0: no adapters)."""
    alpha: int = key(32, setting="lora_alpha", native="lora_alpha", range="count")
    """Scale; an adapter's output is multiplied by ``alpha / r``."""
    dropout: float = key(0.0, setting="lora_dropout", native="lora_dropout", range="share")
    """Dropout of an adapter's input (0 to 1)."""
    target_modules: list[str] = key(["all-linear"], native="lora_target_modules")
    """Names of the layers with an adapter, as peft takes them; ``all-linear`` for every linear
    layer.
    """

    @property
    def enabled(self) -> bool:
        """Return whether adapters are trained."""
        return self.r > 0


@dataclass
class Model:
    """The trained model, its numeric types and its adapters. Without a GPU all is float32."""

    path: str = key("embedded", native="model_name_or_path")
    """A hub id, a local folder, or a tiny model that grposweep creates: ``embedded`` or
    ``embedded-text`` (untrained, reads any text).
    """
    revision: str | None = key(None, native="model_revision")
    """Branch, tag or commit of a model of the hub (null: its main branch)."""
    dtype: str = key(
        "float32", setting="weights_dtype", native="dtype model_init_kwargs", choices=WEIGHTS
    )
    """Type of the weights; float16 with LoRA and fp16 only. ``auto`` is float32 for weights that
    are trained, the type of the mixed precision for those under an adapter.
    """
    mixed_precision: str | None = key(
        None, setting="autocast_dtype", native="bf16 fp16", choices=MIXED
    )
    """``fp16`` is for GPUs older than Ampere. Null is what ``dtype`` implies (bfloat16: bf16,
    float32: none, auto: bf16).
    """
    tf32: bool | None = None
    """Let float32 products use TensorFloat-32 (null: torch's setting)."""
    quantization: str | None = key(None, native="load_in_4bit", choices=("4bit", "8bit"))
    """bitsandbytes' type for the frozen weights under LoRA (QLoRA), without vLLM."""
    attn_implementation: str | None = None
    """Argument of from_pretrained (null: transformers chooses)."""
    trust_remote_code: bool = key(False, trl="trust_remote_code")
    """Argument of from_pretrained: run the code that comes with a model of the hub."""
    use_kernels: bool = False
    """Argument of from_pretrained: use kernels of the hub."""
    chat_template_kwargs: dict[str, Any] = key({}, trl="chat_template_kwargs")
    """Variables of the tokenizer's chat template."""
    gradient_checkpointing: bool = key(
        False, setting="gradient_checkpointing", trl="gradient_checkpointing"
    )
    """Compute activations again in the backward pass instead of keeping them."""
    lora: Lora = field(default_factory=Lora)
    shape: Shape = field(default_factory=Shape)


@dataclass
class Task:
    """Prompts, their answers, and the rewards of a completion."""

    kind: str = "arithmetic"
    """Where prompts come from."""
    path: str | None = key(None, native="dataset_name")
    """The data: a JSONL file, or a hub id or local folder."""
    subset: str | None = key(None, native="dataset_config")
    """Configuration of a data set of the hub."""
    train_split: str = key("train", native="dataset_train_split")
    """Split of the training prompts."""
    eval_split: str | None = key(None, native="dataset_test_split")
    """Split of the held-out prompts (null: they are taken from the training split)."""
    prompt_column: str = "prompt"
    """Column with the prompt."""
    answer_column: str = "answer"
    """Column with the answer that rewards compare with."""
    family_column: str | None = None
    """Column that names the family of a held-out prompt: variants of one question. Intervals count
    a family once (null: only equal prompts are one family).
    """
    system_prompt: str | None = None
    """Text of a system turn before each prompt (null: none)."""
    chat: bool | None = key(False, setting="chat")
    """Put prompts that are plain text into the tokenizer's chat template (null: if it has one).
    Conversations always are.
    """
    rewards: list[str] = key(["exact"], native="reward_funcs")
    """Names of built-in rewards, ``package.module:function`` or ``path/to/file.py:function``."""
    reward_weights: list[float] | None = key(None, trl="reward_weights")
    """A weight for each reward (null: 1)."""
    train_prompts: int | None = key(None, setting="train_prompts", range="count")
    """The most training prompts (null: all)."""
    eval_prompts: int = key(256, setting="eval_prompts")
    """Held-out prompts, never trained on."""
    eval_generations: int = 8
    """Completions that an evaluation samples for each held-out prompt: options of batch take
    ``num_generations_eval`` from it.
    """
    max_completion_length: int = 256
    """Tokens of a completion at most, unless ``generation.max_completion_length`` is set."""


@dataclass
class Batch:
    """TRL's batch fields, in completions. Hardware sizes may be ``auto`` if ``prompts_per_step`` is
    set.
    """

    num_generations: int = 8
    """Completions of a prompt that are compared with each other."""
    prompts_per_step: int | None = None
    """Prompts of an optimizer step; decides what is ``auto`` (null: the sizes below decide)."""
    per_device_train_batch_size: int | str = AUTO
    """Completions of a micro-step on one rank."""
    gradient_accumulation_steps: int | str = AUTO
    """Micro-steps of an optimizer step."""
    steps_per_generation: int | None = key(None, native="generation_batch_size")
    """Micro-steps that one rollout feeds (null: the accumulation, as in TRL)."""
    num_iterations: int = key(1, trl="num_iterations")
    """How often each completion is trained on."""
    max_per_device_train_batch_size: int = key(64, range="count")
    """The most completions of a micro-step on one rank that ``auto`` may choose."""
    per_device_eval_batch_size: int | str = AUTO
    """Completions of an evaluation step on one rank."""
    num_generations_eval: int | None = 8
    """Completions of a held-out prompt. The same for all points, so that objectives are measured in
    the same way (null: TRL's default, ``num_generations``).
    """


@dataclass
class Kl:
    """The KL penalty against a reference model, under TRL's names."""

    enabled: bool | None = key(None, setting="kl_enabled", neutral=True)
    """Use the penalty (null: if ``beta`` is not 0). ``false`` with a ``beta`` is refused, ``true``
    without one too.
    """
    beta: float = 0.0
    """Coefficient of the penalty."""
    use_bias_correction_kl: bool = True
    """Weigh the estimate of KL by the importance ratio."""
    sync_ref_model: bool = False
    """Move the reference model towards the trained one."""
    ref_model_sync_steps: int = key(512, range="count")
    """Optimizer steps between two such moves."""
    ref_model_mixup_alpha: float = key(0.6, range="share")
    """Share of the trained model in such a move (0 to 1)."""


@dataclass
class Optimizer:
    """The optimizer and the schedule of its learning rate, under TRL's names."""

    optim: str = "adamw_torch"
    """Optimizer, by transformers' name."""
    weight_decay: float = 0.0
    """Weight decay."""
    max_grad_norm: float = key(1.0, range="not negative")
    """Gradients with a larger norm are scaled down to it."""
    lr_scheduler_type: str = "constant"
    """Schedule of the learning rate, by transformers' name."""
    warmup_steps: float = 0.0
    """Warm-up: below 1 a share of all optimizer steps, otherwise a count."""


@dataclass
class Loss:
    """TRL's GRPO loss and its options, under TRL's names. Options with the default null are left to
    TRL unless set.
    """

    loss_type: str = "dapo"
    """Normalization of the loss."""
    epsilon: float = 0.2
    """Lower clip of the importance ratio: 1 - ``epsilon``."""
    epsilon_high: float | None = None
    """Upper clip: 1 + ``epsilon_high`` (null: ``epsilon``). The cispo loss clips its weights at it.
    """
    scale_rewards: str = "group"
    """Standard deviation that advantages are divided by."""
    importance_sampling_level: str = "token"
    """Whether ratios are of tokens or of sequences (GSPO)."""


@dataclass
class Schedule:
    """The length of a trial: exactly one of a budget in generated completions, optimizer steps, or
    epochs.
    """

    budget_completions: int | None = key(None, length=True)
    """Completions that a trial generates for its training."""
    max_steps: int | None = key(None, length=True)
    """Optimizer steps of a trial."""
    epochs: float | None = key(None, native="num_train_epochs", length=True)
    """Passes of a trial over the training prompts."""
    evaluations: int = key(
        4, native="do_eval eval_steps eval_strategy", length=True, range="not negative"
    )
    """Evaluations of a trial, spread evenly over its optimizer steps. A new sweep takes more if
    ``search.effort`` needs them and this is not set.
    """
    eval_at_start: bool = key(True, native="eval_on_start", length=True)
    """Evaluate before the first optimizer step as well."""
    checkpoints: int = key(
        2,
        native="resume_from_checkpoint save_steps save_strategy",
        length=True,
        range="not negative",
    )
    """Checkpoints of a trial, spread evenly and placed on rollout boundaries, where TRL can resume
    exactly.
    """
    checkpoint_minutes: float | None = key(30.0, length=True, neutral=True, range="positive")
    """Write another checkpoint at the first rollout boundary after so many minutes without one
    (null: never; nor with ``trainer.keep=all``, which keeps every one).
    """


@dataclass
class Generation:
    """How completions are sampled, and by which engine. Options with the default null are left to
    TRL unless set.
    """

    max_completion_length: int = 256
    """Tokens of a completion at most (options of generation take the task's)."""
    temperature: float = 1.0
    """Sampling temperature."""
    top_p: float = 1.0
    """Sample from the likeliest tokens with this sum of probabilities (1: all)."""
    top_k: int = 0
    """Sample from so many likeliest tokens (0: all)."""
    min_p: float | None = key(None, range="share")
    """Least probability of a token, relative to the likeliest (0 to 1)."""
    repetition_penalty: float | None = key(None, range="positive")
    """Penalty of tokens that occurred before (1: none)."""
    generation_kwargs: dict[str, Any] = key({})
    """Further options of transformers' GenerationConfig, or of vLLM's SamplingParams."""
    use_vllm: bool = False
    """Generate with vLLM."""
    vllm_mode: str = key("colocate", choices=("colocate", "server"))
    """``colocate`` in the training processes, ``server`` apart from them."""
    vllm_tensor_parallel_size: int = key(1, range="count")
    """GPUs that a colocated engine's weights are divided among."""
    vllm_gpu_memory_utilization: float = 0.3
    """Share of a GPU's memory for a colocated engine (0 to 1)."""
    vllm_max_model_length: int | None = key(None, range="count")
    """Tokens of a sequence at most (null: the longest prompt that preparation found, and a
    completion).
    """
    vllm_gpus: int = key(0, setting="server_gpus", neutral=True)
    """GPUs of a Slurm job that run its own server (of several nodes, all of the last one), or on
    this machine GPUs in addition to the trial's ranks. They are not training ranks.
    """
    vllm_shared_gpus: int = key(0, setting="shared_server_gpus", neutral=True)
    """GPUs of one server that all trials of a sweep with LoRA share; each sends its adapters (0:
    there is none). On a machine without GPUs it runs on the CPU.
    """
    vllm_max_loras: int | None = key(None, neutral=True)
    """Adapters that the shared server computes with at once (null: as many as trials run at once).
    """
    vllm_server_base_url: str | None = key(
        None,
        setting="",
        native="vllm_server_base_url vllm_server_host vllm_server_port",
        neutral=True,
    )
    """Address of a server that runs already."""
    vllm_server_command: str | None = key(None, setting="server_command")
    """Shell line that starts another server than TRL's, on port $GRPOSWEEP_VLLM_PORT."""
    vllm_server_args: list[str] = key([])
    """Further options of TRL's server (``vllm serve``)."""
    vllm_server_timeout: int = key(600, range="count", neutral=True)
    """Seconds that the server has to answer."""

    @property
    def is_served(self) -> bool:
        """Return whether a vLLM server generates."""
        return self.use_vllm and self.vllm_mode == "server"
